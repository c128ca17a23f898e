"""Mesh membership of a node."""

from hansa.protocol.model import NodeId
from hansa.protocol.routing.mesh.members import MeshMembers

A, B, C = NodeId(1), NodeId(2), NodeId(3)


def membership() -> MeshMembers:
    return MeshMembers(linger=0.5)


def member(*parents: NodeId) -> MeshMembers:
    made = membership()
    made.update_group("g", True, parents, 10.0)
    return made


# ---------------------------------------------------------------- children


def test_joining_child_is_a_change_once():
    made = membership()
    assert made.update_child(A, ["g", "h"], []) == ["g", "h"]
    assert made.update_child(A, ["g"], []) == []
    assert made.children("g") == {A: None}


def test_leaving_child_is_a_change_once():
    made = membership()
    made.update_child(A, ["g"], [])
    made.update_child(B, ["g"], [])
    assert made.update_child(A, [], ["g"]) == ["g"]
    assert made.update_child(A, [], ["g"]) == []
    assert made.children("g") == {B: None}


def test_unknown_child_that_leaves_is_no_change():
    assert membership().update_child(A, [], ["g"]) == []


def test_group_without_children_has_none():
    made = membership()
    made.update_child(A, ["g"], [])
    made.update_child(A, [], ["g"])
    assert made.children("g") == {}


# ---------------------------------------------------------------- parents


def test_new_member_notifies_its_parents():
    assert membership().update_group("g", True, (A, B), 10.0) == ([A, B], True)


def test_member_notifies_each_parent_once():
    made = member(A)
    assert made.update_group("g", True, (A, B), 11.0) == ([B], False)
    assert made.notified_parents == {"g": {A: None, B: None}}


def test_core_has_no_parent_to_notify():
    made = membership()
    assert made.update_group("g", True, (), 10.0) == ([], True)
    assert (made.member_groups, made.notified_parents) == ({"g": None}, {})


def test_non_member_notifies_no_parent():
    made = membership()
    assert made.update_group("g", False, (A, B), 10.0) == ([], False)
    assert (made.member_groups, made.notified_parents, made.next_deadline()) == ({}, {}, None)


# ---------------------------------------------------------------- leaving


def test_member_without_a_reason_leaves_at_once_but_notifies_after_the_linger():
    made = member(A)
    assert made.update_group("g", False, (A,), 11.0) == ([], True)
    assert (made.member_groups, made.next_deadline(), made.pop_due_leaves(11.25)) == ({}, 11.5, [])
    assert made.pop_due_leaves(11.5) == [(A, "g")]
    assert (made.notified_parents, made.next_deadline()) == ({}, None)


def test_former_parent_stays_notified_for_the_linger():
    made = member(A)
    assert made.update_group("g", True, (B,), 11.0) == ([B], False)
    assert made.notified_parents == {"g": {A: None, B: None}}
    assert made.pop_due_leaves(11.5) == [(A, "g")]
    assert made.notified_parents == {"g": {B: None}}


def test_next_deadline_is_that_of_the_first_to_leave():
    made = member(A, B)
    made.update_group("g", True, (B,), 11.0)
    made.update_group("g", True, (), 11.25)
    assert made.next_deadline() == 11.5


def test_repeated_update_does_not_prolong_the_linger():
    made = member(A)
    made.update_group("g", False, (A,), 11.0)
    made.update_group("g", False, (A,), 11.25)
    assert made.next_deadline() == 11.5


def test_member_that_returns_within_the_linger_never_left():
    made = member(A)
    made.update_group("g", False, (A,), 11.0)
    assert made.update_group("g", True, (A,), 11.25) == ([], True)
    assert (made.pop_due_leaves(99.0), made.next_deadline()) == ([], None)


# ---------------------------------------------------------------- neighbours lost


def test_lost_neighbour_is_removed_as_child():
    made = membership()
    made.update_child(A, ["g", "h"], [])
    made.update_child(B, ["g"], [])
    assert made.remove_neighbour(A) == ["g", "h"]
    assert (made.children("g"), made.children("h")) == ({B: None}, {})


def test_lost_parent_is_notified_again_when_it_returns():
    made = member(A, B)
    made.remove_neighbour(A)
    assert made.update_group("g", True, (A, B), 11.0) == ([A], False)


def test_groups_of_a_lost_parent_must_be_updated():
    made = member(A, B)
    assert made.remove_neighbour(A) == ["g"]
    assert made.notified_parents == {"g": {B: None}}


def test_lost_parent_is_not_notified_of_leaving():
    made = member(A)
    made.update_group("g", False, (), 11.0)
    assert made.remove_neighbour(A) == ["g"]
    assert (made.pop_due_leaves(99.0), made.next_deadline(), made.notified_parents) == (
        [],
        None,
        {},
    )


def test_lost_parent_and_child_is_reported_once():
    made = member(A)
    made.update_child(A, ["g"], [])
    assert made.remove_neighbour(A) == ["g"]


def test_lost_unrelated_neighbour_is_no_change():
    made = member(A)
    made.update_child(B, ["g"], [])
    assert made.remove_neighbour(C) == []


def test_groups_of_a_child_are_counted():
    membership = MeshMembers(0.5)
    membership.update_child(NodeId(2), ("a", "b", "b"), ())
    assert membership.child_group_count(NodeId(2)) == 2
    membership.update_child(NodeId(2), (), ("a", "x"))
    assert membership.child_group_count(NodeId(2)) == 1
    membership.remove_neighbour(NodeId(2))
    assert membership.child_group_count(NodeId(2)) == 0
