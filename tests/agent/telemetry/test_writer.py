"""Telemetry of real agents agrees with what clients received."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import Live, eventually

from hansa.agent.telemetry.settings import TELEMETRY_DIRECTORY
from hansa.simulator.topologies import parse_topology
from hansa.telemetry import schema
from hansa.telemetry.reader import TelemetryRow, read_rows
from hansa.testbed.federation import LocalFederation


@pytest.fixture
def recorded(mosquitto: str, tmp_path: Path) -> Iterator[Live]:
    settings = {"HANSA_TELEMETRY_SAMPLE": "all"}
    with Live(
        LocalFederation(parse_topology("ring:3", 1), settings, directory=tmp_path / "kept")
    ) as live:
        yield live


def log_of(live: Live, number: int) -> Path:
    return live.nodes[number].directory / "agent" / TELEMETRY_DIRECTORY


def read(live: Live, number: int) -> list[TelemetryRow]:
    return list(read_rows(log_of(live, number)))


def of(kind: type, recorded: list[TelemetryRow]) -> list[Any]:
    return [row.record for row in recorded if isinstance(row.record, kind)]


def test_records_agree_with_received_publications(recorded, tmp_path):
    sub = recorded.client_of(GuaranteedClient, 2).subscribe_qos2("plant/#")
    recorded.wait_installed(2, "plant/#")
    pub = recorded.client_of(GuaranteedClient, 0)
    pub.publish("plant/zero", *(b"0-%d" % each for each in range(50)))
    pub.publish_guaranteed(1, "plant/one", *(b"1-%d" % each for each in range(20)))
    pub.publish_guaranteed(2, "plant/two", *(b"2-%d" % each for each in range(10)))
    seen = Counter(each[:2] for each in sub.read_until(80))
    assert seen == {b"0-": 50, b"1-": 20, b"2-": 10}

    def by_qos(kind: type, number: int) -> dict[int, int]:
        names = {
            (r.origin_id, r.epoch, r.sequence, r.qos) for r in of(kind, read(recorded, number))
        }
        return Counter(qos for *_, qos in names)

    expected = {0: 50, 1: 20, 2: 10}
    eventually(lambda: by_qos(schema.Delivered, 2) == expected, "all deliveries recorded")
    eventually(lambda: by_qos(schema.Captured, 0) == expected, "all captures recorded")
    origin, receiver = read(recorded, 0), read(recorded, 2)
    delays = {
        (d.origin_id, d.epoch, d.sequence, d.qos): d.time_ns for d in of(schema.Delivered, receiver)
    }
    for captured in of(schema.Captured, origin):
        key = (captured.origin_id, captured.epoch, captured.sequence, captured.qos)
        assert delays[key] > captured.time_ns
    assert {record.group for record in of(schema.InterestAdded, receiver)} == {"plant/#"}
    assert "plant/#" in [r.group for r in of(schema.SubscribedAtBroker, origin)]

    def has_all_links() -> bool:
        """Interest may be installed over one link while the other one is not up yet."""
        ids = {row.node_id for number in range(3) for row in read(recorded, number)}
        peers = {r.peer_id for r in of(schema.LinkUp, read(recorded, 0))}
        return len(ids) == 3 and peers == ids - {origin[0].node_id}

    eventually(has_all_links, "all nodes and links recorded")
    assert [r.node_name for r in of(schema.NodeStarted, receiver)] == ["2"]


def test_killed_agent_continues_its_log_and_a_stopped_one_records_its_end(recorded):
    eventually(lambda: of(schema.RoundTrip, read(recorded, 1)), "heartbeats recorded")
    first = read(recorded, 1)
    agent = recorded.nodes[1].agent
    assert agent is not None
    agent.send_signal(signal.SIGKILL)
    recorded.run(agent.wait())
    recorded.run(recorded.federation.start_agent(1))
    eventually(
        lambda: len({row.incarnation for row in read(recorded, 1)}) == 2,
        "a second incarnation is recorded",
    )
    assert read(recorded, 1)[: len(first)] == first
    assert of(schema.NodeStopped, read(recorded, 1)) == []
    agent = recorded.nodes[1].agent
    assert agent is not None
    agent.terminate()
    recorded.run(agent.wait())  # the federation would wait only some seconds
    assert len(of(schema.NodeStopped, read(recorded, 1))) == 1
    sequences: dict[int, list[int]] = {}
    for row in read(recorded, 1):
        sequences.setdefault(row.incarnation, []).append(row.record_sequence)
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in sequences.values())
    counters = {record.counter_name for record in of(schema.Counter, read(recorded, 1))}
    assert "telemetry dropped" not in counters


def test_damaged_log_is_moved_and_agent_runs(scene, tmp_path):
    broker = scene.broker()
    state = tmp_path / "state"
    log = state / TELEMETRY_DIRECTORY
    settings = {"broker_port": broker.port, "state": state, "telemetry_sample": "none"}
    agent = scene.agent(**settings)
    # A damaged record counts as torn unless another one follows.
    eventually(lambda: log.exists() and len(list(read_rows(log))) > 2, "something recorded")
    agent.process.kill()
    agent.wait()
    (segment,) = log.glob("*.log")
    data = bytearray(segment.read_bytes())
    data[60] ^= 0xFF
    segment.write_bytes(data)
    again = scene.agent(**settings)
    again.says("alarm telemetry damaged")
    again.says("agent up")
    eventually(lambda: of(schema.AlarmRaised, list(read_rows(log))), "the alarm in the new log")
    (raised,) = of(schema.AlarmRaised, list(read_rows(log)))
    assert raised.alarm == "telemetry damaged"
    assert "it is set aside as telemetry-damaged-" in raised.reason
    assert [path.name for path in state.glob("telemetry-damaged-*")]


def test_agent_runs_without_telemetry_if_directory_is_not_writable(scene, tmp_path):
    (tmp_path / "file").touch()
    broker = scene.broker()
    agent = scene.agent(
        broker_port=broker.port, telemetry_sample="all", telemetry_directory=tmp_path / "file"
    )
    agent.says("alarm telemetry not written: cannot write the journal")
    eventually(lambda: agent.page("/readyz")[0] == 200, "ready")
