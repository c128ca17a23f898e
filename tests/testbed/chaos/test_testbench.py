"""Whatever a hand was about to do when it was stopped: all is mended, and faults are not hidden."""

import asyncio
import random
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from hansa.errors import PromiseBroken
from hansa.simulator.topologies import parse_topology
from hansa.testbed.chaos.agent_faults import run_fault, run_together
from hansa.testbed.chaos.agents import AgentFaults
from hansa.testbed.chaos.fault_effects import IN_FLIGHT_MAX, FaultEffects, LostState, StateLoss
from hansa.testbed.chaos.link_faults import clog_links, degrade_links
from hansa.testbed.chaos.testbench import ChaosFederation, start_chaos_federation
from hansa.testbed.chaos.verdict import AllowedLoss, Interruption


def test_what_is_stopped_in_the_middle_is_mended(mosquitto):
    """Each step is cancelled early and later."""

    async def play() -> tuple[int, list[str]]:
        stage = await start_chaos_federation(parse_topology("line:2", 1))
        cancelled = 0
        try:
            for turns in (1, 4):
                for step in (stage.brokers.restart(0), _kill_and_start(stage)):
                    task = asyncio.ensure_future(step)
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    cancelled += task.cancelled()
                    await stage.heal()
            await stage.federation.wait_until_converged()
            return cancelled, stage.agents.unexpected_exits()
        finally:
            await stage.close()

    assert asyncio.run(play()) == (4, [])


async def _kill_and_start(stage: ChaosFederation) -> None:
    await stage.agents.kill(1)
    await stage.agents.start(1)


def test_a_trouble_that_fails_is_not_hidden_by_the_next(mosquitto):
    async def fail(stage: ChaosFederation, chance: random.Random) -> None:
        raise RuntimeError("not even that")

    async def play() -> None:
        stage = await start_chaos_federation(parse_topology("line:1", 1))
        try:
            await run_fault(fail, stage, random.Random(1), 60.0)
        finally:
            await stage.close()

    with pytest.raises(RuntimeError, match="not even that"):
        asyncio.run(play())


def test_what_a_trouble_does_and_finds_is_kept_for_the_end(mosquitto):
    """One link is enough to harm, an agent that ended by itself is told though it is killed then,
    and nothing stays though somebody gets impatient."""

    async def abort(stage: ChaosFederation, chance: random.Random) -> None:
        agent = stage.federation.nodes[1].agent
        assert agent is not None
        agent.send_signal(signal.SIGABRT)
        await agent.wait()
        await _kill_and_start(stage)
        raise PromiseBroken("a copy does not stop")

    async def play() -> ChaosFederation:
        stage = await start_chaos_federation(parse_topology("line:2", 1))
        try:
            for trouble in (clog_links, degrade_links, abort):
                await run_fault(trouble, stage, random.Random(1), 0.1 if trouble != abort else 60.0)
            await stage.agents.stop_gracefully(0)
            assert stage.agents.unexpected_exits() == []
        finally:
            closing = asyncio.ensure_future(stage.close())
            for _ in range(20):
                await asyncio.sleep(0)
                closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            assert closing.cancelled()
        return stage

    stage = asyncio.run(asyncio.wait_for(play(), 90))
    problems = [text.partition(":")[0] for text in stage.fault_effects.problems]
    assert problems == ["agent 1 ended with -6", "a copy does not stop"]
    assert stage.fault_effects.fault_counts == {"silence": 1, "worsen": 1, "crash": 1, "leave": 1}
    assert stage.fault_effects.counts_by_fault == {"clog_links": 1, "degrade_links": 1, "abort": 1}
    nodes = stage.federation.nodes
    processes = [each for node in nodes for each in (node.agent, node.broker.process)]
    assert [each.returncode is None for each in processes if each is not None] == [False] * 4
    assert not stage.federation.directory.exists()


