"""Ordered channels by example, and two of them over a link that loses, copies and reorders."""

import heapq
import random
from itertools import count
from statistics import median

from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.protocol.links.ordering import (
    MISSING_SPAN,
    PAUSE_MIN,
    RETRANSMIT_MAX,
    RETRY_MAX,
    RETRY_MIN,
    OrderedChannel,
)
from hansa.protocol.wire.frames import FrameAck, Goodbye, OrderedFrame, SequencedFrame

FIRST_RETRY = 4 * RETRY_MIN


def numbered(number: int) -> SequencedFrame:
    return SequencedFrame(number, Goodbye(f"frame {number}"))


def sent(channel: OrderedChannel, count: int, now: float = 0.0) -> list[SequencedFrame]:
    return [channel.assign_sequence(Goodbye(f"frame {n + 1}"), now) for n in range(count)]


# ---------------------------------------------------------------- sending


def test_frames_are_numbered_from_one():
    assert sent(OrderedChannel(8), 3) == [numbered(1), numbered(2), numbered(3)]


def test_new_channel_has_nothing_to_do():
    channel = OrderedChannel(8)
    assert (channel.pending_count, channel.has_overflowed) == (0, False)
    assert (channel.next_deadline(), channel.handle_timer(9.0)) == (None, [])


def test_oldest_unacknowledged_frames_are_retransmitted():
    channel = OrderedChannel(64)
    frames = sent(channel, RETRANSMIT_MAX + 1, now=1.0)
    assert channel.next_deadline() == 1.0 + FIRST_RETRY
    assert channel.handle_timer(1.0 + FIRST_RETRY) == frames[:RETRANSMIT_MAX]


def test_nothing_is_retransmitted_before_the_timeout():
    channel = OrderedChannel(8)
    sent(channel, 1, now=1.0)
    assert channel.handle_timer(1.0 + FIRST_RETRY - 0.001) == []


def test_later_frame_does_not_delay_the_timeout_of_the_first():
    channel = OrderedChannel(8)
    sent(channel, 1, now=1.0)
    sent(channel, 1, now=1.1)
    assert channel.next_deadline() == 1.0 + FIRST_RETRY


def test_retransmission_interval_grows_to_a_bound():
    channel = OrderedChannel(8)
    sent(channel, 1)
    waits, now = [], 0.0
    for _ in range(6):
        due = channel.next_deadline()
        assert due is not None
        waits.append(round(due - now, 6))
        now = due
        assert len(channel.handle_timer(now)) == 1
    assert waits == [0.2, 0.4, 0.8, 1.6, RETRY_MAX, RETRY_MAX]


def test_acknowledgement_ends_retransmission():
    channel = OrderedChannel(8)
    sent(channel, 3)
    assert channel.receive_ack(FrameAck(4), rtt=None, now=0.1) == []
    assert (channel.pending_count, channel.next_deadline(), channel.handle_timer(9.0)) == (
        0,
        None,
        [],
    )


def test_frames_above_an_acknowledgement_are_retransmitted():
    channel = OrderedChannel(8)
    frames = sent(channel, 3)
    channel.receive_ack(FrameAck(3), rtt=None, now=0.1)
    assert channel.next_deadline() == 0.1 + FIRST_RETRY
    assert channel.handle_timer(0.1 + FIRST_RETRY) == frames[2:]


def test_old_acknowledgement_changes_nothing():
    channel = OrderedChannel(8)
    sent(channel, 3)
    channel.receive_ack(FrameAck(2), rtt=None, now=0.1)
    channel.receive_ack(FrameAck(2), rtt=None, now=0.15)
    assert (channel.pending_count, channel.next_deadline()) == (2, 0.1 + FIRST_RETRY)


def test_timeout_follows_the_round_trip_within_bounds():
    waits = []
    for rtt in (None, 0.0, 0.001, 0.1, 30.0):
        channel = OrderedChannel(8)
        sent(channel, 2)
        channel.receive_ack(FrameAck(2), rtt, now=0.0)
        waits.append(channel.next_deadline())
    assert waits == [FIRST_RETRY, RETRY_MIN, RETRY_MIN, 0.4, RETRY_MAX]


def test_progress_resets_the_interval():
    channel = OrderedChannel(8)
    sent(channel, 2)
    channel.handle_timer(0.2)
    channel.handle_timer(0.6)
    channel.receive_ack(FrameAck(2), rtt=0.1, now=1.0)
    assert channel.next_deadline() == 1.4


def test_frames_reported_missing_are_retransmitted_at_once():
    channel = OrderedChannel(8)
    frames = sent(channel, 5)
    again = channel.receive_ack(FrameAck(2, missing=(2, 4, 2, 9)), rtt=0.1, now=0.1)
    assert again == [frames[1], frames[3]]


