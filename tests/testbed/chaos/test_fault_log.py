"""Faults that are made on purpose are told as a simulation tells them."""

import asyncio
from pathlib import Path

from hansa.simulator.topologies import parse_topology
from hansa.telemetry import schema
from hansa.telemetry.reader import read_rows
from hansa.testbed.chaos.fault_log import DIRECTORY_NAME, FaultLog
from hansa.testbed.chaos.testbench import start_chaos_federation
from hansa.testbed.link_conditions import Direction, LinkConditions


def told(path: Path) -> list[tuple[str, int | None, int | None]]:
    records = [row.record for row in read_rows(path / DIRECTORY_NAME)]
    return [
        (r.disturbance, r.target_id, r.peer_id)
        for r in records
        if isinstance(r, schema.FaultInjected)
    ]


def test_a_fault_names_what_was_done_and_to_whom(tmp_path):
    faults = FaultLog(tmp_path, [70, 71])
    faults.record("silence", 0, 1)
    faults.record("crash", 1)
    faults.close()
    assert told(tmp_path) == [("silence 0-1", 70, 71), ("crash 1", 71, None)]
    assert {row.node_id for row in read_rows(tmp_path / DIRECTORY_NAME)} == {schema.FAULT_INJECTOR}


def test_every_hand_that_breaks_something_is_told_beside_what_agents_tell(mosquitto, tmp_path):
    async def play() -> None:
        stage = await start_chaos_federation(parse_topology("line:2", 1), tmp_path / "kept")
        try:
            stage.links.cut(0, 1)
            stage.links.unblock(0, 1)
            stage.links.black_hole(0, 1, [Direction.OUT])
            stage.links.degrade(0, 1, LinkConditions(0.01, 0.01, 100_000.0))
            stage.links.heal()
            stage.links.reset(0, 1)
            stage.links.make_half_open(0, 1)
            await stage.agents.suspend(0)
            await stage.agents.resume(0)
            await stage.brokers.restart(0)
            await stage.agents.kill(1)
            await stage.agents.start(1)
            await stage.federation.wait_until_converged()
        finally:
            await stage.close()

    asyncio.run(play())
    agents = tmp_path / "kept"
    nodes = [
        next(iter(read_rows(agents / place / "agent" / "telemetry"))).node_id for place in "01"
    ]
    assert told(agents) == [
        ("silence 0-1", *nodes),
        ("mend 0-1", *nodes),
        ("black-hole 0-1", *nodes),
        ("worsen 0-1", *nodes),
        ("mend 0-1", *nodes),
        ("restore 0-1", *nodes),
        ("reset 0-1", *nodes),
        ("half-open 0-1", *nodes),
        ("freeze 0", nodes[0], None),
        ("thaw 0", nodes[0], None),
        ("restart-broker 0", nodes[0], None),
        ("crash 1", nodes[1], None),
        ("restart 1", nodes[1], None),
    ]
