"""Who has this node's interest in force, and the letters by which nodes say so."""

from hansa.protocol.effects import Ignored
from hansa.protocol.interest.acks import ENTRIES_PER_FRAME_MAX, Installation, Post
from hansa.protocol.model import HOPS_MAX, NodeId
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import Confirm, Confirmation, Enquire

ME, A, B = NodeId(1), NodeId(2), NodeId(3)
ALL: dict[NodeId, None] = {ME: None, A: None, B: None}

# ---------------------------------------------------------------- installation


def installation(*confirmed: NodeId) -> Installation:
    """Version 4 of an interest is new since 10 s."""
    made = Installation(ME, ProtocolSettings(confirm_patience=2.0))
    made.renew((1, 4), 10.0)
    for node in confirmed:
        made.confirm(node, (1, 4))
    return made


def test_without_interest_there_is_nothing_to_confirm():
    made = Installation(ME, ProtocolSettings())
    assert (made.complete, made.check(ALL, 10.0), made.ask_due) == (True, False, None)


def test_a_new_interest_is_not_installed():
    assert not installation().complete


def test_it_is_installed_when_everybody_in_reach_has_confirmed_it_and_that_is_news_once():
    made = installation(A, B)
    assert (made.check(ALL, 11.0), made.complete, made.ask_due) == (True, True, None)
    assert not made.check(ALL, 11.0)


def test_one_that_has_not_confirmed_is_enough():
    made = installation(A)
    assert (made.check(ALL, 11.0), made.complete) == (False, False)


def test_who_is_out_of_reach_does_not_count_in_either_direction():
    made = installation(A, NodeId(9))
    assert not made.check(ALL, 11.0)
    assert made.check({ME: None, A: None}, 11.0)


def test_alone_everything_is_installed():
    assert installation().check({ME: None}, 11.0)


def test_the_confirmation_of_another_version_does_not_count():
    made = installation(A)
    made.confirm(B, (1, 3))
    assert not made.check(ALL, 11.0)


def test_a_newer_interest_must_be_confirmed_anew():
    made = installation(A, B)
    made.check(ALL, 11.0)
    made.renew((1, 5), 12.0)
    assert (made.stamp, made.check(ALL, 12.0)) == ((1, 5), False)


def test_who_starts_anew_must_confirm_anew():
    made = installation(A, B)
    made.check(ALL, 11.0)
    made.doubt(A)
    assert (made.check(ALL, 12.0), made.complete) == (False, False)
    made.confirm(A, (1, 4))
    assert made.check(ALL, 13.0)


def test_who_is_silent_is_asked_ever_less_often():
    made = installation(A)
    assert (made.ask_due, made.ask(ALL, 11.0)) == (12.0, [])
    assert (made.ask(ALL, 12.0), made.ask_due) == ([B], 16.0)
    assert (made.ask(ALL, 16.0), made.ask_due) == ([B], 24.0)


def test_nobody_is_asked_when_all_have_confirmed():
    made = installation(A, B)
    made.check(ALL, 11.0)
    assert made.ask(ALL, 99.0) == []


def test_a_node_that_comes_later_has_its_time_to_confirm():
    made = installation(A, B)
    made.check(ALL, 11.0)
    assert not made.check({**ALL, NodeId(4): None}, 20.0)
    assert made.ask_due == 22.0
    assert made.ask({**ALL, NodeId(4): None}, 22.0) == [4]


# ---------------------------------------------------------------- letters


def confirmation(to: int, node: int = 1, version: int = 1, hops: int = 0) -> Confirmation:
    return Confirmation(NodeId(to), 1, version, NodeId(node), 1, 1, hops)


def post(*letters: Confirmation | Enquire) -> Post:
    """Letters that came at 10 s."""
    made = Post(delay=0.5)
    for letter in letters:
        made.put(letter, 10.0)
    return made


def by_tens(to: NodeId) -> NodeId | None:
    """Nodes from 10 to 19 are reached by node 1, and so on; none above 99."""
    return NodeId(to // 10) if to < 100 else None


NOTHING: tuple[list[object], list[object]] = ([], [])


def test_without_letters_nothing_leaves():
    assert (post().flush(by_tens, 99.0), post().due) == (NOTHING, None)


def test_letters_wait_for_a_moment():
    made = post(confirmation(10))
    made.put(confirmation(11), 10.25)
    assert (made.due, made.flush(by_tens, 10.25)) == (10.5, NOTHING)


def test_letters_with_the_same_next_hop_share_a_frame():
    made = post(confirmation(10), confirmation(20), confirmation(11))
    letters = [
        (1, Confirm((confirmation(10), confirmation(11)))),
        (2, Confirm((confirmation(20),))),
    ]
    assert made.flush(by_tens, 10.5) == (letters, [])
    assert (made.flush(by_tens, 99.0), made.due) == (NOTHING, None)


def test_of_two_confirmations_between_the_same_nodes_the_newer_leaves():
    made = post(confirmation(10, version=1), confirmation(10, version=2))
    assert made.flush(by_tens, 10.5) == ([(1, Confirm((confirmation(10, version=2),)))], [])


def test_an_enquiry_has_a_frame_of_its_own():
    enquiry = Enquire(NodeId(20), NodeId(10), 3)
    assert post(enquiry).flush(by_tens, 10.5) == ([(2, enquiry)], [])


def test_letters_to_nodes_out_of_reach_are_dropped_and_counted():
    made = post(confirmation(100, hops=1), Enquire(NodeId(100), NodeId(10), 1))
    assert made.flush(by_tens, 10.5) == ([], [Ignored("letter without a way")] * 2)


def test_own_letters_to_nodes_out_of_reach_are_written_again():
    made = post(confirmation(100), Enquire(NodeId(100), NodeId(10), 0))
    assert made.flush(by_tens, 10.5) == NOTHING


def test_letters_that_have_travelled_too_far_are_dropped_and_counted():
    made = post(confirmation(10, hops=HOPS_MAX), Enquire(NodeId(10), NodeId(20), HOPS_MAX))
    assert made.flush(by_tens, 10.5) == ([], [Ignored("letter past the hop limit")] * 2)
    assert made.due is None


def test_a_frame_holds_a_bounded_number_of_letters():
    letters = [confirmation(10, node) for node in range(ENTRIES_PER_FRAME_MAX + 1)]
    frames = [frame for _, frame in post(*letters).flush(by_tens, 10.5)[0]]
    assert frames == [Confirm(tuple(letters[:-1])), Confirm(tuple(letters[-1:]))]
