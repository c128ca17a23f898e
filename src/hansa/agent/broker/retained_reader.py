"""What retained values a broker holds: read by a client of its own, that comes and goes.

The agent's own client never asks for stored values: what it gets is news. This one subscribes,
takes what the broker has stored, and leaves. Brokers answer in order, so an UNSUBACK that comes
after everything was acknowledged, with nothing before it, says that there is no more. Not all
brokers do: some that only speak MQTT 3.1.1 send what they have stored when they get to it. From
those, nothing must come for a while, either.
"""

import asyncio
from collections.abc import Callable, Sequence

from hansa.agent.broker.connection import Connection
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.types import REFUSED, Version

READ_TIMEOUT_S = 30.0
FILTERS_MAX = 200
"""Filters in one SUBSCRIBE."""

LATE_S = 0.3
"""How long nothing may come from a broker of 3.1.1 until that was all."""

FENCE = ("hansa/fence",)
"""What is unsubscribed from, and never was subscribed to, to get an answer."""

Connecting = Callable[[Callable[[effects.Effect], None]], Connection]
Found = Callable[[packets.Publish], None]


class _Reader:
    """One visit."""

    def __init__(self, connecting: Connecting, filters: Sequence[str], found: Found) -> None:
        self.connection = connecting(self._told)
        self.done = asyncio.Event()
        self.is_whole = False
        self._filters = filters
        self._found = found
        self.refused: set[str] = set()
        self._open: set[int] = set()  # packets of QoS 2 that are not released yet
        self._is_quiet = True
        self._is_old = False
        self._has_to_wait = False

    def _told(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Connected(limits=limits):
                self._is_old = limits.version is Version.V311
                self._subscribe()
            case effects.PublishReceived(batch):
                self._take(batch)
            case effects.Answered(batch):
                self._release([step for step in batch if isinstance(step, packets.PubRel)])
            case effects.Subscribed(subscriptions=asked, reasons=reasons):
                answers = zip(asked, reasons, strict=True)
                self.refused |= {wish.topic_filter for wish, code in answers if code >= REFUSED}
                self._fence()
            case effects.Unsubscribed():
                self._next()
            case effects.Disconnected() | effects.ProtocolViolation():
                self.done.set()  # nobody knows what was still to come
            case _:
                pass

    def _subscribe(self) -> None:
        some, self._filters = self._filters[:FILTERS_MAX], self._filters[FILTERS_MAX:]
        self._has_to_wait = self._is_old
        wishes = tuple(packets.Subscription(name, qos=2) for name in some)
        self.connection.order(inputs.Subscribe(wishes))

    def _take(self, batch: Sequence[packets.Publish]) -> None:
        self._is_quiet = False
        self._has_to_wait = self._is_old
        for each in batch:
            if each.retain and each.packet_id not in self._open:
                self._found(each)
            if each.qos == 2:
                self._open.add(each.packet_id)
        for qos, kind in ((1, packets.PubAck), (2, packets.PubRec)):
            answers = [kind(each.packet_id) for each in batch if each.qos == qos]
            if answers:
                self.connection.order(inputs.Answer(answers))

    def _release(self, steps: Sequence[packets.PubRel]) -> None:
        if steps:
            self._is_quiet = False
            self._open.difference_update(step.packet_id for step in steps)
            self.connection.order(inputs.Answer([packets.PubComp(s.packet_id) for s in steps]))

    def _fence(self) -> None:
        self._is_quiet = True
        self.connection.order(inputs.Unsubscribe(FENCE))

    def _next(self) -> None:
        if self._open or not self._is_quiet:
            self._fence()
        elif self._has_to_wait:
            self._has_to_wait = False
            asyncio.get_running_loop().call_later(LATE_S, self._fence)
        elif self._filters:
            self._subscribe()
        else:
            self.is_whole = True
            self.done.set()


async def read_stored(
    connecting: Connecting, filters: Sequence[str], found: Found
) -> tuple[str, ...] | None:
    """Hand every value that the broker holds for these filters to `found`, some of them more than
    once if filters overlap; return the filters of which that is all, None if it took too long or
    broke off."""
    reader = _Reader(connecting, filters, found)
    reader.connection.keep()
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            await reader.done.wait()
    except TimeoutError:
        pass
    finally:
        await reader.connection.stop()
    if not reader.is_whole:
        return None
    return tuple(name for name in filters if name not in reader.refused)
