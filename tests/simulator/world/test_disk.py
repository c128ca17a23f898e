"""The model disk: synced writes survive a crash, and nothing else."""

from hansa.protocol.delivery.state import RestoredState
from hansa.protocol.effects import ReadJournal
from hansa.protocol.membership.records import InterestRecord
from hansa.protocol.model import NodeId, Publication
from hansa.simulator.world.disk import (
    AcceptedWrite,
    CompletedWrite,
    InboxWrite,
    OutboxWrite,
    PeerWrite,
    SessionLostWrite,
    SimulatedDisk,
)

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
OTHERS = Publication(TWO, 5, 9, 2, "a", b"")
WANTS = InterestRecord(TWO, 1, 1, 1, ("a",), ())


def kept(number, *receivers, epoch=1, size=10):
    previous = tuple((to, number - 1) for to in receivers)
    item = Publication(ONE, epoch, number, 1, "a", b"x" * size, previous=previous)
    return OutboxWrite(item, packet_id=100 + number)


def journal(count, journal_max=100):
    """Return a disk with every publication for node 2 and every second one for node 3."""
    disk = SimulatedDisk(journal_max)
    disk.epoch = 1
    for number in range(1, count + 1):
        disk.write(kept(number, *((TWO, THREE) if number % 2 == 0 else (TWO,))))
    disk.sync()
    return disk


def found(recalled):
    return [item.sequence for item in recalled.publications]


def test_one_sync_for_all_earlier_writes():
    disk = SimulatedDisk()
    assert [disk.write(kept(1, TWO)), disk.write(kept(2, TWO))] == [True, False]
    assert disk.sync() == [kept(1, TWO), kept(2, TWO)]
    assert disk.write(kept(3, TWO))


def test_unsynced_writes_are_lost_in_a_crash():
    disk = journal(2)
    disk.write(kept(3, TWO))
    disk.write(InboxWrite(OTHERS, 1))
    disk.write(PeerWrite(1, TWO, (WANTS,)))
    disk.crash()
    assert disk.sync() == []
    assert disk.restored_state(2) == RestoredState(
        1, 3, {TWO: 2, THREE: 2}, unheard_since={TWO: 3, THREE: 3}
    )
    assert (disk.peers_restored().records, list(disk.journaled_packets)) == ((), [101, 102])


def test_synced_writes_are_restored():
    disk = journal(3)
    disk.write(InboxWrite(OTHERS, 1))
    disk.write(PeerWrite(1, TWO, (WANTS,)))
    disk.sync()
    disk.crash()
    assert disk.restored_state(2) == RestoredState(
        1, 4, {TWO: 3, THREE: 2}, {TWO: (5, 9)}, unheard_since={TWO: 4, THREE: 4}
    )
    assert disk.peers_restored().records == (WANTS,)


def test_ended_lease_keeps_only_receive_progress():
    disk = journal(3)
    disk.write(InboxWrite(OTHERS, 1))
    disk.write(PeerWrite(1, TWO, (WANTS,)))
    disk.write(PeerWrite(2, TWO, ()))
    disk.sync()
    assert disk.restored_state(2) == RestoredState(
        1, 4, {THREE: 2}, {TWO: (5, 9)}, unheard_since={THREE: 4}
    )
    assert disk.peers_restored().records == ()


def test_read_returns_publications_after_the_known_position():
    disk = journal(6)
    assert found(disk.read_journal(ReadJournal(TWO, 1, 2, 5, 1_000))) == [3, 4, 5]
    assert found(disk.read_journal(ReadJournal(THREE, 1, 2, 6, 1_000))) == [4, 6]
    assert found(disk.read_journal(ReadJournal(TWO, 7, 0, 6, 1_000))) == []


def test_full_journal_drops_the_oldest_and_reports_it():
    disk = journal(6, journal_max=4)
    assert found(disk.read_journal(ReadJournal(TWO, 1, 0, 6, 1_000))) == [3, 4, 5, 6]
    assert disk.trimmed_upto == (1, 2)
    assert disk.restored_state(2).last_assigned == {TWO: 6, THREE: 6}


def test_new_epoch_contains_unacknowledged_publications():
    disk = journal(3)
    disk.write(kept(4, TWO))
    moved = disk.start_epoch(9, {TWO: 2, THREE: 3})
    assert [(each.publication.sequence, each.publication.previous) for each in moved] == [
        (1, ()),
        (2, ()),
        (3, ((TWO, 0),)),
        (4, ((TWO, 3),)),
    ]
    assert [each.packet_id for each in moved] == [0, 0, 0, kept(4, TWO).packet_id]
    assert disk.restored_state(2) == RestoredState(9, 5, {TWO: 4}, unheard_since={TWO: 5})
    assert found(disk.read_journal(ReadJournal(TWO, 9, 0, 4, 1_000))) == [3, 4]


def test_part_of_unsynced_writes_may_survive_a_crash():
    disk = journal(1)
    disk.write(kept(2, TWO))
    disk.write(kept(3, TWO))
    disk.crash(surviving_fraction=0.5)
    assert (disk.restored_state(2).next_seq, list(disk.journaled_packets)) == (3, [101, 102])
    assert [disk.has_packet(packet) for packet in (102, 103)] == [True, False]


def test_inbox_holds_publications_until_completed():
    disk = SimulatedDisk()
    for _ in range(2):
        disk.write(disk.assign_index(OTHERS))
    disk.sync()
    disk.write(AcceptedWrite(1))
    disk.write(CompletedWrite(2))
    assert (list(disk.inbox), list(disk.accepted_by_broker)) == ([1, 2], [])
    disk.sync()
    assert (list(disk.inbox), list(disk.accepted_by_broker)) == ([1], [1])
    disk.write(SessionLostWrite())
    disk.sync()
    assert (list(disk.inbox), list(disk.accepted_by_broker)) == ([1], [])
    disk.mark_completed(1)
    disk.crash()
    assert list(disk.inbox) == [1]
    disk.mark_completed(1)
    disk.sync()
    assert list(disk.inbox) == []
    disk.write(AcceptedWrite(1))  # said twice, and the second time too late
    disk.sync()
    assert list(disk.accepted_by_broker) == []


def test_unsynced_index_is_assigned_again():
    disk = SimulatedDisk()
    disk.write(disk.assign_index(OTHERS))
    disk.sync()
    disk.write(disk.assign_index(OTHERS))
    disk.crash()
    assert disk.assign_index(OTHERS).index == 2


def test_copy_is_equal_and_independent():
    disk = journal(3)
    twin = disk.copy()
    assert twin.restored_state(2) == disk.restored_state(2)
    disk.write(kept(4, TWO))
    disk.sync()
    assert twin.restored_state(2).next_seq == 4
    assert found(twin.read_journal(ReadJournal(TWO, 1, 0, 9, 1_000))) == [1, 2, 3]


def test_empty_journal_starts_a_new_epoch_at_every_start():
    disk = SimulatedDisk()
    assert disk.restored_state(40) == RestoredState(40)
    assert disk.copy().restored_state(50) == RestoredState(50)
    assert disk.restored_state(3) == RestoredState(41)
    disk.write(kept(1, TWO, epoch=41))
    disk.sync()
    assert disk.restored_state(60).epoch == 41
