"""Two nodes with their drivers, joined by real TCP on loopback; their brokers are lists."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any

from tests.agent.waiting import until

from hansa.agent.driver import Driver
from hansa.agent.links.link import Address, Link
from hansa.agent.links.stream import WINDOW_ACK_BYTES, LinkLimits
from hansa.agent.links.strikes import STRIKES_MAX
from hansa.agent.links.tcp import TcpLinks
from hansa.protocol.effects import Effect, NeighbourUp
from hansa.protocol.events import ClientPublished, InterestChanged, SubscriptionsGranted
from hansa.protocol.model import KEY_BYTES, Identity, PlainMessage, Publication, node_id
from hansa.protocol.node import Node
from hansa.protocol.settings import ProtocolSettings

WINDOW = 4 * WINDOW_ACK_BYTES


class ListBroker:
    """Grants every subscription and records injected publications."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.filters: set[str] = set()
        self.injected: list[tuple[str, bytes]] = []

    def subscribe(self, filters: Sequence[str]) -> None:
        self.filters |= set(filters)
        self._driver.feed(SubscriptionsGranted(tuple(filters)))  # synchronously

    def unsubscribe(self, filters: Sequence[str]) -> None:
        self.filters -= set(filters)

    def publish(self, publications: Sequence[PlainMessage | Publication]) -> None:
        self.injected += [
            each if isinstance(each, tuple) else (each.topic, each.payload) for each in publications
        ]


class FaultyLink:
    """A link that cannot send."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def send(self, frames: Sequence[bytes | bytearray]) -> None:
        raise ZeroDivisionError("by zero")


class Side:
    """One agent without a broker."""

    def __init__(self, number: int, settings: ProtocolSettings) -> None:
        key = bytes([number]) * KEY_BYTES
        identity = Identity(node_id(key), key, 1, str(number), (), 1.0)
        self.notifications: list[Effect] = []
        self.closed: list[str] = []
        self.driver = Driver(
            Node(identity, settings),
            on_notification=self.notifications.append,
            on_link_closed=lambda _, reason: self.closed.append(reason),
        )
        self.broker = ListBroker(self.driver)
        self.driver.broker = self.broker
        self.links = TcpLinks(self.driver, random.Random(number), count(1), LinkLimits(WINDOW))

    @property
    def is_up(self) -> bool:
        return any(isinstance(each, NeighbourUp) for each in self.notifications)

    async def stop(self) -> None:
        await self.links.stop()
        self.driver.close_links()
        await until(lambda: not self.driver.links, "links closed")
        self.driver.close_links()  # the timer that the last event armed


def joined(
    work: Callable[[Side, Side], Awaitable[None]],
    theirs: ProtocolSettings | None = None,
) -> tuple[Side, Side]:
    """Run a function with two sides; the second dials the first."""

    async def run() -> tuple[Side, Side]:
        one, two = Side(1, ProtocolSettings()), Side(2, theirs or ProtocolSettings())
        for side in (one, two):
            side.driver.feed(InterestChanged())
        address = await one.links.listen(Address("127.0.0.1", 0))
        two.links.dialler.dial(address, lambda _, reason: None)
        await work(one, two)
        await asyncio.gather(one.stop(), two.stop())
        return one, two

    return asyncio.run(run())


async def carry(one: Side, two: Side) -> None:
    """Forward one publication from the first side to the second."""
    await until(lambda: one.is_up and two.is_up, "neighbours")
    two.driver.feed(InterestChanged(("a/#",)))
    await until(lambda: one.broker.filters == {"a/#"}, "subscribed at the first broker")
    one.driver.capture_qos0(
        [ClientPublished("a/b", b"1"), ClientPublished("a/b", b"2"), ClientPublished("c", b"3")]
    )
    await until(lambda: len(two.broker.injected) == 2, "delivered")


def test_only_subscribed_publications_are_forwarded():
    one, two = joined(carry)
    assert two.broker.injected == [("a/b", b"1"), ("a/b", b"2")]
    assert one.broker.injected == []


def test_ended_interest_is_unsubscribed():
    async def work(one: Side, two: Side) -> None:
        await carry(one, two)
        two.driver.feed(InterestChanged((), ("a/#",)))
        await until(lambda: not one.broker.filters, "unsubscribed")

    joined(work)


def test_incompatible_nodes_close_link_with_reason_on_both_sides():
    async def work(one: Side, two: Side) -> None:
        await until(lambda: one.closed and two.closed, "refused")

    one, two = joined(work, ProtocolSettings(federation="other"))
    assert "federation" in one.closed[0] and "other" in one.closed[0]
    assert "federation" in two.closed[0] and "other" in two.closed[0]
    assert not one.is_up and not two.is_up


def test_invalid_frames_are_counted_and_then_close_link():
    async def work(one: Side, two: Side) -> None:
        await until(lambda: one.is_up and two.is_up, "neighbours")
        (link,) = two.driver.links.values()
        link.send([b"?"] * STRIKES_MAX)
        await until(lambda: one.closed, "closed")

    one, _ = joined(work)
    assert one.driver.counters["invalid frames"] == STRIKES_MAX
    assert one.closed[0].startswith("misbehaved 3 times, last: invalid frame: frame: ")


def test_link_with_a_send_fault_is_closed_and_others_continue():
    faults: list[object] = []

    async def work(one: Side, two: Side) -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, said: faults.append(repr(said["exception"]))
        )
        await until(lambda: one.is_up and two.is_up, "neighbours")
        link = one.driver.links.popitem()[1]
        one.driver.links[link.id] = FaultyLink(link)
        one.driver.feed(InterestChanged(("a/#",)))
        await until(lambda: one.closed, "closed")
        await until(lambda: "a/#" in two.broker.filters, "told over the next link")

    one, _ = joined(work)
    assert faults == ["ZeroDivisionError('by zero')"]
    assert one.closed[0] == "a fault of Hansa: ZeroDivisionError: by zero"


def test_publications_beyond_window_are_dropped_and_control_frames_are_sent():
    end = ("a/b", b"end")

    async def work(one: Side, two: Side) -> None:
        await carry(one, two)
        batch = [ClientPublished("a/b", b"x" * 1_000)] * 100
        for _ in range(10):  # without a pause, so the other side cannot answer
            one.driver.capture_qos0(batch)
        dropped = one.driver.counters["dropped: the neighbour's window is full"]
        assert dropped in range(500, 800)  # 300 of them fit
        two.driver.feed(InterestChanged(("z",)))
        await until(lambda: "z" in one.broker.filters, "control still passes")

        def passes_again() -> bool:
            one.driver.capture_qos0([ClientPublished(*end)])
            return two.broker.injected[-1] == end

        await until(passes_again, "the window opened again")
        assert len([each for each in two.broker.injected if each != end]) == 2 + 1_000 - dropped

    joined(work)
