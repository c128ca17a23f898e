"""A channel by example, and two of them over a wire that loses, copies and reorders."""

from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.protocol.links.ordering import AGAIN_MAX, MISSING_SPAN, RETRY_MAX, RETRY_MIN, Channel
from hansa.protocol.wire.frames import Acknowledge, Goodbye, Numbered, Ordered

FIRST_RETRY = 4 * RETRY_MIN


def numbered(number: int) -> Numbered:
    return Numbered(number, Goodbye(f"frame {number}"))


def sent(channel: Channel, count: int, now: float = 0.0) -> list[Numbered]:
    return [channel.number(Goodbye(f"frame {n + 1}"), now) for n in range(count)]


# ---------------------------------------------------------------- sending


def test_frames_are_numbered_from_one():
    assert sent(Channel(8), 3) == [numbered(1), numbered(2), numbered(3)]


def test_a_new_channel_has_nothing_to_do():
    channel = Channel(8)
    assert (channel.waiting, channel.overflowed) == (0, False)
    assert (channel.next_deadline(), channel.fire(9.0)) == (None, [])


def test_the_oldest_of_what_stays_unacknowledged_are_sent_again():
    channel = Channel(64)
    frames = sent(channel, AGAIN_MAX + 1, now=1.0)
    assert channel.next_deadline() == 1.0 + FIRST_RETRY
    assert channel.fire(1.0 + FIRST_RETRY) == frames[:AGAIN_MAX]


def test_nothing_is_sent_again_before_its_time():
    channel = Channel(8)
    sent(channel, 1, now=1.0)
    assert channel.fire(1.0 + FIRST_RETRY - 0.001) == []


def test_a_later_frame_does_not_put_off_the_first():
    channel = Channel(8)
    sent(channel, 1, now=1.0)
    sent(channel, 1, now=1.1)
    assert channel.next_deadline() == 1.0 + FIRST_RETRY


def test_retries_slow_down_to_a_bound():
    channel = Channel(8)
    sent(channel, 1)
    waits, now = [], 0.0
    for _ in range(6):
        due = channel.next_deadline()
        assert due is not None
        waits.append(round(due - now, 6))
        now = due
        assert len(channel.fire(now)) == 1
    assert waits == [0.2, 0.4, 0.8, 1.6, RETRY_MAX, RETRY_MAX]


def test_an_acknowledgement_ends_the_waiting():
    channel = Channel(8)
    sent(channel, 3)
    assert channel.acknowledge(Acknowledge(4), rtt=None, now=0.1) == []
    assert (channel.waiting, channel.next_deadline(), channel.fire(9.0)) == (0, None, [])


def test_what_an_acknowledgement_leaves_is_sent_again():
    channel = Channel(8)
    frames = sent(channel, 3)
    channel.acknowledge(Acknowledge(3), rtt=None, now=0.1)
    assert channel.next_deadline() == 0.1 + FIRST_RETRY
    assert channel.fire(0.1 + FIRST_RETRY) == frames[2:]


def test_an_old_acknowledgement_changes_nothing():
    channel = Channel(8)
    sent(channel, 3)
    channel.acknowledge(Acknowledge(2), rtt=None, now=0.1)
    channel.acknowledge(Acknowledge(2), rtt=None, now=0.15)
    assert (channel.waiting, channel.next_deadline()) == (2, 0.1 + FIRST_RETRY)


def test_retries_follow_the_round_trip_within_bounds():
    waits = []
    for rtt in (None, 0.0, 0.001, 0.1, 30.0):
        channel = Channel(8)
        sent(channel, 2)
        channel.acknowledge(Acknowledge(2), rtt, now=0.0)
        waits.append(channel.next_deadline())
    assert waits == [FIRST_RETRY, RETRY_MIN, RETRY_MIN, 0.4, RETRY_MAX]


def test_progress_ends_the_slowing_down():
    channel = Channel(8)
    sent(channel, 2)
    channel.fire(0.2)
    channel.fire(0.6)
    channel.acknowledge(Acknowledge(2), rtt=0.1, now=1.0)
    assert channel.next_deadline() == 1.4


def test_what_the_other_side_misses_is_sent_again_at_once():
    channel = Channel(8)
    frames = sent(channel, 5)
    again = channel.acknowledge(Acknowledge(2, missing=(2, 4, 2, 9)), rtt=0.1, now=0.1)
    assert again == [frames[1], frames[3]]


