"""The outbox by example; the rules are tested in test_spec_delivery.py."""

from msgspec.structs import replace

from hansa.protocol.clock import AHEAD_MAX_MS, WallClock
from hansa.protocol.delivery.outbox import (
    AHEAD_OF_NEW_EPOCH,
    ROLLOVER_PAUSE_MAX_S,
    ROLLOVER_PAUSE_S,
    Outbox,
)
from hansa.protocol.effects import (
    DeliveryAbandoned,
    EpochRolloverRequired,
    Ignored,
    PersistProgressReport,
    ReadJournal,
)
from hansa.protocol.events import ClientPublished, EpochStarted, JournalRead
from hansa.protocol.model import RECEIVERS_MAX, NodeId
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import PendingNotice, Receipt, RepairResponse

ME, OTHER, THIRD = NodeId(1), NodeId(2), NodeId(3)


def outbox(count: int = 0) -> Outbox:
    """An outbox with so many committed publications for the other node."""
    made = Outbox(ME, ProtocolSettings(repair_retry_interval=1.0), WallClock(1))
    for _ in range(count):
        made.assign_position(ClientPublished("t", b"", qos=1), (OTHER,))
    made.mark_committed(1, count, now=0.0)
    return made


def receipt(sequence: int, bytes_requested: int = 0, epoch: int = 1) -> Receipt:
    return Receipt(OTHER, OTHER, epoch, sequence, sequence, bytes_requested)


def test_receipt_without_pending_publications_is_ignored():
    assert outbox().receive_receipt(receipt(1), 1, 0.0) == [
        Ignored("receipt from a node with nothing pending")
    ]


