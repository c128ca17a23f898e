"""Links: sessions, frames, cuts. Hosts are stand-ins that record received events."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from hansa.protocol.events import FrameReceived, LinkClosed, LinkOpened
from hansa.protocol.model import LinkId
from hansa.simulator.options import LinkOptions
from hansa.simulator.world.network import LinkEnd, Network
from hansa.simulator.world.scheduler import Scheduler

DELAY = 0.001
ONE_SECOND_REDIAL = (1.0, 1.0)


@dataclass
class Host:
    """A machine with an agent that sends nothing."""

    place: int
    is_powered: bool = True
    is_listening: bool = True
    is_frozen: bool = False
    link_ends: dict[LinkId, LinkEnd] = field(default_factory=dict)
    seen: list[tuple[float, object]] = field(default_factory=list)
    links: int = 0

    def new_link_id(self) -> LinkId:
        self.links += 1
        return LinkId(self.links)


class Pair:
    """Two hosts with one link of 1 ms, redialled after exactly one second."""

    def __init__(self, **options):
        self.scheduler = Scheduler()
        options = {"delay_ms": 1.0, "redial_wait_s": ONE_SECOND_REDIAL, **options}
        self.network = Network(LinkOptions(**options), 7, self.scheduler, self._note)
        self.a, self.b = Host(0), Host(1)
        self.network.add_link(self.a, self.b)
        self.link = self.network.links[0, 1]

    def _note(self, machine, event):
        machine.seen.append((round(self.scheduler.now, 6), event))

    def run(self, until):
        self.scheduler.run_until(until)

    def open(self):
        """Wait until the session is open; drop the events so far."""
        self.run(self.scheduler.now + 0.01)
        self.a.seen.clear()
        self.b.seen.clear()

    def send(self, host, *frames):
        (end,) = host.link_ends.values()
        for frame in frames:
            self.network.send(end, frame)


def received(link: int, frame: Any) -> FrameReceived:
    """Return the event of a made-up frame: the network does not interpret frames."""
    return FrameReceived(LinkId(link), frame)


def frames_of(host):
    return [event.frame for _, event in host.seen if isinstance(event, FrameReceived)]


def test_smaller_place_dials_and_connects_in_one_round_trip():
    pair = Pair()
    pair.run(0.1)
    assert pair.a.seen == [(0.002, LinkOpened(LinkId(1), dialled=True, ordered=True))]
    assert pair.b.seen == [(0.003, LinkOpened(LinkId(1), dialled=False, ordered=True))]


def test_frame_takes_the_delay():
    pair = Pair()
    pair.open()
    pair.send(pair.a, "hello")
    pair.run(0.1)
    assert pair.b.seen == [(0.011, received(1, "hello"))]


def test_link_may_have_its_own_delay():
    pair = Pair(delays_ms=((1, 0, 5.0),))
    pair.run(0.1)
    assert pair.a.seen == [(0.01, LinkOpened(LinkId(1), dialled=True, ordered=True))]


def test_stream_keeps_order_with_jitter():
    pair = Pair(jitter_ms=50.0)
    pair.run(1.0)
    pair.send(pair.a, *range(100))
    pair.run(2.0)
    assert frames_of(pair.b) == list(range(100))


def test_datagrams_are_lost_duplicated_and_reordered():
    pair = Pair(loss=0.2, duplicate=0.2, reorder=0.2)
    pair.run(1.0)
    pair.send(pair.a, *range(1000))
    pair.run(2.0)
    got = frames_of(pair.b)
    assert 150 < 1000 - len(set(got)) < 250
    assert len(got) > len(set(got))
    assert got != sorted(got)
    assert pair.b.seen[0][1] == LinkOpened(LinkId(1), dialled=False, ordered=False)


def test_the_same_seed_loses_the_same_frames():
    def arrivals():
        pair = Pair(loss=0.5)
        pair.run(1.0)
        pair.send(pair.a, *range(100))
        pair.run(2.0)
        return pair.b.seen

    assert arrivals() == arrivals()


def test_cut_loses_frames_in_flight_and_is_reported():
    pair = Pair(close_delay_ms=3.0)
    pair.open()
    pair.send(pair.a, "lost")
    pair.network.abort_sessions(pair.link, "connection cut")
    pair.run(0.1)
    closed = [(0.013, LinkClosed(LinkId(1), "connection cut"))]
    assert (pair.a.seen, pair.b.seen) == (closed, closed)


def test_ended_session_is_redialled_with_new_ids():
    pair = Pair()
    pair.open()
    pair.network.abort_sessions(pair.link, "connection cut")
    pair.run(2.0)
    assert [event for _, event in pair.a.seen][-1] == LinkOpened(LinkId(2), dialled=True)
    assert list(pair.a.link_ends) == list(pair.b.link_ends) == [2]


def test_stream_retransmits_after_silent_cut():
    pair = Pair()
    pair.open()
    pair.send(pair.a, "in flight")
    pair.network.cut_direction(pair.link.a_to_b)
    pair.send(pair.a, "held")
    pair.run(1.0)
    assert pair.b.seen == []
    pair.send(pair.b, "the other way works")
    pair.network.restore_direction(pair.link.a_to_b)
    pair.send(pair.a, "after")
    pair.run(2.0)
    assert frames_of(pair.b) == ["in flight", "held", "after"]
    assert frames_of(pair.a) == ["the other way works"]


def test_datagrams_lost_in_a_cut_are_not_resent():
    pair = Pair(reorder=0.01)
    pair.open()
    pair.network.cut_direction(pair.link.a_to_b)
    pair.send(pair.a, "gone")
    pair.run(1.0)
    pair.network.restore_direction(pair.link.a_to_b)
    pair.run(2.0)
    assert pair.b.seen == []


@pytest.mark.parametrize("direction", ["a_to_b", "b_to_a"])
def test_nothing_connects_while_either_direction_is_cut(direction):
    pair = Pair()
    pair.network.cut_direction(getattr(pair.link, direction))
    pair.run(5.0)
    assert pair.a.seen == pair.b.seen == []
    pair.network.restore_direction(getattr(pair.link, direction))
    pair.run(7.0)
    assert len(pair.a.link_ends) == len(pair.b.link_ends) == 1


def test_close_arrives_after_earlier_frames():
    pair = Pair()
    pair.open()
    pair.send(pair.a, "goodbye")
    pair.network.close_end(next(iter(pair.a.link_ends.values())))
    pair.run(0.1)
    assert [event for _, event in pair.b.seen] == [
        received(1, "goodbye"),
        LinkClosed(LinkId(1), "connection closed"),
    ]
    assert pair.a.seen == []


def test_close_of_datagram_link_may_be_lost():
    pair = Pair(reorder=0.01)
    pair.open()
    pair.network.cut_direction(pair.link.a_to_b)
    pair.network.close_end(next(iter(pair.a.link_ends.values())))
    pair.run(0.1)
    assert pair.b.seen == []
    pair.network.restore_direction(pair.link.a_to_b)
    pair.send(pair.b, "still there?")  # whoever does not know the session says that it is closed
    pair.run(0.2)
    assert [event for _, event in pair.b.seen] == [LinkClosed(LinkId(1), "connection closed")]


@pytest.mark.parametrize("silent", ["is_listening", "is_frozen"])
def test_stopped_agent_answers_no_datagram(silent):
    pair = Pair(reorder=0.01)
    pair.open()
    pair.network.close_all_ends(pair.a, notify_peers=True)
    setattr(pair.a, silent, silent == "is_frozen")
    pair.send(pair.b, "still there?")
    pair.run(0.1)
    assert pair.b.seen == []


def test_killed_agent_closes_its_connections():
    pair = Pair()
    pair.open()
    pair.b.is_listening = False
    pair.network.close_all_ends(pair.b, notify_peers=True)
    pair.run(0.5)
    assert [event for _, event in pair.a.seen] == [LinkClosed(LinkId(1), "connection closed")]


def test_powered_off_machine_is_silent_and_resets_after_return():
    pair = Pair()
    pair.open()
    pair.b.is_listening = pair.b.is_powered = False
    pair.network.close_all_ends(pair.b, notify_peers=False)
    pair.send(pair.a, "into the void")
    pair.run(0.5)
    assert pair.a.seen == []
    pair.b.is_listening = pair.b.is_powered = True
    pair.send(pair.a, "anybody?")
    pair.run(0.6)
    assert [event for _, event in pair.a.seen] == [LinkClosed(LinkId(1), "connection reset")]


def test_reset_does_not_overtake_earlier_frames():
    pair = Pair(jitter_ms=50.0)
    pair.run(1.0)
    pair.a.seen.clear()
    pair.send(pair.a, "still talking")
    pair.send(pair.b, "goodbye")
    pair.network.close_end(next(iter(pair.b.link_ends.values())))
    pair.run(1.2)
    assert frames_of(pair.a) == ["goodbye"]
    assert isinstance(pair.a.seen[-1][1], LinkClosed)


def test_suspended_agent_accepts_but_does_not_dial():
    pair = Pair()
    pair.a.is_frozen = True
    pair.run(3.0)
    assert pair.b.seen == []
    pair.a.is_frozen, pair.b.is_frozen = False, True
    pair.run(6.0)
    assert len(pair.b.link_ends) == 1


def test_removed_link_is_closed_and_not_redialled():
    pair = Pair()
    pair.open()
    pair.network.remove_link(pair.link)
    pair.run(9.0)
    assert [event for _, event in pair.a.seen] == [LinkClosed(LinkId(1), "link removed")]
    assert pair.network.find_link(1, 0) is None
