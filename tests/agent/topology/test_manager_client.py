"""An agent's client and a real manager."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from tests.agent.waiting import until
from tests.manager.serving import Served

from hansa.agent.topology.http import ManagerUnavailable
from hansa.agent.topology.manager_client import (
    ManagerAddress,
    ManagerCallbacks,
    ManagerClient,
    TopologyAssignment,
    parse_answer,
)

INTERVAL_S = 0.5
"""Seconds between reports; a node that misses two is suspected, also on a busy machine."""


class Agent:
    """An agent that joins."""

    def __init__(
        self,
        url: str,
        number: int = 1,
        *,
        token: str = "",
        secret: str = "",
        follows_events: bool = True,
    ) -> None:
        self.node = f"{number:016x}"
        self.link = f"127.0.0.1:{10500 + number}"
        self.assignments: list[TopologyAssignment] = []
        self.reports = 0
        voice = ManagerCallbacks(
            self.introduce, self.report, self.assignments.append, follows_events
        )
        self.client = ManagerClient(ManagerAddress(url, token, secret), voice)

    def introduce(self) -> dict[str, Any]:
        return {"link": self.link, "node": self.node}

    async def report(self) -> dict[str, Any]:
        self.reports += 1
        return {"reachable_nodes": [self.node]}


@pytest.fixture
def served(tmp_path):
    environment = {"HANSA_MANAGER_HEALTH_INTERVAL": str(INTERVAL_S)}
    running = Served(f"sqlite:///{tmp_path / 'm.db'}", environment)
    yield running
    running.stop()


async def end(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def test_client_joins_reports_and_receives_its_events_at_once(served):
    async def scene() -> None:
        first, second = Agent(served.url, 1), Agent(served.url, 2)
        tasks = [asyncio.create_task(first.client.run())]
        await until(lambda: first.reports >= 2)
        assert first.client.is_in_contact
        assert not first.client.problem
        assert first.assignments[-1].neighbors == ()
        tasks.append(asyncio.create_task(second.client.run()))
        await until(lambda: second.assignments and len(first.assignments[-1].neighbors) == 1)
        assert [(n.node, n.link, n.dial) for n in second.assignments[-1].neighbors] == [
            (first.node, first.link, True)
        ]
        await end(tasks[1])
        served.ask("POST", f"/api/v1/nodes/{second.assignments[-1].id}/leave")
        await until(lambda: len(first.assignments[-1].neighbors) == 0)
        await end(tasks[0])

    asyncio.run(scene())


def test_client_joins_again_if_manager_lost_its_state(served):
    async def scene() -> None:
        agent = Agent(served.url)
        task = asyncio.create_task(agent.client.run())
        await until(lambda: agent.reports >= 1)
        served.ask("POST", f"/api/v1/nodes/{agent.assignments[-1].id}/leave")
        await until(lambda: served.ask("GET", "/api/v1/nodes")[1][0]["state"] == "up")
        await end(task)

    asyncio.run(scene())


def test_unreachable_manager_is_retried(tmp_path, served):
    async def scene() -> None:
        agent = Agent("http://127.0.0.1:1")
        task = asyncio.create_task(agent.client.run())
        await until(lambda: "not asked" not in agent.client.problem)
        assert not agent.client.is_in_contact
        await end(task)
        with pytest.raises(ManagerUnavailable):
            await agent.client.fetch_settings()
        shared = await Agent(served.url).client.fetch_settings()
        assert (shared.redundancy, shared.health_interval) == (2, INTERVAL_S)

    asyncio.run(scene())


def test_invalid_join_response_is_reported(served):
    async def scene() -> None:
        agent = Agent(served.url + "/docs?")  # an HTML page, not a manager
        task = asyncio.create_task(agent.client.run())
        await until(lambda: agent.client.problem != "not asked yet")
        assert agent.assignments == []
        await end(task)

    asyncio.run(scene())


def test_only_joined_agent_may_report_for_its_node(tmp_path):
    served = Served(f"sqlite:///{tmp_path / 'm.db'}", {"HANSA_MANAGER_TOKEN": "root"})

    async def scene(token: str) -> None:
        agent = Agent(served.url, token=token, secret="mine")
        task = asyncio.create_task(agent.client.run())
        await until(lambda: agent.reports >= 1)
        assert not agent.client.problem
        other = Agent(served.url, token=token, secret="yours")
        trying = asyncio.create_task(other.client.run())
        await until(lambda: "not asked" not in other.client.problem)
        assert "node 0 joined with another secret (403)" in other.client.problem
        assert other.assignments == []
        await end(task, trying)

    try:
        body = {"name": "agents", "scopes": ["join"]}
        token = served.ask("POST", "/api/v1/tokens", body, "root")[1]["token"]
        asyncio.run(scene(token))
        # The token alone is not enough.
        assert served.ask("POST", "/api/v1/nodes/0/health", {}, token)[0] == 403
        assert served.ask("POST", "/api/v1/nodes/0/leave", None, token)[0] == 403
        assert served.ask("GET", "/api/v1/nodes/0/topology", None, token)[0] == 403
        assert served.ask("POST", "/api/v1/nodes/0/leave", None, "root")[0] == 204
    finally:
        served.stop()


@pytest.mark.parametrize("node", ["zz", "1", "0" * 17])
def test_assignment_with_an_invalid_neighbour_is_rejected(node):
    answer = {
        "id": 1, "version": 1, "settings": {"redundancy": 2, "degree_max": 5, "beacon_interval": 2,
        "health_interval": 5}, "neighbors": [{"id": 2, "node": node, "link": "", "dial": True}],
    }  # fmt: skip
    with pytest.raises(ManagerUnavailable, match="not a manager's"):
        parse_answer(answer, TopologyAssignment)


SETTINGS = {"redundancy": 2, "degree_max": 5, "beacon_interval": 2, "health_interval": 0.1}
TOLD = {"id": 0, "version": 1, "neighbors": [], "settings": SETTINGS}


class Scripted:
    """A manager with scripted answers; the last one is repeated."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)

    async def request_json(self, method: str, path: str, body: object = None) -> object:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def test_client_survives_invalid_report_response(monkeypatch):
    async def scene() -> None:
        agent = Agent("http://127.0.0.1:1", follows_events=False)
        scripted = Scripted(TOLD, {"hello": "I am a proxy"}, TOLD)
        monkeypatch.setattr(agent.client, "_http", scripted)
        task = asyncio.create_task(agent.client.run())
        await until(
            lambda: len(agent.assignments) == 1 and "not a manager's" in agent.client.problem
        )
        await until(lambda: len(agent.assignments) > 1)
        assert not agent.client.problem
        assert not task.done()
        await end(task)

    asyncio.run(scene())


class Hasty(Agent):
    """Its state changes during its first report."""

    async def report(self) -> dict[str, Any]:
        if self.reports == 0:
            self.client.request_report()
        return await super().report()


def test_change_during_a_report_is_reported_at_once(monkeypatch):
    async def scene() -> None:
        agent = Hasty("http://127.0.0.1:1", follows_events=False)
        slow = TOLD | {"settings": SETTINGS | {"health_interval": 3600}}
        monkeypatch.setattr(agent.client, "_http", Scripted(slow))
        task = asyncio.create_task(agent.client.run())
        await until(lambda: agent.reports == 2)
        await end(task)

    asyncio.run(scene())