def test_frames_that_may_be_in_flight_are_not_retransmitted():
    channel = OrderedChannel(8)
    sent(channel, 2, now=0.0)
    assert channel.receive_ack(FrameAck(1, missing=(1,)), rtt=0.1, now=0.09) == []
    assert channel.receive_ack(FrameAck(1, missing=(1,)), rtt=None, now=0.04) == []


def test_retransmitted_frames_may_be_in_flight_too():
    channel = OrderedChannel(8)
    frames = sent(channel, 2)
    misses = FrameAck(1, missing=(1,))
    times = [channel.receive_ack(misses, rtt=0.1, now=now) for now in (0.1, 0.15, 0.2)]
    assert times == [frames[:1], [], frames[:1]]


def test_feigned_round_trip_of_zero_does_not_multiply_retransmissions():
    channel = OrderedChannel(8)
    frames = sent(channel, 2)
    misses = FrameAck(1, missing=(1,))
    times = (0.0, PAUSE_MIN / 2, PAUSE_MIN, 2 * PAUSE_MIN, 3 * PAUSE_MIN)
    found = [channel.receive_ack(misses, rtt=0.0, now=now) for now in times]
    assert found == [frames[:1], [], frames[:1], [], frames[:1]]


def test_missing_frame_is_retransmitted_when_its_pause_ends():
    channel = OrderedChannel(8)
    frames = sent(channel, 3)
    misses = FrameAck(1, missing=(1, 2))
    assert channel.receive_ack(misses, rtt=0.0001, now=0.0001) == frames[:2]
    assert channel.receive_ack(misses, rtt=0.0001, now=0.0005) == []
    assert channel.next_deadline() == 0.0001 + PAUSE_MIN
    assert channel.handle_timer(0.0006) == []
    assert channel.receive_ack(FrameAck(2, missing=(2,)), rtt=0.0001, now=0.0007) == []
    assert channel.handle_timer(0.0001 + PAUSE_MIN) == frames[1:2]
    assert channel.next_deadline() == 0.0007 + RETRY_MIN


def test_only_the_oldest_frames_can_be_reported_missing():
    channel = OrderedChannel(4_096)
    frames = sent(channel, 3_000)
    attack = FrameAck(1, missing=(1, MISSING_SPAN, MISSING_SPAN + 1, 3_000))
    assert channel.receive_ack(attack, rtt=0.0, now=0.0) == [frames[0], frames[MISSING_SPAN - 1]]


def test_attacker_causes_few_retransmissions():
    channel = OrderedChannel(4_096)
    sent(channel, 4_000)
    count_sent = 0
    for step in range(10_000):
        missing = tuple(range(1, MISSING_SPAN + 1))
        count_sent += len(channel.receive_ack(FrameAck(1, missing), rtt=0.0, now=step / 1_000))
    assert count_sent < MISSING_SPAN * 16


def test_frame_retransmitted_by_timeout_counts_as_in_flight():
    channel = OrderedChannel(8)
    frames = sent(channel, 2)
    assert channel.handle_timer(0.2) == frames
    assert channel.receive_ack(FrameAck(1, missing=(1,)), rtt=0.1, now=0.25) == []


def test_channel_overflows_with_too_many_unacknowledged_frames():
    channel = OrderedChannel(2)
    sent(channel, 2)
    assert not channel.has_overflowed
    sent(channel, 1)
    assert channel.has_overflowed


# ---------------------------------------------------------------- receiving


def test_frame_in_order_is_accepted_and_acknowledged():
    channel = OrderedChannel(8)
    assert channel.receive_frame(numbered(1)) == ([Goodbye("frame 1")], FrameAck(2))


def test_out_of_order_frame_waits():
    channel = OrderedChannel(8)
    assert channel.receive_frame(numbered(2)) == ([], FrameAck(1, missing=(1,)))
    assert channel.pending_count == 1
    ready = [Goodbye("frame 1"), Goodbye("frame 2")]
    assert channel.receive_frame(numbered(1)) == (ready, FrameAck(3))
    assert channel.pending_count == 0


def test_acknowledgement_names_what_is_missing_below_early_frames():
    channel = OrderedChannel(8)
    channel.receive_frame(numbered(3))
    assert channel.receive_frame(numbered(6)) == ([], FrameAck(1, missing=(1, 2, 4, 5)))
    assert channel.receive_frame(numbered(1)) == (
        [Goodbye("frame 1")],
        FrameAck(2, missing=(2, 4, 5)),
    )


def test_acknowledgement_names_only_the_next_of_many_missing():
    channel = OrderedChannel(1_000)
    missing = tuple(range(1, 1 + MISSING_SPAN))
    assert channel.receive_frame(numbered(900)) == ([], FrameAck(1, missing))


def test_duplicate_is_acknowledged_again_and_not_accepted():
    channel = OrderedChannel(8)
    channel.receive_frame(numbered(1))
    assert channel.receive_frame(numbered(1)) == ([], FrameAck(2))


