"""Streams through a broker, without one: two ends, and the test transfers the publications."""

import asyncio
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.agent.links import mqtt_stream
from hansa.agent.links.mqtt_stream import (
    ACK_INTERVAL,
    ACKNOWLEDGED,
    DATA,
    IN_FLIGHT_MAX,
    CloseTokens,
    MqttStream,
    close_payload,
    commitment_of,
)

TOKENS = (b"token of the one", b"token of another")


class Protocol(asyncio.BufferedProtocol):
    """Records received bytes, with a buffer smaller than the input."""

    def __init__(self) -> None:
        self.taken = b""
        self.lost: list[str] = []
        self._buffer = bytearray(7)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.taken += self._buffer[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(str(exc or "closed"))


class End:
    def __init__(self, token: bytes = TOKENS[0], theirs: bytes = TOKENS[1]) -> None:
        self.protocol = Protocol()
        self.wire: deque[bytes] = deque()
        self.ended = 0
        self.forged = 0
        ending = CloseTokens(commitment_of(theirs), token)
        self.stream = MqttStream(
            self.protocol, self.wire.append, self._end, 10, ending, self._note_forged
        )
        self.stream.start()

    def _note_forged(self) -> None:
        self.forged += 1

    def _end(self) -> None:
        self.ended += 1

    def give(self, other: "End", count: int | None = None) -> None:
        """Pass the publications of this end to the other."""
        size = len(self.wire) if count is None else min(count, len(self.wire))
        other.stream.receive([self.wire.popleft() for _ in range(size)])


def play(work: Callable[[End, End], None]) -> tuple[End, End]:
    """Run a function with two ends; return them after pending callbacks ran."""

    async def run() -> tuple[End, End]:
        ends = End(), End(*TOKENS[::-1])
        work(*ends)
        await asyncio.sleep(0)
        return ends

    return asyncio.run(run())


def number(kind: int, count: int) -> bytes:
    return bytes((kind,)) + count.to_bytes(4, "big")


@given(st.lists(st.binary(max_size=300), max_size=20), st.lists(st.integers(0, 30), max_size=20))
def test_written_bytes_arrive_in_order_however_they_are_split(writes, turns):
    def work(one: End, two: End) -> None:
        for data, turn in zip(writes, [*turns, *[0] * len(writes)], strict=False):
            one.stream.write(data)
            one.give(two, turn)
            two.give(one)
        while one.wire or two.wire:
            one.give(two)
            two.give(one)

    one, two = play(work)
    assert two.protocol.taken == b"".join(writes)
    assert [one.stream.get_write_buffer_size(), one.ended, two.ended] == [0, 0, 0]


def test_bytes_in_flight_are_bounded_and_waiting_ones_are_sent_together():
    def work(one: End, two: End) -> None:
        for _ in range(IN_FLIGHT_MAX + 9):
            one.stream.write(b"x")
        assert len(one.wire) == IN_FLIGHT_MAX
        assert one.stream.get_write_buffer_size() == 9
        one.give(two, ACK_INTERVAL - 1)
        assert not two.wire
        one.give(two, 1)
        assert [*two.wire] == [number(ACKNOWLEDGED, ACK_INTERVAL)]
        two.give(one)
        assert one.wire[-1] == number(DATA, IN_FLIGHT_MAX) + b"x" * 9

    play(work)


def test_sequence_numbers_wrap_around(monkeypatch):
    monkeypatch.setattr(mqtt_stream, "_SEQUENCE_MODULUS", 100)

    def work(one: End, two: End) -> None:
        for _ in range(300):
            one.stream.write(b"x")
            one.give(two)
            two.give(one)

    assert play(work)[1].protocol.taken == b"x" * 300


def test_publication_lost_by_broker_closes_both_ends():
    def work(one: End, two: End) -> None:
        for _ in range(4):
            one.stream.write(b"x")
        one.give(two, 1)
        one.wire.popleft()
        one.wire.popleft()
        one.give(two)
        two.give(one)

    one, two = play(work)
    reason = (
        "the broker lost 2 publications of this link: its max_queued_messages is too small, or its"
        " message_size_limit is below [link.mqtt] chunk_bytes"
    )
    assert two.protocol.lost == [reason]
    assert one.protocol.lost == [f"closed by the other side: {reason}"]
    assert two.protocol.taken == b"x"
    assert [one.ended, two.ended] == [1, 1]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x02\x00",
        b"hello, broker",
        number(ACKNOWLEDGED, 1),
        close_payload(b"", "no token"),
        close_payload(TOKENS[0], "the reader's own token"),
        close_payload(commitment_of(TOKENS[1])[:16], "a part of the commitment"),
    ],
)
def test_publication_of_another_client_is_ignored_and_counted(payload):
    one, _ = play(lambda one, two: one.stream.receive([payload, number(DATA, 0) + b"x"]))
    assert (one.protocol.taken, one.protocol.lost, [*one.wire]) == (b"x", [], [])
    assert one.forged == 1


def test_committed_token_closes_stream():
    one, _ = play(lambda one, two: one.stream.receive([close_payload(TOKENS[1], "over")]))
    assert one.protocol.lost == ["closed by the other side: over"]
    assert one.forged == 0


def test_repeated_open_and_accept_have_no_effect():
    one, _ = play(
        lambda one, two: one.stream.receive(
            [b"\x00", b"\x01", b"\x05", b"\x06", number(DATA, 0) + b"x"]
        )
    )
    assert (one.protocol.taken, one.protocol.lost) == (b"x", [])


def test_closing_waits_until_everything_has_left():
    def work(one: End, two: End) -> None:
        one.stream.write(b"x" * 10 * (IN_FLIGHT_MAX + 1))
        one.stream.close()
        one.stream.close()
        one.stream.write(b"too late")
        assert one.stream.is_closing()
        assert one.ended == 0
        one.give(two)
        two.give(one)
        assert one.ended == 1
        one.give(two)

    one, two = play(work)
    assert two.protocol.taken == b"x" * 10 * (IN_FLIGHT_MAX + 1)
    assert [one.protocol.lost, two.protocol.lost] == [["closed"], ["closed by the other side"]]


def test_end_is_reported_once_and_nothing_follows():
    def work(one: End, two: End) -> None:
        one.stream.abort()
        one.stream.abort()
        one.stream.close_silently("again")

    one, _ = play(work)
    assert one.protocol.lost == ["closed"]
    assert [one.ended, [*one.wire]] == [1, [close_payload(TOKENS[0], "")]]


def test_paused_stream_holds_bytes_back_and_does_not_acknowledge_them():
    one, two = End(), End(TOKENS[1], TOKENS[0])
    two.stream.pause_reading()
    two.stream.pause_reading()
    one.stream.write(b"x" * 10 * IN_FLIGHT_MAX)
    two.stream.receive([*one.wire])
    assert not two.protocol.taken and not two.wire
    two.stream.resume_reading()
    assert two.protocol.taken == b"x" * 10 * IN_FLIGHT_MAX
    assert len(two.wire) == 1 and two.wire[0][0] == ACKNOWLEDGED


def test_peer_that_ignores_a_pause_is_closed():
    def work(_: End, two: End) -> None:
        two.stream.pause_reading()
        two.stream.receive([number(DATA, count) + b"x" for count in range(200)])

    _, two = play(work)
    assert two.protocol.lost == ["more publications than may be unacknowledged"]
