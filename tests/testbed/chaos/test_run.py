"""A run with too little traffic is a problem; without brokers and agents."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from hansa.agent.broker.connection import BrokerAddress
from hansa.testbed.chaos import run
from hansa.testbed.chaos.clients import HistoryPublisher
from hansa.testbed.chaos.federation import TOPICS, ChaosFederation
from hansa.testbed.chaos.history import (
    HistoryEvent,
    HistoryOperation,
    OutstandingDeliveries,
    PublisherStream,
)
from hansa.testbed.chaos.run import ChaosRun
from hansa.testbed.chaos.scenarios import SCENARIOS
from hansa.testbed.mosquitto import free_port


class OfflinePublisher(HistoryPublisher):
    """Publishes nothing, or fails."""

    def __init__(self, name: str, failure: Exception | None = None) -> None:
        super().__init__(
            BrokerAddress("127.0.0.1", free_port()), name, TOPICS, 100.0, lambda _: None
        )
        self._failure = failure

    async def _publish_all(self) -> None:
        if self._failure:
            raise self._failure
        await asyncio.Event().wait()


def empty_federation(*publishers: HistoryPublisher) -> ChaosFederation:
    federation: Any = SimpleNamespace(nodes=[])
    chaos = ChaosFederation(federation)
    chaos.publishers = dict(enumerate(publishers))
    return chaos


async def run_briefly(chaos: ChaosFederation) -> float | None:
    plan = ChaosRun(SCENARIOS["calm"], seconds=0.01)
    return await run.run_phases(plan, chaos, random.Random(1), lambda _: None)


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
    monkeypatch.setattr(run, "STEADY_S", 0.01)
    monkeypatch.setattr(run, "POLL_S", 0.01)
    monkeypatch.setattr(run, "LISTEN_S", 0.3)


def test_publisher_that_failed_is_a_problem():
    chaos = empty_federation(OfflinePublisher("pub0", ValueError("no more")))
    asyncio.run(run_briefly(chaos))
    assert "a publisher stopped: ValueError('no more')" in chaos.fault_effects.problems


def test_publisher_far_below_its_rate_is_a_problem():
    chaos = empty_federation(OfflinePublisher("pub0"))
    asyncio.run(run_briefly(chaos))
    problems = [text.partition(" of ")[0] for text in chaos.fault_effects.problems]
    assert problems == ["pub0 published 0"]


def test_run_waits_for_duplicates_after_everything_arrived():
    chaos = empty_federation()
    copy = HistoryEvent(0.0, HistoryOperation.DELIVER, PublisherStream("pub0", "a", 2), 0, "sub", 2)
    chaos.outstanding = OutstandingDeliveries({"sub": ["a"]})

    async def timed_run() -> tuple[float, float | None]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        loop.call_later(0.2, chaos.outstanding.add_event, copy)
        drained_s = await run_briefly(chaos)
        return loop.time() - began, drained_s

    took_s, drained_s = asyncio.run(timed_run())
    assert chaos.outstanding.history == [copy]
    assert drained_s is not None
    assert took_s >= drained_s + run.LISTEN_S
