"""Faults that are cancelled are healed, and problems they find are kept."""

import asyncio
import random
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from hansa.errors import PromiseBroken
from hansa.simulator.topologies import parse_topology
from hansa.testbed.chaos.actuators.agents import AgentActuator
from hansa.testbed.chaos.fault_effects import IN_FLIGHT_MAX, FaultEffects, LostState, StateLoss
from hansa.testbed.chaos.faults.links import clog_links, degrade_links
from hansa.testbed.chaos.faults.runner import run_fault, run_together
from hansa.testbed.chaos.federation import ChaosFederation, start_chaos_federation
from hansa.testbed.chaos.verdict import AllowedLoss, Interruption


def test_cancelled_fault_is_healed(mosquitto):
    """Each step is cancelled early and later."""

    async def run() -> tuple[int, list[str]]:
        chaos = await start_chaos_federation(parse_topology("line:2", 1))
        cancelled = 0
        try:
            for turns in (1, 4):
                for step in (chaos.brokers.restart(0), _kill_and_start(chaos)):
                    task = asyncio.ensure_future(step)
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    cancelled += task.cancelled()
                    await chaos.heal()
            await chaos.federation.wait_until_converged()
            return cancelled, chaos.agents.unexpected_exits()
        finally:
            await chaos.close()

    assert asyncio.run(run()) == (4, [])


async def _kill_and_start(chaos: ChaosFederation) -> None:
    await chaos.agents.kill(1)
    await chaos.agents.start(1)


def test_exception_of_a_fault_is_raised(mosquitto):
    async def fail(chaos: ChaosFederation, rng: random.Random) -> None:
        raise RuntimeError("not even that")

    async def run() -> None:
        chaos = await start_chaos_federation(parse_topology("line:1", 1))
        try:
            await run_fault(fail, chaos, random.Random(1), 60.0)
        finally:
            await chaos.close()

    with pytest.raises(RuntimeError, match="not even that"):
        asyncio.run(run())


def test_faults_and_problems_are_kept_for_the_outcome(mosquitto):
    """An unexpected exit is recorded although the agent is killed afterwards, and closing completes
    although it is cancelled."""

    async def abort(chaos: ChaosFederation, rng: random.Random) -> None:
        agent = chaos.federation.nodes[1].agent
        assert agent is not None
        agent.send_signal(signal.SIGABRT)
        await agent.wait()
        await _kill_and_start(chaos)
        raise PromiseBroken("a copy does not stop")

    async def run() -> ChaosFederation:
        chaos = await start_chaos_federation(parse_topology("line:2", 1))
        try:
            for fault in (clog_links, degrade_links, abort):
                await run_fault(fault, chaos, random.Random(1), 0.1 if fault != abort else 60.0)
            await chaos.agents.stop_gracefully(0)
            assert chaos.agents.unexpected_exits() == []
        finally:
            closing = asyncio.ensure_future(chaos.close())
            for _ in range(20):
                await asyncio.sleep(0)
                closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            assert closing.cancelled()
        return chaos

    chaos = asyncio.run(asyncio.wait_for(run(), 90))
    problems = [text.partition(":")[0] for text in chaos.fault_effects.problems]
    assert problems == ["agent 1 ended with -6", "a copy does not stop"]
    assert chaos.fault_effects.fault_counts == {"silence": 1, "degrade": 1, "crash": 1, "stop": 1}
    assert chaos.fault_effects.counts_by_fault == {"clog_links": 1, "degrade_links": 1, "abort": 1}
    nodes = chaos.federation.nodes
    processes = [each for node in nodes for each in (node.agent, node.broker.process)]
    assert [each.returncode is None for each in processes if each is not None] == [False] * 4
    assert not chaos.federation.directory.exists()


def test_failing_fault_cancels_the_others():
    ended = []

    async def go_on(chaos: ChaosFederation, rng: random.Random) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("in order")

    async def fail(chaos: ChaosFederation, rng: random.Random) -> None:
        raise PromiseBroken("an agent does not stop")

    nothing: Any = None
    with pytest.raises(PromiseBroken, match="does not stop"):
        asyncio.run(run_together(nothing, nothing, go_on, fail))
    assert ended == ["in order"]


def test_agent_killed_during_its_start_is_no_unexpected_exit():
    node = SimpleNamespace(agent=None, last_log_line=lambda: "")

    async def start_agent(place: int) -> None:
        node.agent = await asyncio.create_subprocess_exec("sleep", "0.2")
        await node.agent.wait()

    async def run() -> list[str]:
        federation: Any = SimpleNamespace(nodes=[node], start_agent=start_agent)
        agents = AgentActuator(federation, FaultEffects())
        await agents.kill(0)
        starting = asyncio.create_task(agents.start(0))
        while node.agent is None:
            await asyncio.sleep(0)
        await agents.kill(0)
        await starting
        return agents.unexpected_exits()

    assert asyncio.run(run()) == []


@pytest.mark.long
def test_restored_backup_begins_a_new_epoch(mosquitto):
    async def run() -> object:
        chaos = await start_chaos_federation(parse_topology("line:2", 1))
        try:
            await chaos.agents.back_up(1)
            await chaos.agents.restore_backup(1)
            counters = chaos.federation.nodes[1].status()["counters"]
            assert isinstance(counters, dict)
            return counters.get("epoch rollovers")
        finally:
            await chaos.close()

    assert asyncio.run(run()) == 1


def test_interruption_allows_duplicates_at_its_place():
    effects = FaultEffects()
    effects.record_interruption(3, 1.0)
    effects.begin_loss(4, LostState.AGENT_SESSION, 10.0)
    found = effects.fault_context({3: "pub3"}, {3: "sub3", 4: "sub4", 5: "sub5"})
    assert found.interruptions == {
        "pub3": (Interruption(1.0, 1, IN_FLIGHT_MAX),),
        "sub3": (Interruption(1.0, 1, IN_FLIGHT_MAX),),
        "sub4": (Interruption(10.0, 2, IN_FLIGHT_MAX),),
        "sub5": (),
    }


def test_state_loss_lasts_until_the_recovery():
    effects = FaultEffects()
    effects.begin_loss(4, LostState.BROKER_SESSIONS, 10.0)
    effects.begin_loss(4, LostState.AGENT_SESSION, 12.0)
    assert effects.closed_losses == []
    effects.end_loss(4, 20.0)
    assert effects.closed_losses == [StateLoss(LostState.BROKER_SESSIONS, 4, 10.0, 20.0)]
    assert effects.open_losses == {}


@pytest.mark.parametrize(
    ("lost_state", "publishing", "subscribing"),
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
def test_allowed_losses_depend_on_the_lost_state(lost_state, publishing, subscribing):
    effects = FaultEffects()
    effects.begin_loss(4, lost_state, 10.0)
    effects.end_loss(4, 20.0)
    found = effects.fault_context({4: "pub4", 5: "pub5"}, {4: "sub4", 5: "sub5"}).allowed_losses
    assert found.get("pub4") == publishing
    assert found.get("sub4") == subscribing
    assert "pub5" not in found
    assert "sub5" not in found
