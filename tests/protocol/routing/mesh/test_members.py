"""Who belongs to the mesh of a group."""

from hansa.protocol.model import NodeId
from hansa.protocol.routing.mesh.members import Membership

A, B, C = NodeId(1), NodeId(2), NodeId(3)


def membership() -> Membership:
    return Membership(linger=0.5)


def member(*parents: NodeId) -> Membership:
    made = membership()
    made.settle("g", True, parents, 10.0)
    return made


# ---------------------------------------------------------------- children


def test_a_child_that_joins_is_new_once():
    made = membership()
    assert made.note_child(A, ["g", "h"], []) == ["g", "h"]
    assert made.note_child(A, ["g"], []) == []
    assert made.children("g") == {A: None}


def test_a_child_that_leaves_is_gone_once():
    made = membership()
    made.note_child(A, ["g"], [])
    made.note_child(B, ["g"], [])
    assert made.note_child(A, [], ["g"]) == ["g"]
    assert made.note_child(A, [], ["g"]) == []
    assert made.children("g") == {B: None}


def test_a_stranger_that_leaves_is_no_news():
    assert membership().note_child(A, [], ["g"]) == []


def test_a_group_without_children_has_none():
    made = membership()
    made.note_child(A, ["g"], [])
    made.note_child(A, [], ["g"])
    assert made.children("g") == {}


# ---------------------------------------------------------------- parents


def test_a_new_member_tells_its_parents():
    assert membership().settle("g", True, (A, B), 10.0) == ([A, B], True)


def test_a_member_tells_each_parent_once():
    made = member(A)
    assert made.settle("g", True, (A, B), 11.0) == ([B], False)
    assert made.told == {"g": {A: None, B: None}}


def test_the_core_has_nobody_to_tell():
    made = membership()
    assert made.settle("g", True, (), 10.0) == ([], True)
    assert (made.members, made.told) == ({"g": None}, {})


def test_who_is_no_member_tells_nobody():
    made = membership()
    assert made.settle("g", False, (A, B), 10.0) == ([], False)
    assert (made.members, made.told, made.next_deadline()) == ({}, {}, None)


# ---------------------------------------------------------------- leaving


def test_a_member_without_a_reason_leaves_at_once_but_tells_after_the_linger():
    made = member(A)
    assert made.settle("g", False, (A,), 11.0) == ([], True)
    assert (made.members, made.next_deadline(), made.leave(11.25)) == ({}, 11.5, [])
    assert made.leave(11.5) == [(A, "g")]
    assert (made.told, made.next_deadline()) == ({}, None)


def test_a_parent_that_is_none_any_more_stays_told_for_the_linger():
    made = member(A)
    assert made.settle("g", True, (B,), 11.0) == ([B], False)
    assert made.told == {"g": {A: None, B: None}}
    assert made.leave(11.5) == [(A, "g")]
    assert made.told == {"g": {B: None}}


def test_the_next_deadline_is_that_of_the_first_to_leave():
    made = member(A, B)
    made.settle("g", True, (B,), 11.0)
    made.settle("g", True, (), 11.25)
    assert made.next_deadline() == 11.5


def test_settling_again_does_not_prolong_the_linger():
    made = member(A)
    made.settle("g", False, (A,), 11.0)
    made.settle("g", False, (A,), 11.25)
    assert made.next_deadline() == 11.5


def test_who_comes_back_within_the_linger_never_left():
    made = member(A)
    made.settle("g", False, (A,), 11.0)
    assert made.settle("g", True, (A,), 11.25) == ([], True)
    assert (made.leave(99.0), made.next_deadline()) == ([], None)


# ---------------------------------------------------------------- neighbours lost


def test_a_lost_neighbour_is_no_child_any_more():
    made = membership()
    made.note_child(A, ["g", "h"], [])
    made.note_child(B, ["g"], [])
    assert made.lose_neighbour(A) == ["g", "h"]
    assert (made.children("g"), made.children("h")) == ({B: None}, {})


def test_a_lost_parent_is_told_anew_when_it_comes_back():
    made = member(A, B)
    made.lose_neighbour(A)
    assert made.settle("g", True, (A, B), 11.0) == ([A], False)


def test_the_groups_of_a_lost_parent_must_be_settled_anew():
    made = member(A, B)
    assert made.lose_neighbour(A) == ["g"]
    assert made.told == {"g": {B: None}}


def test_a_lost_parent_need_not_be_left():
    made = member(A)
    made.settle("g", False, (), 11.0)
    assert made.lose_neighbour(A) == ["g"]
    assert (made.leave(99.0), made.next_deadline(), made.told) == ([], None, {})


def test_a_lost_parent_and_child_is_reported_once():
    made = member(A)
    made.note_child(A, ["g"], [])
    assert made.lose_neighbour(A) == ["g"]


def test_a_lost_stranger_is_no_news():
    made = member(A)
    made.note_child(B, ["g"], [])
    assert made.lose_neighbour(C) == []


def test_the_groups_of_a_child_are_counted():
    membership = Membership(0.5)
    membership.note_child(NodeId(2), ("a", "b", "b"), ())
    assert membership.held_by(NodeId(2)) == 2
    membership.note_child(NodeId(2), (), ("a", "x"))
    assert membership.held_by(NodeId(2)) == 1
    membership.lose_neighbour(NodeId(2))
    assert membership.held_by(NodeId(2)) == 0
