"""The message tail: bounded, and only with the token; the page's tests run it against a broker."""

import asyncio

import pytest

from hansa.agent.admin import tail
from hansa.agent.admin.server import EventStream, HttpResponse
from hansa.agent.admin.tail import MessageTails, describe_message
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.types import Reason, Version


class FakeConnection:
    """The connection of one tail."""

    def __init__(self, name, on_effect):
        self.name, self.on_effect = name, on_effect
        self.submitted, self.is_running = [], False

    def start(self):
        self.is_running = True

    async def stop(self):
        self.is_running = False

    def submit(self, event):
        self.submitted.append(event)


class World:
    def __init__(self):
        self.made = []
        self.tails = MessageTails(self.make)

    def make(self, name, on_effect):
        self.made.append(FakeConnection(name, on_effect))
        return self.made[-1]

    async def open(self, query):
        answer = await self.tails.handle("/tail", query, {})
        assert isinstance(answer, EventStream), answer.body
        return answer.events


def refusal(tails: MessageTails, query: str) -> HttpResponse:
    answer = asyncio.run(tails.handle("/tail", query, {}))
    assert isinstance(answer, HttpResponse)
    return answer


WISH = packets.Subscription("a/#", retain_as_published=True)
LIMITS = BrokerLimits(version=Version.V5, client_id="tail", keep_alive=60, session_expiry=0)
CONNECTED = effects.Connected(False, LIMITS)


def subscribed(reason=0):
    return effects.Subscribed((WISH,), bytes([reason]))


@pytest.mark.parametrize(
    ("payload", "text", "is_text", "is_cut"),
    [
        (b"21.5", "21.5", True, False),
        ("ä\n".encode(), "ä\n", True, False),
        (b"\x00\xff", "00 ff", False, False),
        (b"\x1b[2J", "1b 5b 32 4a", False, False),
        (b"x" * 600, "x" * 512, True, True),
        (b"x" + "ä".encode() * 300, "x" + "ä" * 255, True, True),
        (b"\xff" * 600, "ff " * 511 + "ff", False, True),
        (b"", "", True, False),
    ],
)
def test_payload_is_shown_as_text_or_hex_and_cut(payload, text, is_text, is_cut):
    shown = describe_message(packets.PublishPacket("t", payload, 1, True))
    assert isinstance(shown.pop("at_ms"), int)
    assert shown == {
        "topic": "t",
        "qos": 1,
        "retain": True,
        "bytes": len(payload),
        "text": text,
        "is_text": is_text,
        "is_cut": is_cut,
    }


def test_tail_subscribes_shows_messages_and_ends_at_their_number():
    async def run() -> None:
        world = World()
        events = await world.open("filter=a/%23&messages=3")
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        connection = world.made[0]
        assert (connection.name, connection.is_running) == ("tail-1", True)
        connection.on_effect(CONNECTED)
        assert connection.submitted == [inputs.Subscribe((WISH,))]
        connection.on_effect(subscribed())
        assert (await first).startswith(b"event: subscribed\n")
        batch = [packets.PublishPacket("a/b", b"%d" % n) for n in range(5)]
        connection.on_effect(effects.PublishReceived(batch))
        shown = await anext(events)
        assert shown.count(b"event: message\n") == 3
        assert shown.endswith(b'event: end\ndata: {"problem":""}\n\n')
        with pytest.raises(StopAsyncIteration):
            await anext(events)
        assert not connection.is_running

    asyncio.run(run())


@pytest.mark.parametrize(
    ("effect", "problem"),
    [
        (
            subscribed(Reason.NOT_AUTHORIZED),
            b"the broker refuses the subscription: 0x87 not authorized",
        ),
        (effects.ConnectRefused(None, "no route", version_refused=False), b"no route"),
        (effects.Disconnected(None, "gone", by_broker=False), b"gone"),
        (effects.ProtocolViolation(0x82, "strange"), b"strange"),
    ],
)
def test_tail_that_fails_says_why(effect, problem):
    async def run() -> None:
        world = World()
        events = await world.open("filter=a/%23")
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        world.made[0].on_effect(effect)
        assert problem in await first
        await events.aclose()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("filter=a/%23/b", b"'#'"),
        ("messages=0", b"messages must be from 1 to 2000"),
        ("messages=2001", b"messages must be from 1 to 2000"),
        ("messages=x", b"invalid literal"),
    ],
)
def test_invalid_request_is_refused(query, error):
    answer = refusal(World().tails, query)
    assert answer.status == 400
    assert isinstance(answer.body, bytes)
    assert error in answer.body


def test_embedded_broker_has_no_tail():
    assert refusal(MessageTails(None), "").status == 400


def test_tails_are_bounded_in_number_and_time(monkeypatch):
    monkeypatch.setattr(tail, "TAILS_MAX", 1)
    monkeypatch.setattr(tail, "SECONDS_MAX", 0.01)

    async def run() -> None:
        world = World()
        events = await world.open("")
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        refused = await world.tails.handle("/tail", "", {})
        assert isinstance(refused, HttpResponse)
        assert refused.status == 503
        assert world.tails.counters == {"refused: too many tails": 1}
        assert b"a tail ends after 0 s" in await first
        await events.aclose()
        await (await world.open("")).aclose()

    asyncio.run(run())


def test_tails_end_when_the_agent_stops():
    async def run() -> None:
        world = World()
        events = await world.open("")
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        world.tails.close()
        assert b"the agent stops" in await first
        await events.aclose()

    asyncio.run(run())