class CountingId(int):
    """A node id that counts comparisons."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountingId.comparisons += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_cost_of_a_publication_grows_with_its_receivers_not_with_their_square():
    made = outbox()
    crowd = tuple(NodeId(CountingId(number)) for number in range(10, 10 + 2 * RECEIVERS_MAX))
    made.assign_position(ClientPublished("t", b"", qos=1), crowd)
    (publication,) = made.mark_committed(1, 1, now=0.0)
    assert [node for node, _ in publication.receivers] == [*crowd[:RECEIVERS_MAX]]
    assert CountingId.comparisons < 10 * len(crowd)


def test_receipt_of_an_older_epoch_is_answered_with_the_present_one():
    assert outbox(2).receive_receipt(receipt(9, epoch=0), 1, 0.0) == [
        PendingNotice(OTHER, ME, 1, 2)
    ]


def test_receipt_of_a_newer_epoch_starts_a_higher_one():
    assert outbox(2).receive_receipt(receipt(9, epoch=7), 1, 0.0) == [EpochRolloverRequired(8)]


def test_new_epoch_begins_when_its_journal_exists():
    made = outbox(2)
    made.assign_position(ClientPublished("t", b"", qos=1), (OTHER,))  # not committed yet
    assert made.receive_receipt(receipt(1), 1, 0.0) == []
    assert made.acknowledged == {OTHER: 1}
    assert made.receive_receipt(receipt(9, epoch=7), 1, 0.0) == [EpochRolloverRequired(8)]
    assert made.mark_committed(1, 3, now=0.0) == [], (
        "it does not leave at a position that was used before"
    )
    assert made.receive_receipt(receipt(9, epoch=7), 1, 0.0) == []
    assert made.next_deadline() is None
    made.start_epoch(EpochStarted(8, 3, ((OTHER, 2), (THIRD, 1))), now=1.0)
    assert made.mark_committed(1, 9, now=1.0) == [], "that was the old journal"
    assert (made.next_position, made.acknowledged, list(made.receivers)) == ((8, 3), {}, [OTHER])
    assert made.handle_timer(1.0) == [PendingNotice(OTHER, ME, 8, 2)]
    made.assign_position(ClientPublished("t", b"anew", qos=1), (OTHER,))
    (anew,) = made.mark_committed(8, 3, 0.0)
    assert (anew.epoch, anew.sequence, anew.receivers) == (8, 3, ((OTHER, 2),))


def test_no_new_epoch_starts_soon_after_another():
    made = outbox(2)
    made.receive_receipt(receipt(9, epoch=7), 1, 0.0)
    made.start_epoch(EpochStarted(8, 1, ()), now=1.0)
    ahead = receipt(9, epoch=8)
    soon = [Ignored(f"{AHEAD_OF_NEW_EPOCH}: {OTHER:016x}")]
    assert made.receive_receipt(ahead, 1, ROLLOVER_PAUSE_S) == soon
    assert made.receive_receipt(ahead, 1, 1.0 + ROLLOVER_PAUSE_S) == [EpochRolloverRequired(9)]


def test_time_between_epochs_doubles_up_to_a_day():
    """A dishonest receiver can claim positions that do not exist, whenever it wants."""
    made, now = outbox(2), 0.0
    made.receive_receipt(receipt(9, epoch=7), 1, now)
    soon = [Ignored(f"{AHEAD_OF_NEW_EPOCH}: {OTHER:016x}")]
    for turn in range(15):
        epoch = 8 + turn
        made.start_epoch(EpochStarted(epoch, 1, ()), now)
        now += min(ROLLOVER_PAUSE_S * 2**turn, ROLLOVER_PAUSE_MAX_S)
        assert made.receive_receipt(receipt(9, epoch=epoch), 1, now - 1.0) == soon
        assert made.receive_receipt(receipt(9, epoch=epoch), 1, now) == [
            EpochRolloverRequired(epoch + 1)
        ]


def test_receipt_of_an_epoch_ahead_of_the_clock_is_ignored():
    made = outbox(2)
    last = AHEAD_MAX_MS - 1
    assert made.receive_receipt(receipt(1, epoch=1 + last), 1, 0.0) == [
        Ignored("epoch ahead of the clock")
    ]
    assert made.next_position == (1, 3)
    assert made.receive_receipt(receipt(1, epoch=last), 1, 0.0) == [EpochRolloverRequired(1 + last)]


def test_acknowledgements_of_an_earlier_incarnation_count():
    last_assigned, acknowledged = {OTHER: 7, THIRD: 8}, {OTHER: 4, THIRD: 8}
    made = Outbox(ME, ProtocolSettings(), WallClock(1), 1, 9)
    made.restore(last_assigned, acknowledged, {})
    assert (made.acknowledged_by_all, made.first_pending_before(9), made.acknowledged) == (
        4,
        {OTHER: 5},
        acknowledged,
    )
    assert made.expire_node(OTHER) == [DeliveryAbandoned(OTHER, 1, 5, 7)]
    assert made.expire_node(THIRD) == []


def test_repair_is_limited_by_the_settings():
    made = outbox(3)
    assert made.receive_receipt(receipt(0, bytes_requested=1 << 60), 1, 0.0) == [
        ReadJournal(OTHER, 1, 0, 3, 8 * 65_536)
    ]


def test_repair_response_fits_its_frames_whatever_the_shell_has_read():
    made = outbox()
    made._settings = ProtocolSettings(repair_bytes=150, repair_frames=2)  # noqa: SLF001
    found = [
        made.assign_position(ClientPublished("t", b"x" * 20, qos=1), (OTHER,)) for _ in range(9)
    ]
    responses = made.make_repair_responses(JournalRead(OTHER, 1, 0, 9, tuple(found)), now=0.0)
    shapes = [(each.after, each.upto, each.lost_upto, len(each.publications)) for each in responses]
    assert shapes == [(0, 2, 0, 2), (2, 4, 0, 2)]
    assert [each.more for each in responses] == [True, False]
    large = made.assign_position(ClientPublished("t", b"x" * 500, qos=1), (OTHER,))
    (response,) = made.make_repair_responses(JournalRead(OTHER, 1, 9, 10, (large,)), now=0.0)
    assert isinstance(response, RepairResponse)
    assert (response.after, response.upto, len(response.publications)) == (9, 10, 1)


def test_acknowledged_publications_are_not_sent_again_to_a_receiver_that_lost_its_state():
    made = outbox(3)
    made.receive_receipt(receipt(2), 1, 0.0)
    assert made.receive_receipt(receipt(0, bytes_requested=100), 1, 0.0) == [
        ReadJournal(OTHER, 1, 2, 3, 100)
    ]


def test_receipt_for_everything_ends_reminders():
    made = outbox(2)
    assert made.next_deadline() == 1.0
    made.receive_receipt(receipt(1), 1, now=0.5)
    assert made.next_deadline() == 1.5
    made.receive_receipt(receipt(2), 1, now=0.6)
    assert made.next_deadline() is None


def test_journal_is_read_once_at_a_time_per_receiver():
    made = outbox(2)
    assert made.receive_receipt(receipt(0, bytes_requested=100), 1, 0.0) == [
        ReadJournal(OTHER, 1, 0, 2, 100)
    ]
    assert made.receive_receipt(receipt(0, bytes_requested=100), 1, 0.0) == []


def test_position_acknowledged_by_all_advances():
    made = outbox(3)
    assert made.acknowledged_by_all == 0
    made.receive_receipt(receipt(2), 1, 0.0)
    assert made.acknowledged_by_all == 2
    made.receive_receipt(receipt(3), 1, 0.0)
    assert made.acknowledged_by_all == 3


def test_publication_for_an_expired_node_leaves_for_the_others():
    made = Outbox(ME, ProtocolSettings(), WallClock(1))
    made.assign_position(ClientPublished("t", b"", qos=1), (OTHER, THIRD))
    assert made.expire_node(OTHER) == [DeliveryAbandoned(OTHER, 1, 1, 1)]
    assert made.expire_node(OTHER) == []
    assert [item.sequence for item in made.mark_committed(1, 1, 0.0)] == [1]
    assert list(made.receivers) == [THIRD]


def test_expired_receiver_with_nothing_pending_is_not_reported():
    made = outbox(2)
    made.receive_receipt(receipt(2), 1, 0.0)
    assert made.expire_node(OTHER) == []


def test_first_pending_positions_before_a_position():
    made = outbox(3)
    assert made.first_pending_before(1) == {}
    assert made.first_pending_before(2) == {OTHER: 1}
    made.receive_receipt(receipt(2), 1, 0.0)
    assert (made.first_pending_before(3), made.first_pending_before(4)) == ({}, {OTHER: 3})
    made.receive_receipt(receipt(3), 1, 0.0)
    assert made.first_pending_before(9) == {}
    made.assign_position(ClientPublished("t", b"", qos=1), (THIRD,))
    made.assign_position(ClientPublished("t", b"", qos=1), (OTHER,))
    assert (made.first_pending_before(5), made.first_pending_before(6)) == (
        {THIRD: 4},
        {OTHER: 5, THIRD: 4},
    )


def test_restored_receivers_may_miss_everything_unacknowledged():
    made = Outbox(ME, ProtocolSettings(), WallClock(1), next_sequence=9)
    made.restore({OTHER: 7}, {}, {})
    assert made.first_pending_before(2) == {OTHER: 1}


# ---------------------------------------------------------------- large publications

MEGABYTES = 4


def large_publication() -> tuple[Outbox, JournalRead]:
    """A large pending publication, and what the shell reads when it is requested."""
    made = Outbox(ME, ProtocolSettings(), WallClock(1))
    kept = made.assign_position(ClientPublished("t", bytes(MEGABYTES << 20), qos=1), (OTHER,))
    made.mark_committed(1, 1, now=0.0)
    return made, JournalRead(OTHER, 1, 0, 1, (kept,))


def test_large_publication_delays_the_reminder_by_a_second_per_megabyte():
    made, _ = large_publication()
    assert made.handle_timer(1.0) == []
    assert made.next_deadline() == MEGABYTES
    assert made.handle_timer(MEGABYTES) == [PendingNotice(OTHER, ME, 1, 1)]


def test_acknowledged_large_publication_delays_no_further_reminder():
    made, _ = large_publication()
    for number in (2, 3):
        made.assign_position(ClientPublished("t", b"", qos=1), (OTHER,))
        made.mark_committed(1, number, now=0.5)
    assert made.handle_timer(1.0) == []
    made.receive_receipt(receipt(1), 1, now=1.0)
    assert made.handle_timer(2.0) == [PendingNotice(OTHER, ME, 1, 3)]


def test_large_response_is_not_repeated_while_it_may_be_in_flight():
    made, read = large_publication()
    request = receipt(0, bytes_requested=100)
    assert made.receive_receipt(request, 1, 1.0) == [ReadJournal(OTHER, 1, 0, 1, 100)]
    assert len(made.make_repair_responses(read, 1.0)) == 1
    assert made.receive_receipt(request, 1, 2.0) == []
    assert made.receive_receipt(request, 1, MEGABYTES + 1.0) == [ReadJournal(OTHER, 1, 0, 1, 100)]


def test_reachable_again_receiver_does_not_wait_for_frames_in_flight():
    made, read = large_publication()
    made.receive_receipt(receipt(0, bytes_requested=100), 1, 1.0)
    made.make_repair_responses(read, 1.0)
    made.on_node_reachable(OTHER, 2.0)
    assert made.handle_timer(2.0) == [PendingNotice(OTHER, ME, 1, 1)]
    assert made.receive_receipt(receipt(0, bytes_requested=100), 1, 2.0) == [
        ReadJournal(OTHER, 1, 0, 1, 100)
    ]


# ---------------------------------------------------------------- journal of an earlier incarnation


def resumed(acknowledged: int = 0, unreported_since: int = 5) -> Outbox:
    """The journal of an earlier incarnation has four publications, all for the other node."""
    made = Outbox(ME, ProtocolSettings(repair_retry_interval=1.0), WallClock(1), 1, 5)
    made.restore({OTHER: 4}, {OTHER: acknowledged}, {OTHER: unreported_since})
    return made


def capture(made: Outbox, *receivers: NodeId) -> int:
    """Capture another one for these; return how many receivers it leaves for."""
    publication = made.assign_position(ClientPublished("t", b"", qos=1), receivers)
    (ready,) = made.mark_committed(1, publication.sequence, now=0.0)
    assert ready.sequence == publication.sequence
    return len(ready.receivers)


def test_receiver_reports_its_position_before_anything_leaves_for_it():
    made = resumed()
    assert capture(made, OTHER, THIRD) == 0
    assert made.handle_timer(0.0) == [
        PendingNotice(OTHER, ME, 1, 4),
        PendingNotice(THIRD, ME, 1, 4),
    ], "what it may have"
    assert made.receive_receipt(receipt(3, bytes_requested=9), 1, 0.0) == [
        PersistProgressReport(OTHER)
    ]
    assert made.receive_receipt(receipt(4, bytes_requested=9), 1, 0.0) == [], (
        "that is being written"
    )
    assert capture(made, OTHER) == 0
    assert made.mark_reported(OTHER, 0.0) == [ReadJournal(OTHER, 1, 4, 6, 9)]
    assert capture(made, OTHER, THIRD) == 1
    assert made.receive_receipt(replace(receipt(0), source=THIRD), 1, 0.0) == [
        PersistProgressReport(THIRD)
    ]
    assert made.mark_reported(THIRD, 0.0) == [PendingNotice(THIRD, ME, 1, 7)], (
        "it did not know of this one"
    )
    assert capture(made, OTHER, THIRD) == 2
    assert made.mark_reported(THIRD, 0.0) == made.mark_reported(NodeId(9), 0.0) == []


def test_receipt_beyond_what_was_sent_requires_a_rollover():
    made = resumed()
    for _ in range(9):
        assert capture(made, OTHER) == 0
    assert made.receive_receipt(receipt(7, bytes_requested=9), 6, 0.0) == [EpochRolloverRequired(6)]
    assert made.acknowledged == {}, "what it has at these positions is something else"
    made.start_epoch(EpochStarted(6, 10, ((OTHER, 9),)), now=1.0)
    made.assign_position(ClientPublished("t", b"", qos=1), (OTHER,))
    (ready,) = made.mark_committed(6, 10, now=1.0)
    assert ready.receivers == ((OTHER, 9),), "nobody can have anything of the new epoch"


def test_receiver_that_returns_after_its_lease_may_have_earlier_positions():
    made = resumed()
    assert capture(made, OTHER) == 0
    assert made.receive_receipt(receipt(4), 1, 0.0) == [PersistProgressReport(OTHER)]
    assert made.mark_reported(OTHER, 0.0) == [PendingNotice(OTHER, ME, 1, 5)]
    assert made.expire_node(OTHER) == [DeliveryAbandoned(OTHER, 1, 5, 5)]
    assert capture(made, OTHER) == 0
    assert made.receive_receipt(receipt(5), 1, 0.0) == [PersistProgressReport(OTHER)]


def test_incarnations_without_a_report_sent_nothing():
    made = resumed(unreported_since=3)
    assert made.receive_receipt(receipt(3, bytes_requested=9), 6, 0.0) == [EpochRolloverRequired(6)]


def test_reachable_receiver_is_asked_even_if_nothing_is_pending():
    made = resumed(acknowledged=4)
    assert made.next_deadline() is None
    made.on_node_reachable(OTHER, 0.0)
    assert made.handle_timer(0.0) == [PendingNotice(OTHER, ME, 1, 4)]
    assert made.receive_receipt(receipt(4), 1, 0.0) == [PersistProgressReport(OTHER)]
    assert made.mark_reported(OTHER, 0.0) == []
    made.on_node_reachable(OTHER, 0.0)
    assert made.next_deadline() is None


def test_cancelled_reminders_are_removed():
    made = Outbox(ME, ProtocolSettings(repair_retry_interval=1.0), WallClock(1), 1, 1)
    for sequence in range(1, 1_000):
        made.assign_position(ClientPublished("a", b"x", 1), [OTHER])
        made.mark_committed(1, sequence, now=float(sequence))
        made.receive_receipt(
            Receipt(ME, OTHER, 1, sequence - 1, sequence - 1), incarnation=1, now=float(sequence)
        )
    assert made.next_deadline() == 1_000.0
    assert len(made._reminders) < 100  # noqa: SLF001
