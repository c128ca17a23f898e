"""A session of MQTT 3.1.1 keeps publications while the agent is away."""

import pytest
from tests.agent.absence import ENDS, check_absence
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import LoopThread
from tests.agent.test_broker import OldBroker

from hansa.testbed.mosquitto import free_port


@pytest.mark.parametrize("end", ENDS)
def test_publications_while_the_agent_is_away_arrive(scene, tmp_path, end):
    here, there, link_port = scene.broker(), scene.broker(), free_port()
    scene.agent(broker_port=there.port, broker_log_file=there.log_file, link_port=link_port)
    front, thread = OldBroker(free_port(), here.port), LoopThread()
    thread.run(front.start())
    try:
        check_absence(
            here.port,
            lambda: scene.agent(
                state=tmp_path / "state",
                broker_port=front.port,
                broker_observer="static",
                broker_filters="t/#",
                link_neighbours=f"127.0.0.1:{link_port}",
            ),
            scene.client_of(GuaranteedClient, there.port).subscribe_qos2("t/#"),
            ENDS[end],
        )
    finally:
        thread.run(front.stop())
        thread.close()
