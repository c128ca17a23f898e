"""Telemetry of a simulation: it matches the counters, and equal runs write equal bytes."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hansa.errors import UsageError
from hansa.simulator.actions import (
    ClientPublish,
    ClientSubscribe,
    CrashAgent,
    CutLink,
    RestartAgent,
    ScheduledAction,
)
from hansa.simulator.analysis.telemetry import result_counters
from hansa.simulator.options import Phases, SimulationOptions
from hansa.simulator.result import SimulationResult
from hansa.simulator.run import Simulation, simulate
from hansa.simulator.scenarios.sampling import random_options
from hansa.simulator.topologies import parse_topology
from hansa.telemetry import schema
from hansa.telemetry.reader import TelemetryRow, read_rows

SCRIPT = (
    ScheduledAction(1.0, ClientSubscribe(2, "plant/#")),
    ScheduledAction(3.0, ClientPublish(0, "plant/temp", payload_bytes=64, count=2, interval_s=1.0)),
    ScheduledAction(5.0, CutLink(0, 1)),
    ScheduledAction(6.0, CrashAgent(1)),
    ScheduledAction(8.0, RestartAgent(1)),
)


def small() -> SimulationOptions:
    return SimulationOptions(
        parse_topology("ring:3", 1), seed=1, schedule=SCRIPT, phases=Phases(warm_up_s=12.0)
    )


def play(path: Path, options: SimulationOptions) -> tuple[SimulationResult, list[TelemetryRow]]:
    result = simulate(options, telemetry=path)
    return result, list(read_rows(path))


def of(kind: type, rows: list[TelemetryRow]) -> list[Any]:
    return [row for row in rows if isinstance(row.record, kind)]


def test_telemetry_is_deterministic_and_does_not_change_the_run(tmp_path):
    first, _ = play(tmp_path / "a", small())
    second, _ = play(tmp_path / "b", small())
    assert first == second == simulate(small())
    (one,), (other,) = ((tmp_path / name).glob("*.log") for name in "ab")
    assert one.read_bytes() == other.read_bytes()


def test_records_of_one_publication(tmp_path):
    _, rows = play(tmp_path, small())
    walk = [
        (row.node_id, schema.KIND_NAMES[type(row.record)], getattr(row.record, "hops", None))
        for row in rows
        if getattr(row.record, "sequence", None) == 1
        and isinstance(row.record, schema.SAMPLED_KINDS)
        and row.record.time_ns < 4_000_000_000
    ]
    assert sorted(walk) == [
        (0, "captured", None),
        (0, "copy_sent", 1),
        (2, "copy_received", 1),
        (2, "delivered", 1),
    ]
    (captured, *_) = of(schema.Captured, rows)
    assert captured.record == schema.Captured(
        captured.record.time_ns, 0, captured.incarnation, 1, 0, "plant/temp", 64
    )


def test_keys_are_unique_and_sequences_gapless(tmp_path):
    _, rows = play(tmp_path, small())
    sequences: dict[tuple[int, int], list[int]] = {}
    for row in rows:
        sequences.setdefault((row.node_id, row.incarnation), []).append(row.record_sequence)
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in sequences.values())
    assert [key[0] for key in sorted(sequences)] == [0, 1, 1, 2, schema.FAULT_INJECTOR]


def test_faults_and_recovery_times_are_recorded(tmp_path):
    result, rows = play(tmp_path, small())
    faults = [row.record for row in of(schema.FaultInjected, rows)]
    assert faults == [
        schema.FaultInjected(0, "start"),
        schema.FaultInjected(5_000_000_000, "cut 0-1", 0, 1),
        schema.FaultInjected(6_000_000_000, "crash 1", 1),
        schema.FaultInjected(8_000_000_000, "restart 1", 1),
    ]
    healed = {row.record.disturbance: row.record.seconds for row in of(schema.Converged, rows)}
    assert healed == {record.after: record.converged_s for record in result.converged_s}


def test_first_record_describes_the_run(tmp_path):
    _, rows = play(tmp_path, small())
    assert rows[0].record == schema.SimulationStarted(0, 1, "ring:3", "mesh")


def test_links_and_round_trips_are_recorded(tmp_path):
    _, rows = play(tmp_path, small())
    ups = {(row.node_id, row.record.peer_id) for row in of(schema.LinkUp, rows)}
    assert ups >= {(0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0)}
    assert of(schema.LinkDown, rows)
    trips = {row.record.rtt_ms for row in of(schema.RoundTrip, rows)}
    assert trips and all(rtt == pytest.approx(2.0, abs=0.01) for rtt in trips)


def account(rows: list[TelemetryRow]) -> dict[str, float]:
    """Add up the records, by the names of the simulator's counters."""
    found: Counter[str] = Counter()
    for row in rows:
        match row.record:
            case schema.CopySent() as sent:
                found["data_frames"] += 1
                found["data_bytes"] += sent.frame_bytes
            case schema.ControlFrameSent() as control:
                found[f"control_frames {control.frame}"] += 1
                found[f"control_bytes {control.frame}"] += control.frame_bytes
            case schema.Duplicate():
                found["duplicates_dropped"] += 1
    return {name: float(value) for name, value in sorted(found.items())}


SEEDS = [(0, 1, 2), pytest.param(range(3, 30), marks=pytest.mark.long)]


@pytest.mark.parametrize("seeds", SEEDS)
def test_records_match_the_counters_of_the_simulator(tmp_path, seeds):
    for seed in seeds:
        options = replace(random_options(seed), check_invariants=False)
        simulation = Simulation(options, telemetry=tmp_path / str(seed))
        counted = result_counters(simulation.run())
        rows = list(read_rows(tmp_path / str(seed)))
        ours = account(rows)
        kinds = ("data_", "control_", "duplicates_dropped")
        theirs = {name: n for name, n in counted.items() if n and name.startswith(kinds)}
        assert ours == theirs, seed
        assert {
            row.record.counter_name: row.record.value for row in of(schema.Counter, rows)
        } == counted
        ledger = simulation.world.ledger
        arrivals = sum(len(entry.delivered_at) for entry in ledger.entries) + ledger.duplicate_count
        assert len(of(schema.Delivered, rows)) == arrivals


def test_non_empty_directory_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not empty; telemetry of a run needs its own"):
        simulate(small(), telemetry=tmp_path)
