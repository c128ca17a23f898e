"""Publications of clients at a broker of MQTT 3.1.1 while its agent is away."""

import signal
from collections import Counter
from collections.abc import Callable, Sequence

from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import eventually
from tests.agent.process import Process
from tests.agent.test_broker import is_installed, status

from hansa.mqtt.types import Version

ENDS = {"stopped": signal.SIGTERM, "killed": signal.SIGKILL}
TOPIC = "t/x"
COUNT = 20


def check_absence(
    port: int,
    start_agent: Callable[[], Process],
    subscriber: GuaranteedClient,
    end: signal.Signals,
    qos_levels: Sequence[int] = (1, 2),
    patience_s: float = 60.0,
    is_exact: bool = True,
) -> None:
    """End the agent at the broker at `port` while its publications come back as echoes, publish
    there, and start it again. `subscriber`, at another broker, gets each publication; each once if
    the agent was stopped in order and the broker `is_exact`."""
    agent = start_agent()

    def is_ready() -> bool:
        found = status(agent)
        return bool(found) and found["broker"]["connected"] and is_installed(agent, "t/#")

    eventually(is_ready, "installed", patience_s)
    local = GuaranteedClient(port, version=Version.V311).subscribe_qos2("t/#")
    elsewhere = GuaranteedClient(subscriber.port)
    payloads = [b"%d" % each for each in range(COUNT)]
    for qos in qos_levels:
        elsewhere.publish_guaranteed(qos, TOPIC, *payloads)
    local.read_until(COUNT * len(qos_levels))
    agent.process.send_signal(end)
    agent.wait()
    for qos in qos_levels:
        local.publish_guaranteed(qos, TOPIC, *payloads, b"of QoS %d" % qos)
    agent = start_agent()
    eventually(is_ready, "installed again", patience_s)
    for qos in qos_levels:
        local.publish_guaranteed(qos, TOPIC, b"end %d" % qos)
    expected = Counter({each: 2 * len(qos_levels) for each in payloads})
    expected.update(b"of QoS %d" % qos for qos in qos_levels)
    expected.update(b"end %d" % qos for qos in qos_levels)
    subscriber.read_until(expected.total(), pause=1.0)
    found = Counter(each.payload for each in subscriber.received)
    for client in (local, elsewhere):
        client.kill()
    assert found >= expected, f"lost: {expected - found}"
    if end is signal.SIGTERM and is_exact:
        assert found == expected, f"duplicates: {found - expected}"
    assert status(agent)["alarms"].keys() <= {"broker session uncertain"}
