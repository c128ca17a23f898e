"""Agents that end at every step of a publication's way, at real Mosquittos. All payloads are equal:
nothing but the journals can tell a publication from a copy of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.agent.custody.star import ORIGIN, PATIENCE, RECEIVER, Star
from tests.agent.live import eventually
from tests.agent.process import Scene
from tests.agent.sure import SureClient

from hansa.agent.custody.points import Point
from hansa.journal.crash import EXIT_CODE

COUNT = 8
COUNT_MAX = 1_000
TOPIC = "same"
WINDOW = 4
AT_ORIGIN = [point for point in Point if point < Point.BOUND_APPENDED]
AT_RECEIVER = [point for point in Point if Point.BOUND_APPENDED <= point <= Point.COMPLETED]
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
        for point in (*AT_ORIGIN, *AT_RECEIVER):
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


class Federation(Star):
    """Origins around one receiver; one of them, or the receiver, is the victim."""

    def __init__(self, scene: Scene, directory: Path, crash: Crash) -> None:
        super().__init__(scene, directory, TOPIC, crash.origins)
        at_origin = int(crash.points[0].split(":")[0]) < Point.BOUND_APPENDED
        self.victim = ORIGIN if at_origin else RECEIVER
        self.crashes = 0
        self._lives = iter(crash.points)
        for number in range(len(self.brokers)):
            self._live(number)

    def _live(self, number: int) -> None:
        point = next(self._lives, None) if number == self.victim else None
        doom = {} if point is None else {"crash_point": point}
        self.start(number, delivery_window=WINDOW, **doom)

    def revive(self) -> None:
        """Start the victim again if it has ended as it should."""
        code = self.agents[self.victim].process.poll()
        if code is not None:
            assert code == EXIT_CODE, self.agents[self.victim].log
            self.crashes += 1
            self._live(self.victim)


def deliver(scene: Scene, directory: Path, crash: Crash) -> tuple[int, list[bytes]]:
    """Publish the same again and again while an agent crashes, and until it has crashed as often as
    it should: on a slow machine many share a batch, and a step is passed once for all of them.
    Return how many were published, and what arrives."""
    federation = Federation(scene, directory, crash)
    federation.wait_installed()
    subscriber = SureClient(federation.brokers[0].port).subscribe_surely(TOPIC)
    publishers = [SureClient(broker.port) for broker in federation.brokers[1:]]
    rounds = 0
    while rounds < COUNT or (federation.crashes < len(crash.points) and rounds < COUNT_MAX):
        for publisher in publishers:
            publisher.publish_surely(crash.qos, TOPIC, b"same")
        federation.revive()
        subscriber.read_for(0.02)
        rounds += 1
    wanted = rounds * crash.origins

    def all_came() -> bool:
        federation.revive()
        subscriber.read_for(0.05)
        return federation.is_idle() and len(subscriber.received) >= wanted

    eventually(all_came, "all of it", PATIENCE)
    came = subscriber.read_until(wanted)
    assert federation.crashes == len(crash.points)
    for client in (subscriber, *publishers):
        client.kill()
    return wanted, came


def check(scene: Scene, directory: Path, crash: Crash) -> None:
    wanted, came = deliver(scene, directory, crash)
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
