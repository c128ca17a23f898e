"""Interest of other nodes: subscribing, grants, what is in force and what is persisted."""

from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.protocol.interest import remote as remote_interest
from hansa.protocol.interest.remote import RemoteInterest
from hansa.protocol.membership.records import Stamp
from hansa.protocol.model import NodeId
from hansa.protocol.topics import split_share

A, B = NodeId(1), NodeId(2)


# ---------------------------------------------------------------- subscribing


def test_first_interested_node_causes_a_subscription():
    remote = RemoteInterest()
    assert remote.apply_change(A, ["a", "b"], [], (1, 1)) == (["a", "b"], [])
    assert remote.apply_change(B, ["b", "c"], [], (1, 1)) == (["c"], [])


def test_last_interested_node_that_leaves_causes_an_unsubscription():
    remote = RemoteInterest()
    remote.apply_change(A, ["a", "b"], [], (1, 1))
    remote.apply_change(B, ["b"], [], (1, 1))
    assert remote.apply_change(A, [], ["a", "b"], (1, 2)) == ([], ["a"])
    assert remote.apply_change(B, [], ["b"], (1, 2)) == ([], ["b"])


def test_share_stays_for_the_remaining_node():
    remote = RemoteInterest()
    remote.apply_change(A, ["$share/g/a"], [], (1, 1))
    remote.apply_change(B, ["$share/g/a"], [], (1, 1))
    assert remote.apply_change(A, [], ["$share/g/a"], (1, 2)) == ([], [])
    assert remote.shares_by_filter == {"a": {"$share/g/a": {B: None}}}
    assert remote.apply_change(B, [], ["$share/g/a"], (1, 2)) == ([], ["a"])
    assert not remote.shares_by_filter


def test_only_shares_that_match_a_topic_are_looked_at(monkeypatch):
    remote = RemoteInterest()
    names = [f"$share/{group}/{level}/#" for group in "gh" for level in range(100)]
    remote.apply_change(A, names, [], (1, 1))
    remote.apply_change(B, ["#", "$share/g/7/#"], [], (1, 1))
    split: list[str] = []
    monkeypatch.setattr(remote_interest, "split_share", split.append)
    interest = remote.topic_interest("7/a")
    assert interest == ((B,), {"$share/g/7/#": (A, B), "$share/h/7/#": (A,)})
    assert split == []


def test_share_is_subscribed_once_as_its_plain_filter():
    remote = RemoteInterest()
    assert remote.apply_change(A, ["$share/g/a", "$share/h/a", "a"], [], (1, 1)) == (["a"], [])
    assert remote.apply_change(A, [], ["a", "$share/g/a"], (1, 2)) == ([], [])
    assert remote.apply_change(A, [], ["$share/h/a"], (1, 3)) == ([], ["a"])


def test_plain_filter_that_replaces_a_share_keeps_the_subscription():
    remote = RemoteInterest()
    remote.apply_change(A, ["$share/g/a"], [], (1, 1))
    assert remote.apply_change(A, ["a"], ["$share/g/a"], (1, 2)) == ([], [])


# ---------------------------------------------------------------- in force


def test_interest_is_in_force_when_its_last_filter_is_granted():
    remote = RemoteInterest()
    remote.apply_change(A, ["a", "b"], [], (1, 1))
    remote.mark_granted(["a"])
    assert (remote.in_force, remote.drain_newly_in_force()) == ({}, [])
    remote.mark_granted(["b"])
    assert (remote.in_force, remote.drain_newly_in_force()) == ({A: (1, 1)}, [A])


def test_interest_in_granted_filters_is_in_force_at_once():
    remote = RemoteInterest()
    remote.apply_change(A, ["a"], [], (1, 1))
    remote.mark_granted(["a"])
    remote.apply_change(B, ["a"], [], (3, 9))
    assert remote.in_force == {A: (1, 1), B: (3, 9)}


def test_one_grant_brings_all_waiting_interest_into_force():
    remote = RemoteInterest()
    remote.apply_change(A, ["a"], [], (1, 1))
    remote.apply_change(B, ["a"], [], (1, 2))
    remote.mark_granted(["a"])
    assert (remote.in_force, remote.drain_newly_in_force()) == ({A: (1, 1), B: (1, 2)}, [A, B])


def test_newer_interest_is_not_in_force_before_its_own_filters_are_granted():
    remote = RemoteInterest()
    remote.apply_change(A, ["a"], [], (1, 1))
    remote.mark_granted(["a"])
    remote.apply_change(A, ["b"], ["a"], (1, 2))
    assert remote.in_force == {A: (1, 1)}
    remote.mark_granted(["b"])
    assert remote.in_force == {A: (1, 2)}


def test_removed_ungranted_filter_is_not_waited_for():
    remote = RemoteInterest()
    remote.apply_change(A, ["a", "b"], [], (1, 1))
    remote.mark_granted(["a"])
    remote.apply_change(A, [], ["b"], (1, 2))
    assert remote.in_force == {A: (1, 2)}


def test_unsubscribed_filter_must_be_granted_again():
    remote = RemoteInterest()
    remote.apply_change(A, ["a"], [], (1, 1))
    remote.mark_granted(["a"])
    remote.apply_change(A, [], ["a"], (1, 2))
    remote.apply_change(A, ["a"], [], (1, 3))
    assert (remote.granted, remote.in_force) == ({}, {A: (1, 2)})


def test_unexpected_grants_are_ignored():
    remote = RemoteInterest()
    remote.apply_change(A, ["a", "b"], [], (1, 1))
    remote.mark_granted(["x", "a", "a"])
    assert (remote.granted, remote.in_force) == ({"a": None}, {})


