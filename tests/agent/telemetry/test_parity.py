"""Real and simulated agents record the same rows for the same publications."""

from collections.abc import Iterable
from pathlib import Path

from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import Live, eventually

from hansa.agent.telemetry.settings import TELEMETRY_DIRECTORY
from hansa.simulator.actions import ClientPublish, ClientSubscribe, ScheduledAction
from hansa.simulator.options import DiskOptions, Phases, SimulationOptions
from hansa.simulator.run import simulate
from hansa.simulator.topologies import parse_topology
from hansa.telemetry import schema
from hansa.telemetry.reader import TelemetryRow, read_rows
from hansa.testbed.federation import LocalFederation

COUNT = 3
TOPICS = ("plant/zero", "plant/one", "plant/two")
"""One publication per QoS, from one end of a line of three to the other."""

TOLD = schema.Captured | schema.CopySent | schema.CopyReceived | schema.Delivered

Story = list[tuple[str, str, int, str, int | None, str]]
"""Node, record type, QoS, topic, hops and peer node; nodes by name."""


def story(recorded: Iterable[TelemetryRow]) -> Story:
    found = list(recorded)
    names: dict[int | None, str] = {
        row.node_id: row.record.node_name.removeprefix("n")
        for row in found
        if isinstance(row.record, schema.NodeStarted)
    }
    return sorted(
        (
            names[row.node_id],
            schema.KIND_NAMES[type(record)],
            record.qos,
            record.topic,
            getattr(record, "hops", None),
            names.get(getattr(record, "peer_id", None), ""),
        )
        for row in found
        if isinstance(record := row.record, TOLD)
    )


def simulated(path: Path) -> Story:
    steps = [ScheduledAction(1.0, ClientSubscribe(2, "plant/#"))]
    steps += [
        ScheduledAction(5.0, ClientPublish(0, topic, 64, COUNT, 0.1, qos))
        for qos, topic in enumerate(TOPICS)
    ]
    options = SimulationOptions(
        parse_topology("line:3", 1),
        seed=1,
        schedule=tuple(steps),
        phases=Phases(warm_up_s=10.0),
        disk=DiskOptions(),
    )
    simulate(options, telemetry=path)
    return story(read_rows(path))


def recorded_live(path: Path, expected: int) -> Story:
    settings = {"HANSA_TELEMETRY_SAMPLE": "all"}
    live = Live(LocalFederation(parse_topology("line:3", 1), settings, directory=path))

    def recorded() -> Story:
        logs = [node.directory / "agent" / TELEMETRY_DIRECTORY for node in live.nodes]
        return story(row for log in logs for row in read_rows(log))

    try:
        live.start()
        live.client_of(GuaranteedClient, 2).subscribe_qos2("plant/#")
        live.wait_installed(2, "plant/#")
        publisher = live.client_of(GuaranteedClient, 0)
        payloads = [b"x" * 64] * COUNT
        publisher.publish(TOPICS[0], *payloads)
        publisher.publish_guaranteed(1, TOPICS[1], *payloads)
        publisher.publish_guaranteed(2, TOPICS[2], *payloads)
        eventually(lambda: len(recorded()) >= expected, "all is recorded")
        return recorded()
    finally:
        live.close()


def test_live_and_simulated_records_are_equal(mosquitto, tmp_path):
    ours = simulated(tmp_path / "simulated")
    assert len(ours) == 6 * COUNT * len(TOPICS)  # captured; sent, received twice each; delivered
    assert recorded_live(tmp_path / "live", len(ours)) == ours
