"""When a node speaks as a core."""

from hansa.protocol.routing.mesh.announcer import Announcer
from hansa.protocol.settings import ProtocolSettings


def pulpit() -> Announcer:
    return Announcer(ProtocolSettings(announcement_interval_min=0.5, management_claim_delay=2.0))


# ---------------------------------------------------------------- announcing


def test_a_silent_core_has_nothing_to_say():
    made = pulpit()
    assert (made.is_due(100.0), made.next_deadline()) == (False, None)


def test_the_first_announcement_is_made_at_once():
    made = pulpit()
    made.schedule_announcement(10.0)
    assert (made.is_due(10.0), made.next_deadline()) == (True, 10.0)


def test_announcements_count_from_one():
    made = pulpit()
    assert [made.start_announcement(10.0), made.start_announcement(11.0), made.seq] == [1, 2, 2]


def test_having_spoken_there_is_nothing_left_to_say():
    made = pulpit()
    made.schedule_announcement(10.0)
    made.start_announcement(10.0)
    assert (made.is_due(100.0), made.next_deadline()) == (False, None)


def test_the_next_announcement_keeps_the_gap():
    made = pulpit()
    made.start_announcement(10.0)
    made.schedule_announcement(10.25)
    assert (made.is_due(10.25), made.next_deadline(), made.is_due(10.5)) == (False, 10.5, True)


def test_what_comes_up_meanwhile_does_not_put_it_off():
    made = pulpit()
    made.start_announcement(10.0)
    made.schedule_announcement(10.25)
    made.schedule_announcement(99.0)
    assert made.next_deadline() == 10.5


def test_silence_is_counted_from_the_last_announcement():
    made = pulpit()
    assert made.is_silent_since(0.0)
    made.start_announcement(10.0)
    assert (made.is_silent_since(9.75), made.is_silent_since(10.0)) == (False, True)


# ---------------------------------------------------------------- leading the management group


def test_the_best_node_leads_once_news_has_settled():
    made = pulpit()
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


def test_news_of_nodes_puts_the_lead_off():
    made = pulpit()
    made.update_management_core(True, 10.0)
    made.update_management_core(True, 11.0)
    assert made.next_deadline() == 13.0


def test_who_leads_already_does_not_begin_anew():
    made = pulpit()
    made.update_management_core(True, 10.0)
    made.claim_management_if_due(12.0)
    made.update_management_core(True, 20.0)
    assert (made.claim_management_if_due(99.0), made.next_deadline()) == (False, None)


def test_a_better_node_ends_the_lead():
    made = pulpit()
    made.update_management_core(True, 10.0)
    made.claim_management_if_due(12.0)
    made.update_management_core(False, 20.0)
    assert (made.is_management_core, made.claim_management_if_due(99.0)) == (False, False)


def test_a_better_node_ends_the_wait():
    made = pulpit()
    made.update_management_core(True, 10.0)
    made.update_management_core(False, 11.0)
    assert (made.claim_management_if_due(99.0), made.next_deadline()) == (False, None)


def test_the_earlier_of_announcement_and_lead_is_the_deadline():
    made = pulpit()
    made.update_management_core(True, 10.0)
    made.schedule_announcement(11.0)
    assert made.next_deadline() == 11.0
