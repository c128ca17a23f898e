"""A receiver and several origins, each an agent process with a broker."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.agent.live import eventually
from tests.agent.process import Process, Scene

from hansa.testbed.mosquitto import free_port

RECEIVER, ORIGIN = 0, 1
PATIENCE = 60.0
"""Seconds; several processes start at once."""


class Star:
    """Agent 0 subscribes to a topic, the others are origins."""

    def __init__(
        self, scene: Scene, directory: Path, topic: str, origins: int = 1, lines: Sequence[str] = ()
    ) -> None:
        self._scene = scene
        self._topic = topic
        self.brokers = [scene.broker(*lines) for _ in range(1 + origins)]
        self._links = [free_port() for _ in self.brokers]
        self.states = [directory / f"state-{number}" for number in range(len(self.brokers))]
        self.agents: dict[int, Process] = {}

    def _settings(self, number: int) -> dict[str, object]:
        return {
            "broker_port": self.brokers[number].port,
            "broker_observer": "static",
            "broker_filters": "" if number else self._topic,
            "link_port": self._links[number],
            "link_neighbours": f"127.0.0.1:{self._links[0]}" if number else "",
            "state": self.states[number],
        }

    def start(self, number: int, **settings: object) -> Process:
        self.agents[number] = self._scene.agent(**self._settings(number) | settings)
        return self.agents[number]

    def twin(self, number: int, state: Path) -> Process:
        """Start an agent with the same settings, but another state directory and broker."""
        other = {"state": state, "broker_port": self._scene.broker().port, "link_port": 0}
        return self._scene.agent(**self._settings(number) | other)

    def status(self, number: int) -> Any:
        code, text = self.agents[number].page("/status")
        return json.loads(text) if code == 200 else None

    def is_installed(self) -> bool:
        status = self.status(RECEIVER)
        members = len(self.brokers)
        return bool(
            status and status["interest"]["installed"] and len(status["reachable_nodes"]) == members
        )

    def is_idle(self) -> bool:
        """Whether nothing is pending at any agent."""
        statuses = [self.status(number) for number in range(len(self.brokers))]
        return all(
            status
            and not status["delivery"]["inbox"]
            and not any(status["delivery"]["pending"].values())
            and not status["delivery"]["unsynced_bytes"]
            for status in statuses
        )

    def wait_installed(self) -> None:
        what = "what the receiver wants installed everywhere"
        eventually(self.is_installed, what, PATIENCE)

    def alarm(self, number: int, name: str) -> str:
        """Wait for an alarm and its counter; return the text."""

        def raised() -> Any:
            status = self.status(number)
            return status and name in status["alarms"] and status

        status = eventually(raised, f"alarm {name} at {number}: {self.agents[number].log}")
        assert status["counters"][f"alarms: {name}"] >= 1
        text: str = status["alarms"][name]
        return text

    def wait_without_alarm(self, number: int, name: str) -> None:
        def over() -> bool:
            status = self.status(number)
            return bool(status) and name not in status["alarms"]

        eventually(over, f"the end of alarm {name} at {number}")

    def kill(self, number: int) -> None:
        self.agents[number].close()
