"""When to request a new announcement of a core, and which requests to forward."""

from hansa.protocol.model import NodeId
from hansa.protocol.routing.mesh.announcement_request import AnnouncementRequests
from hansa.protocol.settings import ProtocolSettings

CORE, OTHER = NodeId(1), NodeId(2)


def requests() -> AnnouncementRequests:
    return AnnouncementRequests(
        ProtocolSettings(announcement_interval_min=0.5, announcement_request_interval_max=4.0)
    )


# ---------------------------------------------------------------- own requests


def test_nothing_is_requested_at_first():
    made = requests()
    assert (made.pop_due(100.0), made.next_deadline()) == ([], None)


def test_lost_route_is_requested_at_once():
    made = requests()
    made.request_now(CORE, 10.0)
    assert (made.next_deadline(), made.pop_due(10.0)) == (10.0, [CORE])


def test_request_is_repeated_at_growing_intervals():
    made = requests()
    made.request_now(CORE, 10.0)
    asked: list[float] = []
    while len(asked) < 7:
        due = made.next_deadline()
        assert due is not None
        assert made.pop_due(due) == [CORE]
        asked.append(due)
    assert asked == [10.0, 10.5, 11.5, 13.5, 17.5, 21.5, 25.5]


def test_request_is_not_sent_early():
    made = requests()
    made.request_now(CORE, 10.0)
    made.pop_due(10.0)
    assert made.pop_due(10.25) == []


def test_expected_route_is_awaited():
    made = requests()
    made.request_later(CORE, 10.0)
    assert (made.pop_due(13.75), made.pop_due(14.0), made.next_deadline()) == ([], [CORE], 18.0)


def test_refused_announcement_is_requested_once_even_with_a_route():
    made = requests()
    made.request_once(CORE, 10.0)
    made.cancel([CORE])
    assert (made.next_deadline(), made.pop_due(13.75)) == (14.0, [])
    assert (made.pop_due(14.0), made.next_deadline()) == ([CORE], None)


def test_core_is_requested_once_for_two_reasons():
    made = requests()
    made.request_once(CORE, 10.0)
    made.request_later(CORE, 10.0)
    assert made.pop_due(14.0) == [CORE]


def test_next_deadline_is_that_of_the_first_request():
    made = requests()
    made.request_later(CORE, 10.0)
    made.request_now(OTHER, 11.0)
    assert made.next_deadline() == 11.0


def test_expecting_a_route_does_not_delay_a_request():
    made = requests()
    made.request_now(CORE, 10.0)
    made.request_later(CORE, 10.0)
    assert made.next_deadline() == 10.0


def test_found_route_is_not_requested_again():
    made = requests()
    made.request_now(CORE, 10.0)
    made.request_now(OTHER, 11.0)
    made.cancel([CORE])
    made.cancel([CORE])
    assert (made.next_deadline(), made.pop_due(11.0)) == (11.0, [OTHER])


# ---------------------------------------------------------------- requests of others


def test_first_request_is_forwarded():
    assert requests().should_forward(CORE, (1, 1), 10.0)


def test_same_request_of_another_node_is_not_forwarded():
    made = requests()
    made.should_forward(CORE, (1, 7), 10.0)
    assert not made.should_forward(CORE, (1, 7), 10.25)
    assert not made.should_forward(CORE, (1, 6), 10.25)


def test_request_with_a_newer_stamp_is_forwarded():
    made = requests()
    made.should_forward(CORE, (1, 7), 10.0)
    assert made.should_forward(CORE, (1, 8), 10.25)


def test_same_request_is_forwarded_again_after_a_while():
    made = requests()
    made.should_forward(CORE, (1, 7), 10.0)
    assert made.should_forward(CORE, (1, 7), 10.5)


def test_requests_for_different_cores_are_independent():
    made = requests()
    made.should_forward(CORE, (1, 7), 10.0)
    assert made.should_forward(OTHER, (1, 7), 10.0)


def test_expired_core_is_requested_again():
    made = requests()
    made.should_forward(CORE, (1, 7), 10.0)
    made.expire_node(CORE)
    made.expire_node(CORE)
    assert made.should_forward(CORE, (1, 6), 10.0)
