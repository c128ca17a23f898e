"""Faults that are made on purpose are told as a simulation tells them."""

import asyncio
from pathlib import Path

from hansa.simulator.topologies import parse
from hansa.telemetry import schema
from hansa.telemetry.reader import rows
from hansa.testbed.chaos.fault_log import FOLDER, Faults
from hansa.testbed.chaos.testbench import set_up
from hansa.testbed.link_conditions import Direction, Line


def told(path: Path) -> list[tuple[str, int | None, int | None]]:
    records = [row.record for row in rows(path / FOLDER)]
    return [(r.what, r.target, r.peer) for r in records if isinstance(r, schema.Fault)]


def test_a_fault_names_what_was_done_and_to_whom(tmp_path):
    faults = Faults(tmp_path, [70, 71])
    faults.note("silence", 0, 1)
    faults.note("crash", 1)
    faults.close()
    assert told(tmp_path) == [("silence 0-1", 70, 71), ("crash 1", 71, None)]
    assert {row.node for row in rows(tmp_path / FOLDER)} == {schema.OBSERVER}


def test_every_hand_that_breaks_something_is_told_beside_what_agents_tell(mosquitto, tmp_path):
    async def play() -> None:
        stage = await set_up(parse("line:2", 1), tmp_path / "kept")
        try:
            stage.links.cut(0, 1)
            stage.links.mend(0, 1)
            stage.links.swallow(0, 1, [Direction.OUT])
            stage.links.worsen(0, 1, Line(0.01, 0.01, 100_000.0))
            stage.links.heal()
            stage.links.reset(0, 1)
            stage.links.strand(0, 1)
            await stage.agents.hang(0)
            await stage.agents.wake(0)
            await stage.brokers.restart(0)
            await stage.agents.kill(1)
            await stage.agents.start(1)
            await stage.federation.wait_until_converged()
        finally:
            await stage.close()

    asyncio.run(play())
    agents = tmp_path / "kept"
    nodes = [next(iter(rows(agents / place / "agent" / "telemetry"))).node for place in "01"]
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