def test_of_troubles_at_once_one_that_fails_ends_the_others_in_order():
    ended = []

    async def go_on(stage: ChaosFederation, chance: random.Random) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("in order")

    async def fail(stage: ChaosFederation, chance: random.Random) -> None:
        raise PromiseBroken("an agent does not leave")

    nothing: Any = None
    with pytest.raises(PromiseBroken, match="does not leave"):
        asyncio.run(run_together(nothing, nothing, go_on, fail))
    assert ended == ["in order"]


def test_an_agent_that_is_killed_while_another_starts_it_did_not_end_by_itself():
    node = SimpleNamespace(agent=None, last_log_line=lambda: "")

    async def start_agent(place: int) -> None:
        node.agent = await asyncio.create_subprocess_exec("sleep", "60")
        await asyncio.sleep(0.1)

    async def play() -> list[str]:
        federation: Any = SimpleNamespace(nodes=[node], start_agent=start_agent)
        agents = AgentFaults(federation, FaultEffects())
        await agents.kill(0)
        starting = asyncio.create_task(agents.start(0))
        while node.agent is None:
            await asyncio.sleep(0)
        await agents.kill(0)
        await starting
        return agents.unexpected_exits()

    assert asyncio.run(play()) == []


@pytest.mark.long
def test_an_old_copy_is_put_back_when_it_has_begun_a_new_epoch(mosquitto):
    async def play() -> object:
        stage = await start_chaos_federation(parse_topology("line:2", 1))
        try:
            await stage.agents.back_up(1)
            await stage.agents.restore_backup(1)
            counters = stage.federation.nodes[1].status()["counters"]
            assert isinstance(counters, dict)
            return counters.get("epoch rollovers")
        finally:
            await stage.close()

    assert asyncio.run(play()) == 1


def test_each_interruption_may_cost_the_window_where_it_was():
    harm = FaultEffects()
    harm.record_interruption(3, 1.0)
    harm.begin_loss(4, LostState.AGENT_SESSION, 10.0)
    found = harm.fault_context({3: "pub3"}, {3: "sub3", 4: "sub4", 5: "sub5"})
    assert found.interruptions == {
        "pub3": (Interruption(1.0, 1, IN_FLIGHT_MAX),),
        "sub3": (Interruption(1.0, 1, IN_FLIGHT_MAX),),
        "sub4": (Interruption(10.0, 2, IN_FLIGHT_MAX),),
        "sub5": (),
    }


def test_memory_that_is_lost_is_lost_until_all_is_back():
    harm = FaultEffects()
    harm.begin_loss(4, LostState.BROKER_SESSIONS, 10.0)
    harm.begin_loss(4, LostState.AGENT_SESSION, 12.0)
    assert harm.closed_losses == []
    harm.end_loss(4, 20.0)
    assert harm.closed_losses == [StateLoss(LostState.BROKER_SESSIONS, 4, 10.0, 20.0)]
    assert harm.open_losses == {}


@pytest.mark.parametrize(
    ("memory", "publishing", "subscribing"),
    [
        (LostState.AGENT_SESSION, (AllowedLoss(10.0, 20.0, ("sub5",)),), None),
        (
            LostState.BROKER_SESSIONS,
            (AllowedLoss(10.0, 20.0, ("sub5",)),),
            (AllowedLoss(10.0, 20.0),),
        ),
        (LostState.STATE_DIRECTORY, (AllowedLoss(10.0, 20.0),), (AllowedLoss(10.0, 20.0),)),
    ],
)
def test_what_may_be_lost_depends_on_whose_memory_it_was(memory, publishing, subscribing):
    harm = FaultEffects()
    harm.begin_loss(4, memory, 10.0)
    harm.end_loss(4, 20.0)
    found = harm.fault_context({4: "pub4", 5: "pub5"}, {4: "sub4", 5: "sub5"}).allowed_losses
    assert found.get("pub4") == publishing
    assert found.get("sub4") == subscribing
    assert "pub5" not in found
    assert "sub5" not in found
