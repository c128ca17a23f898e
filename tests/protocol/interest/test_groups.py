"""Groups of filters, and the interested nodes of a group compared with a plain recount."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.protocol.interest.groups import GroupIndex, group_of
from hansa.protocol.model import NodeId
from hansa.protocol.topics import FILTER_BYTES_MAX, FILTER_LEVELS_MAX, covers, split_share

A, B = NodeId(1), NodeId(2)

# ---------------------------------------------------------------- group_of


@pytest.mark.parametrize("topic_filter", ["a", "a/b/c", "a/+/c", "#", "+", "/", "/#"])
def test_without_a_depth_every_filter_is_its_own_group(topic_filter):
    assert group_of(topic_filter, 0) == topic_filter


@pytest.mark.parametrize(
    ("topic_filter", "depth", "group"),
    [
        ("a/b/c/+", 2, "a/b/#"),
        ("a/b/c/d", 2, "a/b/#"),
        ("a/b/#", 2, "a/b/#"),
        ("a/b", 2, "a/b/#"),
        ("a", 2, "a"),
        ("a/#", 2, "a/#"),
        ("a/+", 2, "a/#"),
        ("a/+/c", 2, "a/#"),
        ("+/b/c", 2, "#"),
        ("#", 2, "#"),
        ("+", 3, "#"),
        ("a/b/+", 3, "a/b/#"),
        ("/a/b", 2, "/a/#"),
        ("a", 1, "a/#"),
    ],
)
def test_depth_joins_filters_that_agree_in_their_first_levels(topic_filter, depth, group):
    assert group_of(topic_filter, depth) == group


@pytest.mark.parametrize(("depth", "group"), [(0, "a/b/c"), (1, "a/#"), (9, "a/b/c")])
def test_share_is_in_the_group_of_its_plain_filter(depth, group):
    assert group_of("$share/workers/a/b/c", depth) == group


levels = st.lists(st.sampled_from(["", "a", "b", "+"]), min_size=1, max_size=5)
plain_filters = st.tuples(levels, st.booleans()).map(
    lambda drawn: "/".join([*drawn[0], "#"] if drawn[1] or drawn[0] == [""] else drawn[0])
)
filters = st.one_of(plain_filters, plain_filters.map("$share/g/{}".format))
depths = st.integers(0, 5)


@given(filters, depths)
def test_group_covers_its_filters_and_is_its_own_group(topic_filter, depth):
    group = group_of(topic_filter, depth)
    assert covers(group, split_share(topic_filter)[1])
    assert group_of(group, depth) == group


# ---------------------------------------------------------------- interested nodes


def test_first_filter_of_a_group_is_a_change():
    index = GroupIndex(1)
    assert index.apply_change(A, ["a/x", "a/y", "b"], []) == ["a/#", "b/#"]
    assert index.nodes_by_group == {"a/#": {A: 2}, "b/#": {A: 1}}


def test_further_filters_of_a_group_are_no_change():
    index = GroupIndex(1)
    index.apply_change(A, ["a/x"], [])
    assert index.apply_change(A, ["a/y"], []) == []


def test_interest_of_another_node_is_a_change():
    index = GroupIndex(0)
    index.apply_change(A, ["a"], [])
    assert index.apply_change(B, ["a"], []) == ["a"]
    assert index.nodes_by_group == {"a": {A: 1, B: 1}}


def test_removal_of_the_last_filter_is_a_change():
    index = GroupIndex(1)
    index.apply_change(A, ["a/x", "a/y"], [])
    index.apply_change(B, ["a/x"], [])
    assert index.apply_change(A, [], ["a/x"]) == []
    assert index.apply_change(A, [], ["a/y"]) == ["a/#"]
    assert index.nodes_by_group == {"a/#": {B: 1}}


def test_group_without_interest_is_forgotten():
    index = GroupIndex(0)
    index.apply_change(A, ["a"], [])
    assert index.apply_change(A, [], ["a"]) == ["a"]
    assert index.nodes_by_group == {}


def test_replacing_a_filter_within_a_group_is_no_change():
    index = GroupIndex(1)
    index.apply_change(A, ["a/x"], [])
    assert index.apply_change(A, ["a/y"], ["a/x"]) == []


def test_plain_and_shared_filter_belong_to_the_same_group():
    index = GroupIndex(0)
    index.apply_change(A, ["a", "$share/g/a"], [])
    assert index.apply_change(A, [], ["a"]) == []
    assert index.is_interested("a", A)


def test_only_interested_nodes_are_reported():
    index = GroupIndex(0)
    index.apply_change(A, ["a"], [])
    asked = [("a", A), ("a", B), ("b", A)]
    assert [index.is_interested(group, node) for group, node in asked] == [True, False, False]


wishes = st.frozensets(st.sampled_from(["a", "a/x", "a/+", "$share/g/a", "b/x", "b/y", "#"]))


@settings(max_examples=60)
@given(depths, st.lists(st.tuples(st.sampled_from([A, B]), wishes), max_size=8))
def test_index_is_a_recount_of_all_filters(depth, story):
    index = GroupIndex(depth)
    interest_of: dict[NodeId, frozenset[str]] = {A: frozenset(), B: frozenset()}
    for node, filters in story:
        before = {group_of(name, depth) for name in interest_of[node]}
        after = {group_of(name, depth) for name in filters}
        touched = index.apply_change(
            node, sorted(filters - interest_of[node]), sorted(interest_of[node] - filters)
        )
        interest_of[node] = filters
        assert sorted(touched) == sorted(before ^ after)
        recount = Counter(
            (group_of(name, depth), n) for n in interest_of for name in interest_of[n]
        )
        assert recount == {
            (g, n): count for g, ns in index.nodes_by_group.items() for n, count in ns.items()
        }
        assert all(index.nodes_by_group.values())


def test_group_is_never_longer_than_a_filter_may_be():
    longest = "a" * FILTER_BYTES_MAX
    assert group_of(longest, 1) == longest
    deepest = "/".join("a" for _ in range(FILTER_LEVELS_MAX))
    assert group_of(deepest, FILTER_LEVELS_MAX) == deepest
    assert group_of("a/b", 2) == "a/b/#"
