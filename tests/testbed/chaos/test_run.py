"""A play that proves nothing says so. No broker and no agent is needed to see that."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from hansa.agent.broker.connection import BrokerAddress
from hansa.testbed.chaos import run
from hansa.testbed.chaos.clients import HistoryPublisher
from hansa.testbed.chaos.history import HistoryEvent, HistoryOperation, PublisherStream
from hansa.testbed.chaos.outstanding import OutstandingDeliveries
from hansa.testbed.chaos.run import ChaosRun
from hansa.testbed.chaos.scenarios import SCENARIOS
from hansa.testbed.chaos.testbench import TOPICS, ChaosFederation
from hansa.testbed.mosquitto import free_port


class Alone(HistoryPublisher):
    """Publishes without a broker, or fails at it."""

    def __init__(self, name: str, failure: Exception | None = None) -> None:
        super().__init__(
            BrokerAddress("127.0.0.1", free_port()), name, TOPICS, 100.0, lambda _: None
        )
        self._failure = failure

    async def _publish_all(self) -> None:
        if self._failure:
            raise self._failure
        await asyncio.Event().wait()


def empty_stage(*publishers: HistoryPublisher) -> ChaosFederation:
    federation: Any = SimpleNamespace(nodes=[])
    stage = ChaosFederation(federation)
    stage.publishers = dict(enumerate(publishers))
    return stage


async def perform(stage: ChaosFederation) -> float | None:
    plan = ChaosRun(SCENARIOS["calm"], seconds=0.01)
    return await run.run_phases(plan, stage, random.Random(1), lambda _: None)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(run, "STEADY_S", 0.01)
    monkeypatch.setattr(run, "POLL_S", 0.01)
    monkeypatch.setattr(run, "LISTEN_S", 0.3)


def test_a_publisher_that_stopped_by_itself_is_a_problem():
    stage = empty_stage(Alone("pub0", ValueError("no more")))
    asyncio.run(perform(stage))
    assert "a publisher stopped: ValueError('no more')" in stage.fault_effects.problems


def test_a_publisher_that_publishes_hardly_anything_is_a_problem():
    stage = empty_stage(Alone("pub0"))
    asyncio.run(perform(stage))
    problems = [text.partition(" of ")[0] for text in stage.fault_effects.problems]
    assert problems == ["pub0 published 0"]


def test_who_has_everything_is_listened_to_for_longer():
    """Nothing is missing from the start; a copy comes when that has long been clear."""
    stage = empty_stage()
    copy = HistoryEvent(0.0, HistoryOperation.DELIVER, PublisherStream("pub0", "a", 2), 0, "sub", 2)
    stage.outstanding = OutstandingDeliveries({"sub": ["a"]})

    async def play() -> tuple[float, float | None]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        loop.call_later(0.2, stage.outstanding.add_event, copy)
        drained_s = await perform(stage)
        return loop.time() - began, drained_s

    took_s, drained_s = asyncio.run(play())
    assert stage.outstanding.history == [copy]
    assert drained_s is not None
    assert took_s >= drained_s + run.LISTEN_S
