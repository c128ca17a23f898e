"""Retained values after a restart of broker or agent that lost writes."""

import signal
from collections.abc import Iterator
from contextlib import suppress

import msgspec
import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import Live, eventually
from tests.agent.test_retained_order import (
    ORIGIN,
    RECEIVER,
    assert_same_values,
)

from hansa.agent.storage.state_directory import RETAINED_FILE
from hansa.mqtt.packets import PublishPacket
from hansa.protocol.retained.digest import RetainedEntry, payload_digest
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation


@pytest.fixture
def pair(mosquitto: str) -> Iterator[Live]:
    with Live(LocalFederation(parse_topology("line:2", 1), {}, persistent=True)) as live:
        yield live


def write(live: Live, qos: int, **values: bytes) -> None:
    publisher = live.client_of(GuaranteedClient, ORIGIN)
    for name, payload in values.items():
        publisher.publish_as(PublishPacket(f"r/{name}", payload, qos, retain=True))


def wait_saved(live: Live, **values: bytes) -> None:
    """Wait until the receiving agent has these values in its state directory."""
    path = live.nodes[RECEIVER].directory / "agent" / RETAINED_FILE
    expected = {f"r/{name}": payload_digest(payload) for name, payload in values.items()}

    def holds() -> bool:
        data = path.read_bytes() if path.exists() else b"\x80"
        found = msgspec.msgpack.decode(data, type=dict[str, RetainedEntry])
        return all(t in found and found[t].digest == each for t, each in expected.items())

    eventually(holds, "values saved")


def test_lost_writes_are_repaired_after_restarts_of_broker_and_agent(pair):
    broker = pair.nodes[RECEIVER].broker
    pair.subscriber(RECEIVER, "r/#", name="keeper", clean=False)
    write(pair, 1, x1=b"old1", x2=b"old2", x3=b"old3")
    assert_same_values(pair, "r", {"r/x1": b"old1", "r/x2": b"old2", "r/x3": b"old3"})

    # The broker saves its state, receives values, and is restarted from that state.
    saved = broker.directory / "mosquitto.db"
    assert broker.process is not None
    broker.process.send_signal(signal.SIGUSR1)
    eventually(saved.exists, "state of the broker saved")
    write(pair, 1, x1=b"", x2=b"new2")
    assert_same_values(pair, "r", {"r/x2": b"new2", "r/x3": b"old3"})
    wait_saved(pair, x1=b"", x2=b"new2")
    kill_agent(pair)  # it loses the list of recently written topics
    start_agent(pair)
    write(pair, 1, x4=b"seen")
    assert_same_values(pair, "r", {"r/x2": b"new2", "r/x3": b"old3", "r/x4": b"seen"})
    pair.run(broker.kill())
    pair.run(broker.start())
    assert_same_values(pair, "r", {"r/x2": b"new2", "r/x3": b"old3", "r/x4": b"seen"})

    # The broker is down while values arrive at QoS 0, and the agent is killed before it returns.
    pair.run(broker.stop())
    write(pair, 0, x2=b"newest", x3=b"")
    wait_saved(pair, x2=b"newest", x3=b"")
    kill_agent(pair)
    pair.run(broker.start())
    outdated = {"r/x2": b"new2", "r/x3": b"old3", "r/x4": b"seen"}
    assert stored_before_repair(pair, len(outdated)) == outdated
    start_agent(pair)
    reader = pair.subscriber(ORIGIN, "r/#")  # the receiver reads the retained values of its broker
    assert_same_values(pair, "r", {"r/x2": b"newest", "r/x4": b"seen"})
    reader.unsubscribe("r/#")
    eventually(lambda: "r/#" not in interest(pair, ORIGIN), "interest withdrawn")
    assert_same_values(pair, "r", {"r/x2": b"newest", "r/x4": b"seen"})


def kill_agent(live: Live) -> None:
    agent = live.nodes[RECEIVER].agent
    assert agent is not None
    agent.kill()
    live.run(agent.wait())


def start_agent(live: Live) -> None:
    """Start the agent, and wait until it answers."""
    live.run(live.federation.start_agent(RECEIVER))

    def answers() -> bool:
        with suppress(OSError):
            return bool(live.nodes[RECEIVER].status())
        return False

    eventually(answers, "an answer of the agent")


def stored_before_repair(live: Live, count: int) -> dict[str, bytes]:
    """Read the retained values of the receiving broker while its agent is down."""
    reader = live.client_of(GuaranteedClient, RECEIVER).subscribe_qos2("r/#")
    reader.read_until(count)
    reader.close()
    return {each.topic: each.payload for each in reader.received if each.retain}


def interest(live: Live, number: int) -> list[str]:
    found = live.nodes[number].status()["interest"]
    assert isinstance(found, dict)
    return list(found["local"])