def test_frame_too_far_ahead_is_not_kept():
    channel = OrderedChannel(2)
    assert channel.receive_frame(numbered(3)) == ([], FrameAck(1))
    assert channel.pending_count == 0


def test_next_expected_frame_always_fits():
    channel = OrderedChannel(2)
    for early in (4, 3, 2):
        channel.receive_frame(numbered(early))
    ready = [Goodbye("frame 1"), Goodbye("frame 2")]
    assert channel.receive_frame(numbered(1)) == (ready, FrameAck(3))


# ---------------------------------------------------------------- two channels, unreliable link


class Pair:
    """Two channels, and the datagrams between them that the test may lose, copy and reorder."""

    def __init__(self, windows: tuple[int, int]) -> None:
        self.channels = [OrderedChannel(size) for size in windows]
        self.sent: list[list[OrderedFrame]] = [[], []]
        self.taken: list[list[OrderedFrame]] = [[], []]
        self.flying: list[tuple[int, SequencedFrame | FrameAck]] = []
        self.now = 0.0

    def send(self, side: int) -> None:
        frame = Goodbye(f"from {side}: {len(self.sent[side])}")
        self.sent[side].append(frame)
        self.flying.append((1 - side, self.channels[side].assign_sequence(frame, self.now)))

    def deliver(self, place: int, keep: bool = False) -> None:
        side, datagram = self.flying[place] if keep else self.flying.pop(place)
        channel = self.channels[side]
        if isinstance(datagram, FrameAck):
            again = channel.receive_ack(datagram, 0.1, self.now)
            self.flying += [(1 - side, frame) for frame in again]
            return
        ready, acknowledgement = channel.receive_frame(datagram)
        self.taken[side] += ready
        self.flying.append((1 - side, acknowledgement))

    def wait(self) -> bool:
        dues = [due for channel in self.channels if (due := channel.next_deadline()) is not None]
        if not dues:
            return False
        self.now = min(dues)
        for side, channel in enumerate(self.channels):
            self.flying += [(1 - side, frame) for frame in channel.handle_timer(self.now)]
        return True

    def settle(self) -> None:
        while self.flying or self.wait():
            assert self.now < 1_000
            while self.flying:
                self.deliver(0)


faults = st.sampled_from(["send 0", "send 1", "deliver", "lose", "copy", "wait"])
windows = st.sampled_from([(64, 64), (1, 64), (2, 3)])


@settings(max_examples=150)
@given(windows, st.lists(st.tuples(faults, st.integers(0, 63)), max_size=60))
def test_every_frame_arrives_once_and_in_order_over_any_wire(windows, steps):
    pair = Pair(windows)
    for step, draw in steps:
        place = draw % len(pair.flying) if pair.flying else 0
        match step, bool(pair.flying):
            case "send 0", _:
                pair.send(0)
            case "send 1", _:
                pair.send(1)
            case "wait", _:
                pair.wait()
            case "deliver" | "copy", True:
                pair.deliver(place, keep=step == "copy")
            case "lose", True:
                del pair.flying[place]
        assert all(
            taken == sent[: len(taken)]
            for taken, sent in zip(pair.taken, reversed(pair.sent), strict=True)
        )
    pair.settle()
    assert pair.taken == [pair.sent[1], pair.sent[0]]
    assert [channel.pending_count for channel in pair.channels] == [0, 0]


# ---------------------------------------------------------------- time to recover


def time_to_deliver(seed: int, burst: int, loss: float, delay: float) -> float:
    """Return the time until a burst of frames has arrived over a link with loss and delay."""
    rng, order = random.Random(seed), count()
    sender, receiver = OrderedChannel(4_096), OrderedChannel(4_096)
    flying: list[tuple[float, int, SequencedFrame | FrameAck]] = []

    def transmit(datagrams: list[SequencedFrame] | list[FrameAck], now: float) -> None:
        for each in datagrams:
            if rng.random() >= loss:
                heapq.heappush(flying, (now + delay * (1 + rng.random() / 2), next(order), each))

    transmit(sent(sender, burst), 0.0)
    arrived, now = 0, 0.0
    while arrived < burst:
        due = sender.next_deadline()
        assert due is not None
        if not flying or due < flying[0][0]:
            now = due
            transmit(sender.handle_timer(now), now)
            continue
        now, _, datagram = heapq.heappop(flying)
        if isinstance(datagram, FrameAck):
            transmit(sender.receive_ack(datagram, 2 * delay, now), now)
        else:
            ready, acknowledgement = receiver.receive_frame(datagram)
            arrived += len(ready)
            transmit([acknowledgement], now)
    return now


def test_lost_frames_are_repaired_within_few_round_trips():
    """In virtual time: a round trip of 0.4 ms, and one of five datagrams is lost."""
    assert median(time_to_deliver(seed, 64, 0.2, 0.0002) for seed in range(31)) < 0.01
    assert median(time_to_deliver(seed, 300, 0.2, 0.0002) for seed in range(31)) < 0.04
