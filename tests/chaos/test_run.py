"""A play that proves nothing says so. No broker and no agent is needed to see that."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from hansa.agent.brokers.connection import BrokerAddress
from hansa.chaos import run
from hansa.chaos.clients import Publisher
from hansa.chaos.run import Play
from hansa.chaos.scenarios import SCENARIOS
from hansa.chaos.stage import TOPICS, Stage
from hansa.local.mosquitto import free_port


class Alone(Publisher):
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


async def performed(*publishers: Publisher) -> Stage:
    federation: Any = SimpleNamespace(nodes=[])
    stage = Stage(federation)
    stage.publishers = dict(enumerate(publishers))
    plan = Play(SCENARIOS["calm"], seconds=0.01)
    await run.perform(plan, stage, random.Random(1), lambda _: None)
    return stage


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(run, "BEFORE_S", 0.01)
    monkeypatch.setattr(run, "POLL_S", 0.01)


def test_a_publisher_that_stopped_by_itself_is_a_problem():
    stage = asyncio.run(performed(Alone("pub0", ValueError("no more"))))
    assert "a publisher stopped: ValueError('no more')" in stage.harm.problems


def test_a_publisher_that_publishes_hardly_anything_is_a_problem():
    problems = asyncio.run(performed(Alone("pub0"))).harm.problems
    assert [text.partition(" of ")[0] for text in problems] == ["pub0 published 0"]
