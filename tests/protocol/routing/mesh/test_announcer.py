"""When a core announces itself."""

from hansa.protocol.routing.mesh.announcer import Announcer
from hansa.protocol.settings import ProtocolSettings


def announcer() -> Announcer:
    return Announcer(ProtocolSettings(announcement_interval_min=0.5, management_claim_delay=2.0))


# ---------------------------------------------------------------- announcing


def test_no_announcement_is_due_at_first():
    made = announcer()
    assert (made.is_due(100.0), made.next_deadline()) == (False, None)


def test_first_announcement_is_made_at_once():
    made = announcer()
    made.schedule_announcement(10.0)
    assert (made.is_due(10.0), made.next_deadline()) == (True, 10.0)


def test_announcements_count_from_one():
    made = announcer()
    assert [made.start_announcement(10.0), made.start_announcement(11.0), made.sequence] == [
        1,
        2,
        2,
    ]


def test_nothing_is_due_after_an_announcement():
    made = announcer()
    made.schedule_announcement(10.0)
    made.start_announcement(10.0)
    assert (made.is_due(100.0), made.next_deadline()) == (False, None)


def test_next_announcement_keeps_the_interval():
    made = announcer()
    made.start_announcement(10.0)
    made.schedule_announcement(10.25)
    assert (made.is_due(10.25), made.next_deadline(), made.is_due(10.5)) == (False, 10.5, True)


def test_further_changes_do_not_delay_an_announcement():
    made = announcer()
    made.start_announcement(10.0)
    made.schedule_announcement(10.25)
    made.schedule_announcement(99.0)
    assert made.next_deadline() == 10.5


def test_silence_is_counted_from_the_last_announcement():
    made = announcer()
    assert made.is_silent_since(0.0)
    made.start_announcement(10.0)
    assert (made.is_silent_since(9.75), made.is_silent_since(10.0)) == (False, True)


# ---------------------------------------------------------------- management core


def test_best_node_claims_management_after_the_delay():
    made = announcer()
    made.update_management_core(True, 10.0)
    assert (made.claim_management_if_due(11.75), made.next_deadline(), made.is_management_core) == (
        False,
        12.0,
        False,
    )
    assert (made.claim_management_if_due(12.0), made.next_deadline(), made.is_management_core) == (
        True,
        None,
        True,
    )


def test_changes_of_nodes_delay_the_management_claim():
    made = announcer()
    made.update_management_core(True, 10.0)
    made.update_management_core(True, 11.0)
    assert made.next_deadline() == 13.0


def test_management_core_does_not_claim_again():
    made = announcer()
    made.update_management_core(True, 10.0)
    made.claim_management_if_due(12.0)
    made.update_management_core(True, 20.0)
    assert (made.claim_management_if_due(99.0), made.next_deadline()) == (False, None)


def test_better_node_ends_the_management_claim():
    made = announcer()
    made.update_management_core(True, 10.0)
    made.claim_management_if_due(12.0)
    made.update_management_core(False, 20.0)
    assert (made.is_management_core, made.claim_management_if_due(99.0)) == (False, False)


def test_better_node_cancels_the_management_claim():
    made = announcer()
    made.update_management_core(True, 10.0)
    made.update_management_core(False, 11.0)
    assert (made.claim_management_if_due(99.0), made.next_deadline()) == (False, None)


def test_deadline_is_the_earlier_of_announcement_and_management_claim():
    made = announcer()
    made.update_management_core(True, 10.0)
    made.schedule_announcement(11.0)
    assert made.next_deadline() == 11.0
