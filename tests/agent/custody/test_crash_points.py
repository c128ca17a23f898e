"""Agents that end at every step of a publication's way, at real Mosquittos. All payloads are equal:
nothing but the journals can tell a publication from a copy of it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.agent.live import eventually
from tests.agent.process import Process, Scene
from tests.agent.sure import SureClient

from hansa.agent.custody.points import Point
from hansa.journal.crash import EXIT_CODE
from hansa.local.mosquitto import free_port

COUNT = 8
WINDOW = 4
AT_ORIGIN = [point for point in Point if point < Point.BOUND_APPENDED]
AT_RECEIVER = [point for point in Point if point >= Point.BOUND_APPENDED]
ONLY_QOS_2 = (
    Point.SETTLED_APPENDED,
    Point.SETTLED_DURABLE,
    Point.SETTLED_TOLD,
    Point.ACCEPTED_APPENDED,
    Point.ACCEPTED_DURABLE,
    Point.RELEASED,
)


@dataclass(frozen=True)
class Crash:
    """Where one agent ends: each of these once, one life after the other."""

    qos: int
    points: tuple[str, ...]
    origins: int = 1

    def __str__(self) -> str:
        return f"qos{self.qos}-{'-then-'.join(self.points)}-of-{self.origins}"


def fits(point: Point, qos: int) -> bool:
    return qos == 2 or point not in ONLY_QOS_2


def singles(times: int) -> Iterator[Crash]:
    for qos in (1, 2):
        for point in Point:
            if fits(point, qos):
                yield Crash(qos, (f"{int(point)}:{times}",))


def doubles() -> Iterator[Crash]:
    for qos in (1, 2):
        for side in (AT_ORIGIN, AT_RECEIVER):
            for first in side:
                for second in side:
                    if fits(first, qos) and fits(second, qos):
                        yield Crash(qos, (f"{int(first)}:3", f"{int(second)}:1"), origins=2)


SLICE = [
    Crash(2, (f"{int(Point.CAPTURE_DURABLE)}:3",)),
    Crash(2, (f"{int(Point.SETTLED_DURABLE)}:2",)),
    Crash(2, (f"{int(Point.ACCEPTED_DURABLE)}:3", f"{int(Point.RELEASED)}:1"), origins=2),
    Crash(1, (f"{int(Point.CAPTURE_ACKNOWLEDGED)}:3",)),
    Crash(1, (f"{int(Point.PUBLISHED)}:3", f"{int(Point.BOUND_DURABLE)}:1"), origins=2),
]
ALL = [*singles(1), *singles(3), *doubles()]


class Federation:
    """Origins that are neighbours of one receiver, each beside its broker."""

    def __init__(self, scene: Scene, directory: Path, crash: Crash) -> None:
        self._scene = scene
        self._directory = directory
        self._crash = crash
        self.topic = "same"
        self.brokers = [scene.broker() for _ in range(1 + crash.origins)]
        self._links = [free_port() for _ in self.brokers]
        at_origin = int(crash.points[0].split(":")[0]) < Point.BOUND_APPENDED
        self.victim = 1 if at_origin else 0
        self.crashes = 0
        self._lives = iter(crash.points)
        self.agents = [self._start(n, n == self.victim) for n in range(len(self.brokers))]

    def _start(self, number: int, doomed: bool) -> Process:
        settings: dict[str, object] = {
            "broker_port": self.brokers[number].port,
            "broker_observer": "static",
            "broker_filters": "" if number else self.topic,
            "link_port": self._links[number],
            "link_neighbours": f"127.0.0.1:{self._links[0]}" if number else "",
            "state": self._directory / f"state-{number}",
            "delivery_window": WINDOW,
        }
        point = next(self._lives, None) if doomed else None
        if point is not None:
            settings["crash_point"] = point
        return self._scene.agent(**settings)

    def revive(self) -> None:
        """Start the victim again if it has ended as it should."""
        code = self.agents[self.victim].process.poll()
        if code is not None:
            assert code == EXIT_CODE, self.agents[self.victim].log
            self.crashes += 1
            self.agents[self.victim] = self._start(self.victim, doomed=True)

    def status(self, number: int) -> Any:
        code, text = self.agents[number].page("/status")
        return json.loads(text) if code == 200 else None

    def is_installed(self) -> bool:
        status = self.status(0)
        members = len(self.brokers)
        return bool(
            status and status["interest"]["installed"] and len(status["members"]) == members
        )

    def is_idle(self) -> bool:
        """Whether nobody owes anybody anything."""
        self.revive()
        statuses = [self.status(number) for number in range(len(self.brokers))]
        return all(
            status
            and not status["delivery"]["inbox"]
            and not any(status["delivery"]["owed"].values())
            and not status["delivery"]["unsynced_bytes"]
            for status in statuses
        )


def deliver(scene: Scene, directory: Path, crash: Crash) -> list[bytes]:
    """Publish the same again and again while an agent crashes; return what arrives."""
    federation = Federation(scene, directory, crash)
    eventually(federation.is_installed, "interest installed")
    subscriber = SureClient(federation.brokers[0].port).subscribe_surely(federation.topic)
    publishers = [SureClient(broker.port) for broker in federation.brokers[1:]]
    for _ in range(COUNT):
        for publisher in publishers:
            publisher.publish_surely(crash.qos, federation.topic, b"same")
        federation.revive()
        subscriber.read_for(0.02)
    wanted = COUNT * crash.origins

    def all_came() -> bool:
        subscriber.read_for(0.05)
        return federation.is_idle() and len(subscriber.received) >= wanted

    eventually(all_came, f"all of it; {len(subscriber.received)} came")
    came = subscriber.read_until(wanted)
    assert federation.crashes == len(crash.points)
    for client in (subscriber, *publishers):
        client.kill()
    return came


def check(scene: Scene, directory: Path, crash: Crash) -> None:
    came = deliver(scene, directory, crash)
    wanted = COUNT * crash.origins
    spare = 0 if crash.qos == 2 else WINDOW * len(crash.points)
    assert wanted <= len(came) <= wanted + spare
    assert set(came) == {b"same"}


@pytest.mark.parametrize("crash", SLICE, ids=str)
def test_a_crash_loses_nothing_and_doubles_nothing_at_qos_2(scene, tmp_path, crash):
    check(scene, tmp_path, crash)


@pytest.mark.long
@pytest.mark.parametrize("crash", ALL, ids=str)
def test_every_crash_loses_nothing_and_doubles_nothing_at_qos_2(scene, tmp_path, crash):
    check(scene, tmp_path, crash)
