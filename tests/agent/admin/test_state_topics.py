"""The state as retained topics, at a real Mosquitto."""

import json
import signal

import pytest
from tests.agent.live import eventually

from hansa.agent.settings import AgentSettings, load_settings
from hansa.errors import UsageError
from hansa.testbed.mosquitto import free_port

PREFIX = "$hansa/state"


def retained(scene, broker) -> dict[str, dict[str, str]]:
    """Return what the broker stores, without the prefix and the id of the agent."""
    client = scene.client(broker.port)
    client.subscribe(f"{PREFIX}/#")
    client.silent()
    found = {
        each.topic.removeprefix(f"{PREFIX}/").partition("/")[2]: json.loads(each.payload)
        for each in client.received
        if each.retain
    }
    client.kill()
    return found


def states(scene, broker) -> dict[str, str]:
    """Return kinds of topics and names with their states."""
    return {
        f"{topic.partition('/')[0]} {document['name']}": document["state"]
        for topic, document in retained(scene, broker).items()
    }


def test_state_of_agent_links_and_nodes_is_retained(scene):
    link_port = free_port()
    static = {"broker_observer": "static", "broker_filters": "plant/#"}
    broker = scene.broker()
    first = scene.agent(
        broker_port=broker.port,
        name="first",
        link_port=link_port,
        broker_state_topics=PREFIX,
        **static,
    )
    second = scene.agent(
        broker_port=scene.broker().port,
        name="second",
        link_neighbours=f"127.0.0.1:{link_port}",
        **static,
    )
    up = {
        "agent first": "ready",
        "link second": "up",
        "node first": "reachable",
        "node second": "reachable",
    }
    eventually(lambda: states(scene, broker) == up, "everything is up")
    second.process.kill()
    lost = up | {"link second": "down", "node second": "unreachable"}
    eventually(lambda: states(scene, broker) == lost, "the killed agent is lost")
    first.process.kill()
    eventually(lambda: states(scene, broker)["agent first"] == "offline", "the will is published")


def test_stopped_agent_is_offline_and_a_new_one_is_ready(scene):
    broker = scene.broker()
    settings = {"broker_port": broker.port, "name": "one", "broker_observer": "static"}
    first = scene.agent(broker_state_topics=PREFIX, **settings)
    eventually(lambda: states(scene, broker).get("agent one") == "ready", "it is ready")
    first.process.send_signal(signal.SIGTERM)
    assert first.wait() == 0
    assert states(scene, broker)["agent one"] == "offline"


def test_no_topics_by_default():
    assert AgentSettings().broker.state_topics == ""


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"HANSA_BROKER_STATE_TOPICS": "a/#"}, "state_topics: topic name 'a/#'"),
        ({"HANSA_BROKER_STATE_TOPICS": "a/"}, "leave out the / at its end"),
        (
            {"HANSA_BROKER_STATE_TOPICS": "a", "HANSA_BROKER_OBSERVER": "embedded"},
            "embedded is none",
        ),
    ],
)
def test_unusable_prefix_is_refused(given, error):
    with pytest.raises(UsageError, match=error):
        load_settings(None, given)