def test_what_may_still_be_on_its_way_is_not_sent_again():
    channel = Channel(8)
    sent(channel, 2, now=0.0)
    assert channel.acknowledge(Acknowledge(1, missing=(1,)), rtt=0.1, now=0.09) == []
    assert channel.acknowledge(Acknowledge(1, missing=(1,)), rtt=None, now=0.04) == []


def test_what_was_sent_again_may_be_on_its_way_too():
    channel = Channel(8)
    frames = sent(channel, 2)
    misses = Acknowledge(1, missing=(1,))
    times = [channel.acknowledge(misses, rtt=0.1, now=now) for now in (0.1, 0.15, 0.2)]
    assert times == [frames[:1], [], frames[:1]]


def test_a_copy_sent_when_due_counts_as_on_its_way():
    channel = Channel(8)
    frames = sent(channel, 2)
    assert channel.fire(0.2) == frames
    assert channel.acknowledge(Acknowledge(1, missing=(1,)), rtt=0.1, now=0.25) == []


def test_a_channel_overflows_when_too_much_waits():
    channel = Channel(2)
    sent(channel, 2)
    assert not channel.overflowed
    sent(channel, 1)
    assert channel.overflowed


# ---------------------------------------------------------------- receiving


def test_a_frame_in_its_turn_is_taken_and_acknowledged():
    channel = Channel(8)
    assert channel.accept(numbered(1)) == ([Goodbye("frame 1")], Acknowledge(2))


def test_an_early_frame_waits_for_its_turn():
    channel = Channel(8)
    assert channel.accept(numbered(2)) == ([], Acknowledge(1, missing=(1,)))
    assert channel.waiting == 1
    ready = [Goodbye("frame 1"), Goodbye("frame 2")]
    assert channel.accept(numbered(1)) == (ready, Acknowledge(3))
    assert channel.waiting == 0


def test_an_acknowledgement_names_what_is_missing_below_early_frames():
    channel = Channel(8)
    channel.accept(numbered(3))
    assert channel.accept(numbered(6)) == ([], Acknowledge(1, missing=(1, 2, 4, 5)))
    assert channel.accept(numbered(1)) == ([Goodbye("frame 1")], Acknowledge(2, missing=(2, 4, 5)))


def test_an_acknowledgement_names_only_the_next_of_many_missing():
    channel = Channel(1_000)
    missing = tuple(range(1, 1 + MISSING_SPAN))
    assert channel.accept(numbered(900)) == ([], Acknowledge(1, missing))


def test_a_copy_is_acknowledged_again_and_not_taken():
    channel = Channel(8)
    channel.accept(numbered(1))
    assert channel.accept(numbered(1)) == ([], Acknowledge(2))


def test_a_frame_too_far_ahead_is_not_kept():
    channel = Channel(2)
    assert channel.accept(numbered(3)) == ([], Acknowledge(1))
    assert channel.waiting == 0


def test_the_frame_whose_turn_it_is_always_fits():
    channel = Channel(2)
    for early in (4, 3, 2):
        channel.accept(numbered(early))
    ready = [Goodbye("frame 1"), Goodbye("frame 2")]
    assert channel.accept(numbered(1)) == (ready, Acknowledge(3))


# ---------------------------------------------------------------- two channels and a bad wire


class Pair:
    """Two channels, and the datagrams between them that the test may lose, copy and reorder."""

    def __init__(self, windows: tuple[int, int]) -> None:
        self.channels = [Channel(size) for size in windows]
        self.sent: list[list[Ordered]] = [[], []]
        self.taken: list[list[Ordered]] = [[], []]
        self.flying: list[tuple[int, Numbered | Acknowledge]] = []
        self.now = 0.0

    def send(self, side: int) -> None:
        frame = Goodbye(f"from {side}: {len(self.sent[side])}")
        self.sent[side].append(frame)
        self.flying.append((1 - side, self.channels[side].number(frame, self.now)))

    def deliver(self, place: int, keep: bool = False) -> None:
        side, datagram = self.flying[place] if keep else self.flying.pop(place)
        channel = self.channels[side]
        if isinstance(datagram, Acknowledge):
            again = channel.acknowledge(datagram, 0.1, self.now)
            self.flying += [(1 - side, frame) for frame in again]
            return
        ready, acknowledgement = channel.accept(datagram)
        self.taken[side] += ready
        self.flying.append((1 - side, acknowledgement))

    def wait(self) -> bool:
        dues = [due for channel in self.channels if (due := channel.next_deadline()) is not None]
        if not dues:
            return False
        self.now = min(dues)
        for side, channel in enumerate(self.channels):
            self.flying += [(1 - side, frame) for frame in channel.fire(self.now)]
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
    assert [channel.waiting for channel in pair.channels] == [0, 0]
