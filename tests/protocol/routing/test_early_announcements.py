"""Announcements that arrive before the record of their core."""

from hansa.protocol.membership.records import ClaimsRecord
from hansa.protocol.model import NodeId
from hansa.protocol.routing.early_announcements import EarlyAnnouncements
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import CoreAnnouncement

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


def announce(core: int, sequence: int = 1) -> CoreAnnouncement:
    return CoreAnnouncement(NodeId(core), 1, sequence, 0)


def test_newest_announcement_of_each_sender_waits_for_the_record():
    early = EarlyAnnouncements(ProtocolSettings())
    claims = ClaimsRecord(NodeId(9), 1, 1, 0, ("g",))
    assert early.put(ONE, CoreAnnouncement(NodeId(9), 1, 1, 0, (), claims))
    assert early.put(TWO, announce(9, 2))
    assert early.put(TWO, announce(9, 3))
    assert early.put(ONE, announce(8))
    assert early.pop_known([THREE]) == []
    assert early.pop_known([NodeId(9)]) == [(ONE, announce(9)), (TWO, announce(9, 3))]
    assert len(early) == 1


def test_each_sender_and_all_together_have_a_bound():
    early = EarlyAnnouncements(ProtocolSettings(nodes_max=2))
    assert [early.put(ONE, announce(core)) for core in (7, 8, 9)] == [True, True, False]
    assert early.put(ONE, announce(7, 2))
    assert [early.put(TWO, announce(core)) for core in (7, 8)] == [True, True]
    assert not early.put(THREE, announce(7))
    assert early.pop_known([NodeId(7)]) == [(ONE, announce(7, 2)), (TWO, announce(7))]
    assert early.put(THREE, announce(7))


def test_refused_cores_are_returned_once():
    early = EarlyAnnouncements(ProtocolSettings(nodes_max=2))
    for core in (5, 6, 7, 8):
        early.put(ONE, announce(core))
    assert early.pop_refused([NodeId(5), NodeId(8)]) == [NodeId(8)]
    assert early.pop_refused([NodeId(8)]) == []
    assert early.pop_refused([NodeId(7)]) == [NodeId(7)]


def test_number_of_refused_cores_has_a_bound():
    early = EarlyAnnouncements(ProtocolSettings(nodes_max=1))
    for core in (5, 6, 7, 8):
        early.put(ONE, announce(core))
    assert early.pop_refused(map(NodeId, range(10))) == [NodeId(6), NodeId(7)]


def test_announcements_of_a_lost_neighbour_are_dropped():
    early = EarlyAnnouncements(ProtocolSettings())
    early.put(ONE, announce(7))
    early.put(ONE, announce(8))
    early.put(TWO, announce(8))
    early.remove_neighbour(THREE)
    early.remove_neighbour(ONE)
    assert early.pop_known([NodeId(7), NodeId(8)]) == [(TWO, announce(8))]
    assert not early