def test_interest_in_force_is_reported_once():
    remote = RemoteInterest()
    remote.apply_change(A, [], [], (1, 1))
    assert [remote.drain_newly_in_force(), remote.drain_newly_in_force()] == [[A], []]


def test_expired_node_leaves_no_state():
    remote = RemoteInterest()
    remote.apply_change(A, ["a", "b", "c"], [], (1, 1))
    remote.apply_change(B, ["b"], [], (1, 1))
    remote.mark_granted(["a", "b", "c"])
    assert remote.expire_node(A, ["a", "b", "c"]) == ["a", "c"]
    assert (remote.nodes_by_filter, remote.in_force) == ({"b": {B: 1}}, {B: (1, 1)})
    assert remote.drain_newly_in_force() == [B]


def test_node_can_expire_before_its_interest_is_in_force():
    remote = RemoteInterest()
    remote.apply_change(A, ["a"], [], (1, 1))
    assert remote.expire_node(A, ["a"]) == ["a"]
    assert (remote.nodes_by_filter, remote.in_force, remote.drain_newly_in_force()) == ({}, {}, [])


remote_filters = st.frozensets(st.sampled_from(["a", "b", "$share/g/a", "$share/g/c"]))
remote_steps = st.one_of(
    st.tuples(st.just("change"), st.sampled_from([A, B]), remote_filters),
    st.tuples(st.just("grant"), st.lists(st.sampled_from(["a", "b", "c"]), max_size=2)),
    st.tuples(st.just("forget"), st.sampled_from([A, B])),
)


class Recount:
    """Reference for a remote interest, recounted each time."""

    def __init__(self) -> None:
        self.remote = RemoteInterest()
        self.interest_of: dict[NodeId, frozenset[str]] = {}
        self.stamps: dict[NodeId, Stamp] = {}
        self.in_force: dict[NodeId, Stamp] = {}
        self.subscribed: set[str] = set()
        self.granted: set[str] = set()

    def plain(self, node: NodeId) -> set[str]:
        return {split_share(name)[1] for name in self.interest_of[node]}

    def change(self, node: NodeId, filters_now: frozenset[str]) -> None:
        had = self.interest_of.get(node, frozenset())
        stamp = (1, self.stamps.get(node, (1, 0))[1] + 1)
        self.interest_of[node], self.stamps[node] = filters_now, stamp
        subscribe, unsubscribe = self.remote.apply_change(
            node, sorted(filters_now - had), sorted(had - filters_now), stamp
        )
        assert self.subscribed.isdisjoint(subscribe)
        self.subscribed.update(subscribe)
        self.drop(unsubscribe)

    def forget(self, node: NodeId) -> None:
        filters = sorted(self.interest_of.pop(node, frozenset()))
        self.in_force.pop(node, None)
        self.drop(self.remote.expire_node(node, filters))

    def drop(self, names: list[str]) -> None:
        assert self.subscribed.issuperset(names)
        self.subscribed.difference_update(names)
        self.granted.intersection_update(self.subscribed)

    def grant(self, names: list[str]) -> None:
        self.remote.mark_granted(names)
        self.granted.update(self.subscribed.intersection(names))

    def check(self) -> None:
        for node in self.interest_of:
            if self.plain(node) <= self.granted:
                self.in_force[node] = self.stamps[node]
        assert self.subscribed == set().union(*map(self.plain, self.interest_of))
        assert self.remote.in_force == self.in_force
        assert set(self.remote.granted) == self.granted


@settings(max_examples=80)
@given(st.lists(remote_steps, max_size=25))
def test_interest_is_in_force_exactly_when_all_of_it_is_granted(steps):
    recount = Recount()
    for name, *arguments in steps:
        getattr(recount, name)(*arguments)
        recount.check()


def test_durable_interest_is_in_force_when_it_is_persisted():
    remote = RemoteInterest(durable=True)
    remote.apply_change(NodeId(1), ("a",), (), (1, 1))
    remote.mark_granted(["a"])
    remote.apply_change(NodeId(2), ("a",), (), (1, 1))
    assert remote.drain_to_persist() == [(1, 1), (2, 2)]
    assert remote.drain_to_persist() == []
    remote.mark_persisted(1)
    assert remote.drain_newly_in_force() == [1]
    remote.expire_node(NodeId(2), ("a",))
    assert remote.drain_to_persist() == [(3, 2)]
    remote.mark_persisted(3)
    assert remote.drain_newly_in_force() == []
    assert remote.receivers("a") == (1,)


def test_last_persisted_node_has_the_newest_change():
    """Otherwise a disk that has saved everything would report the older change."""
    remote = RemoteInterest(durable=True)
    remote.apply_change(NodeId(2), ("a",), (), (1, 1))
    remote.apply_change(NodeId(1), ("a",), (), (1, 1))
    remote.apply_change(NodeId(2), ("b",), (), (1, 2))
    assert remote.drain_to_persist() == [(2, 1), (3, 2)]


def test_receivers_are_correct_whether_or_not_they_were_looked_up_before():
    remote = RemoteInterest()
    remote.apply_change(NodeId(1), ["a", "b"], [], (1, 1))
    remote.apply_change(NodeId(1), [], ["a"], (1, 2))
    assert (remote.receivers("a"), remote.receivers("b")) == ((), (1,))
    remote.apply_change(NodeId(1), ["a"], ["b"], (1, 3))
    assert (remote.receivers("a"), remote.receivers("b")) == ((1,), ())
