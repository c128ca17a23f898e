"""Crashes of agents at every crash point of capture and injection, with real Mosquittos.

Most payloads are equal, so that only the journals can distinguish publications. With numbered
payloads a loss cannot be compensated by a duplicate."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.agent.delivery.star import ORIGIN, PATIENCE, RECEIVER, Star
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import eventually
from tests.agent.process import Scene

from hansa.agent.delivery.crash_points import DeliveryCrashPoint
from hansa.journal.crash import EXIT_CODE

COUNT = 8
COUNT_MAX = 1_000
TOPIC = "same/same"
OVERLAPPING = "same/+,+/same"
"""Both match and neither covers the other: the broker sends two copies to the origin's agent."""
WINDOW = 4
AT_ORIGIN = [point for point in DeliveryCrashPoint if point < DeliveryCrashPoint.INBOX_APPENDED]
AT_RECEIVER = [
    point
    for point in DeliveryCrashPoint
    if DeliveryCrashPoint.INBOX_APPENDED <= point <= DeliveryCrashPoint.INJECTION_COMPLETED
]
ONLY_QOS_2 = (
    DeliveryCrashPoint.COMPLETED_APPENDED,
    DeliveryCrashPoint.COMPLETED_DURABLE,
    DeliveryCrashPoint.PUBCOMP_SENT,
    DeliveryCrashPoint.ACCEPTED_APPENDED,
    DeliveryCrashPoint.ACCEPTED_DURABLE,
    DeliveryCrashPoint.RELEASED,
)


@dataclass(frozen=True)
class Crash:
    """Crash points of one agent, one per incarnation."""

    qos: int
    points: tuple[str, ...]
    origins: int = 1
    filters: str = TOPIC
    numbered: bool = False

    def __str__(self) -> str:
        words = f"qos{self.qos}-{'-then-'.join(self.points)}-of-{self.origins}"
        return f"{words}-numbered" if self.numbered else words

    def payload(self, origin: int, number: int) -> bytes:
        return b"%d-%d" % (origin, number) if self.numbered else b"same"


def fits(point: DeliveryCrashPoint, qos: int) -> bool:
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
    Crash(2, (f"{int(DeliveryCrashPoint.CAPTURE_DURABLE)}:3",)),
    Crash(2, (f"{int(DeliveryCrashPoint.COMPLETED_DURABLE)}:2",)),
    Crash(
        2,
        (f"{int(DeliveryCrashPoint.ACCEPTED_DURABLE)}:3", f"{int(DeliveryCrashPoint.RELEASED)}:1"),
        origins=2,
    ),
    Crash(1, (f"{int(DeliveryCrashPoint.CAPTURE_ACKNOWLEDGED)}:3",), numbered=True),
    Crash(
        1,
        (f"{int(DeliveryCrashPoint.PUBLISHED)}:3", f"{int(DeliveryCrashPoint.INBOX_DURABLE)}:1"),
        origins=2,
    ),
]
NUMBERED = [replace(crash, numbered=True) for crash in singles(3)]
ALL = [*singles(1), *singles(3), *NUMBERED, *doubles()]
TWICE = [
    Crash(2, (f"{int(first)}:3", f"{int(second)}:1"), filters=OVERLAPPING, numbered=True)
    for first in AT_ORIGIN
    for second in AT_ORIGIN
]


class Federation(Star):
    """Several origins and one receiver; one origin or the receiver crashes."""

    def __init__(self, scene: Scene, directory: Path, crash: Crash) -> None:
        super().__init__(scene, directory, crash.filters, crash.origins)
        at_origin = int(crash.points[0].split(":")[0]) < DeliveryCrashPoint.INBOX_APPENDED
        self.victim = ORIGIN if at_origin else RECEIVER
        self.crashes = 0
        self._remaining_points = iter(crash.points)
        for number in range(len(self.brokers)):
            self._live(number)

    def _live(self, number: int) -> None:
        point = next(self._remaining_points, None) if number == self.victim else None
        doom = {} if point is None else {"crash_point": point}
        self.start(number, delivery_in_flight_max=WINDOW, **doom)

    def revive(self) -> None:
        """Restart the victim if it crashed at its crash point."""
        code = self.agents[self.victim].process.poll()
        if code is not None:
            assert code == EXIT_CODE, self.agents[self.victim].log
            self.crashes += 1
            self._live(self.victim)


def deliver(scene: Scene, directory: Path, crash: Crash) -> tuple[list[bytes], list[bytes]]:
    """Publish until the agent has crashed at all its crash points; on a slow machine that takes
    more publications, because a batch passes a point once. Return the published and the received
    payloads."""
    federation = Federation(scene, directory, crash)
    federation.wait_installed()
    subscriber = GuaranteedClient(federation.brokers[0].port).subscribe_qos2(TOPIC)
    publishers = [GuaranteedClient(broker.port) for broker in federation.brokers[1:]]
    published: list[bytes] = []
    rounds = 0
    while rounds < COUNT or (federation.crashes < len(crash.points) and rounds < COUNT_MAX):
        for origin, publisher in enumerate(publishers):
            published.append(crash.payload(origin, rounds))
            publisher.publish_guaranteed(crash.qos, TOPIC, published[-1])
        federation.revive()
        subscriber.read_for(0.02)
        rounds += 1

    def all_came() -> bool:
        federation.revive()
        subscriber.read_for(0.05)
        return federation.is_idle() and len(subscriber.received) >= len(published)

    eventually(all_came, "all of it", PATIENCE)
    came = subscriber.read_until(len(published))
    assert federation.crashes == len(crash.points)
    for client in (subscriber, *publishers):
        client.kill()
    return published, came


def check(scene: Scene, directory: Path, crash: Crash, exactly: bool) -> None:
    published, came = deliver(scene, directory, crash)
    copies_max = 0 if exactly else WINDOW * len(crash.points)
    assert Counter(published) - Counter(came) == {}
    assert set(came) == set(published)
    assert len(came) <= len(published) + copies_max
    if crash.numbered and crash.origins == 1:
        assert list(dict.fromkeys(came)) == published, "another order"


@pytest.mark.parametrize("crash", SLICE, ids=str)
def test_selected_crashes_lose_nothing_and_duplicate_nothing_at_qos_2(scene, tmp_path, crash):
    check(scene, tmp_path, crash, exactly=crash.qos == 2)


@pytest.mark.long
@pytest.mark.parametrize("crash", ALL, ids=str)
def test_every_crash_loses_nothing_and_duplicates_nothing_at_qos_2(scene, tmp_path, crash):
    check(scene, tmp_path, crash, exactly=crash.qos == 2)


@pytest.mark.long
@pytest.mark.parametrize("crash", TWICE, ids=str)
def test_two_crashes_under_overlapping_filters_lose_nothing(scene, tmp_path, crash):
    """Duplicates are allowed here (docs/delivery.md): two crashes within one handshake."""
    check(scene, tmp_path, crash, exactly=False)
