"""The log of injected faults."""

import asyncio
from pathlib import Path

from hansa.simulator.topologies import parse_topology
from hansa.telemetry import schema
from hansa.telemetry.reader import read_rows
from hansa.testbed.chaos.fault_effects import DIRECTORY_NAME, FaultLog
from hansa.testbed.chaos.federation import start_chaos_federation
from hansa.testbed.link_conditions import Direction, LinkConditions


def logged(path: Path) -> list[tuple[str, int | None, int | None]]:
    records = [row.record for row in read_rows(path / DIRECTORY_NAME)]
    return [
        (r.disturbance, r.target_id, r.peer_id)
        for r in records
        if isinstance(r, schema.FaultInjected)
    ]


def test_fault_is_logged_with_its_nodes(tmp_path):
    faults = FaultLog(tmp_path, [70, 71])
    faults.record("silence", 0, 1)
    faults.record("crash", 1)
    faults.close()
    assert logged(tmp_path) == [("silence 0-1", 70, 71), ("crash 1", 71, None)]
    assert {row.node_id for row in read_rows(tmp_path / DIRECTORY_NAME)} == {schema.FAULT_INJECTOR}


def test_actuators_log_every_fault_and_repair(mosquitto, tmp_path):
    async def run() -> None:
        chaos = await start_chaos_federation(parse_topology("line:2", 1), tmp_path / "kept")
        try:
            chaos.links.cut(0, 1)
            chaos.links.unblock(0, 1)
            chaos.links.black_hole(0, 1, [Direction.OUT])
            chaos.links.degrade(0, 1, LinkConditions(0.01, 0.01, 100_000.0))
            chaos.links.heal()
            chaos.links.reset(0, 1)
            chaos.links.make_half_open(0, 1)
            await chaos.agents.suspend(0)
            await chaos.agents.resume(0)
            await chaos.brokers.restart(0)
            await chaos.agents.kill(1)
            await chaos.agents.start(1)
            await chaos.federation.wait_until_converged()
        finally:
            await chaos.close()

    asyncio.run(run())
    agents = tmp_path / "kept"
    nodes = [
        next(iter(read_rows(agents / place / "agent" / "telemetry"))).node_id for place in "01"
    ]
    assert logged(agents) == [
        ("silence 0-1", *nodes),
        ("restore 0-1", *nodes),
        ("black-hole 0-1", *nodes),
        ("degrade 0-1", *nodes),
        ("restore 0-1", *nodes),
        ("restore-conditions 0-1", *nodes),
        ("reset 0-1", *nodes),
        ("half-open 0-1", *nodes),
        ("suspend 0", nodes[0], None),
        ("resume 0", nodes[0], None),
        ("restart-broker 0", nodes[0], None),
        ("crash 1", nodes[1], None),
        ("restart 1", nodes[1], None),
    ]
