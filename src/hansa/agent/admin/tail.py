"""The messages at the agent's broker as they arrive, for an operator: `/tail`.

A tail is a client of the broker with a subscription of QoS 0. Observers ignore it like the other
clients of the agent, so it causes no interest and no traffic on links. It ends after a number of
messages, which bounds its cost whatever the rate.
"""

import asyncio
import codecs
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from itertools import count
from urllib.parse import parse_qs

from hansa.agent.admin.server import EventStream, HttpResponse, json_response
from hansa.agent.admin.streams import format_event
from hansa.agent.broker.connection import Connection, NamedConnectionFactory
from hansa.errors import InvalidTopic
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.types import REFUSAL_CODE_MIN, describe_reason
from hansa.protocol.topics import check_filter

TAILS_MAX = 4
"""Tails at the same time."""

MESSAGES_DEFAULT = 200
MESSAGES_MAX = 2_000
"""Messages after which a tail ends."""

PAYLOAD_SHOWN_BYTES = 512

SECONDS_MAX = 900.0
"""A tail ends after this time, too: a forgotten page must not stay subscribed."""

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class _Tail:
    """One tail."""

    def __init__(self, topic_filter: str, messages_max: int) -> None:
        self._filter = topic_filter
        self._left = messages_max
        self._unsent: list[bytes] = []
        self._wake = asyncio.Event()
        self._has_ended = False
        self.connection: Connection | None = None

    def on_effect(self, effect: effects.Effect) -> None:
        assert self.connection is not None
        match effect:
            case effects.Connected():
                subscription = packets.Subscription(self._filter, retain_as_published=True)
                self.connection.submit(inputs.Subscribe((subscription,)))
            case effects.Subscribed(reasons=reasons):
                refused = [each for each in reasons if each >= REFUSAL_CODE_MIN]
                if refused:
                    text = describe_reason(refused[0])
                    self.end(f"the broker refuses the subscription: {text}")
                else:
                    self._add("subscribed", {"filter": self._filter, "messages_max": self._left})
            case effects.PublishReceived(batch):
                for each in batch[: self._left]:
                    self._add("message", describe_message(each))
                self._left -= len(batch)
                if self._left <= 0:
                    self.end("")
            case effects.ConnectRefused(text=text) | effects.Disconnected(text=text):
                self.end(text)
            case effects.ProtocolViolation(text=text):
                self.end(text)
            case _:
                pass

    def _add(self, name: str, document: object) -> None:
        if not self._has_ended:
            self._unsent.append(format_event(name, document))
            self._wake.set()

    def end(self, problem: str) -> None:
        """Send what is left and the reason: empty if all messages were shown."""
        self._add("end", {"problem": problem})
        self._has_ended = True

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the events as bytes."""
        deadline = asyncio.get_running_loop().time() + SECONDS_MAX
        while not self._has_ended or self._unsent:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._wake.wait()
            except TimeoutError:
                self.end(f"a tail ends after {SECONDS_MAX:.0f} s")
            self._wake.clear()
            unsent, self._unsent = self._unsent, []
            yield b"".join(unsent)


class MessageTails:
    """All tails of an agent."""

    def __init__(self, make_connection: NamedConnectionFactory | None) -> None:
        """Without `make_connection` there are none: the embedded broker has no other clients of
        the agent."""
        self.counters: Counter[str] = Counter()
        self._make_connection = make_connection
        self._numbers = count(1)
        self._open: dict[_Tail, None] = {}

    async def handle(
        self, path: str, query: str, headers: Mapping[str, str]
    ) -> HttpResponse | EventStream:
        """Handle `GET /tail?filter=FILTER&messages=N`."""
        if self._make_connection is None:
            return json_response({"error": "the embedded broker has no tail"}, 400)
        given = parse_qs(query)
        try:
            topic_filter = given.get("filter", ["#"])[-1]
            check_filter(topic_filter)
            messages_max = int(given.get("messages", [str(MESSAGES_DEFAULT)])[-1])
        except (InvalidTopic, ValueError) as error:
            return json_response({"error": str(error)}, 400)
        if not 1 <= messages_max <= MESSAGES_MAX:
            return json_response({"error": f"messages must be from 1 to {MESSAGES_MAX}"}, 400)
        if len(self._open) >= TAILS_MAX:
            self.counters["refused: too many tails"] += 1
            text = f"{TAILS_MAX} tails are open, which is the limit"
            return json_response({"error": text}, 503)
        return EventStream(self._follow(_Tail(topic_filter, messages_max)))

    async def _follow(self, tail: _Tail) -> AsyncGenerator[bytes, None]:
        assert self._make_connection is not None
        self._open[tail] = None
        tail.connection = self._make_connection(f"tail-{next(self._numbers)}", tail.on_effect)
        tail.connection.start()
        try:
            async for event in tail.events():
                yield event
        finally:
            del self._open[tail]
            await tail.connection.stop()

    def close(self) -> None:
        """End all tails: the agent stops."""
        for tail in self._open:
            tail.end("the agent stops")


def describe_message(packet: packets.PublishPacket) -> dict[str, object]:
    """Return a message with the beginning of its payload, as text if it is UTF-8, else as hex."""
    shown = packet.payload[:PAYLOAD_SHOWN_BYTES]
    is_cut = len(packet.payload) > len(shown)
    text = ""
    try:
        text = _Utf8Decoder().decode(shown, final=not is_cut)  # the cut may split a character
        is_text = all(each.isprintable() or each in "\t\r\n" for each in text)
    except UnicodeDecodeError:
        is_text = False
    return {
        "at_ms": time.time_ns() // 1_000_000,
        "topic": packet.topic,
        "qos": packet.qos,
        "retain": packet.retain,
        "bytes": len(packet.payload),
        "text": text if is_text else shown.hex(" "),
        "is_text": is_text,
        "is_cut": is_cut,
    }
