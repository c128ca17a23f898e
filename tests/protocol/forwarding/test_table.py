"""Forwarding table and duplicate windows: where copies go, with which target groups, and once."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocol.contexts import records

from hansa.protocol.clock import WallClock
from hansa.protocol.effects import Dropped, Send
from hansa.protocol.forwarding.dedup import (
    EPOCHS_MAX,
    UNKNOWN_ORIGINS_MAX,
    DuplicateFilter,
    SequenceWindow,
)
from hansa.protocol.forwarding.table import (
    STALE_ENTRIES_MAX,
    Forwarder,
    ForwardingTable,
    GroupEntry,
    TopicPlan,
    drop_effects,
    select_core_links,
    send_effects,
)
from hansa.protocol.model import (
    HOPS_MAX,
    TARGET_GROUPS_MAX,
    GroupId,
    LinkId,
    NodeId,
    Publication,
    group_id,
)
from hansa.protocol.settings import NonMemberForwarding
from hansa.protocol.topics import FilterTrie

ORIGIN = NodeId(9)
EVERYBODY = records(*range(100))
L1, L2, L3, L4 = (LinkId(number) for number in (1, 2, 3, 4))
G, H, I = group_id("a/+"), group_id("+/b"), group_id("a/#")  # noqa: E741 - three groups of a/b


def member(group: str, *neighbours: LinkId) -> GroupEntry:
    return GroupEntry(group, True, mesh_links=neighbours)


def non_member(group: str, *towards: LinkId) -> GroupEntry:
    return GroupEntry(group, False, core_links=towards)


def table(
    *entries: GroupEntry, local_filters: tuple[str, ...] = (), plans_max: int = 100
) -> ForwardingTable:
    trie: FilterTrie[int] = FilterTrie()
    for topic_filter in local_filters:
        trie.put(topic_filter, 1)
    made = ForwardingTable(trie, plans_max, list)
    for entry in entries:
        made.put(entry)
    return made


def forwarder(
    *entries: GroupEntry,
    local_filters: tuple[str, ...] = (),
    where: NonMemberForwarding = NonMemberForwarding.ONE,
) -> Forwarder:
    return Forwarder(
        table(*entries, local_filters=local_filters),
        DuplicateFilter(64, EVERYBODY, WallClock(1)),
        where,
    )


def copy(
    number: int = 1,
    target_groups: tuple[GroupId, ...] = (),
    hops: int = 0,
    qos: int = 0,
    epoch: int = 1,
) -> Publication:
    return Publication(
        ORIGIN, epoch, number, qos, "a/b", b"x", hops=hops, target_groups=target_groups
    )


# ---------------------------------------------------------------- plans


def test_plan_joins_all_groups_of_a_topic():
    plan = TopicPlan(
        [member("a/+", L1, L2), non_member("+/b", L3), member("a/#", L2, L4)], deliver_locally=True
    )
    assert (plan.deliver_locally, plan.mesh_links, plan.core_links, plan.group_ids) == (
        True,
        (L1, L2, L4),
        {H: (L3,)},
        (G, H, I),
    )


def test_topic_is_planned_from_the_groups_that_match_it():
    plan = table(member("a/+", L1), non_member("c", L2)).plan("a/b")
    assert (plan.deliver_locally, plan.mesh_links, plan.core_links) == (False, (L1,), {})


def test_topic_is_delivered_locally_if_a_local_filter_matches():
    made = table(local_filters=("a/#",))
    assert (made.plan("a/b").deliver_locally, made.plan("b").deliver_locally) == (True, False)


def test_plan_is_remembered():
    made = table(member("a/+", L1))
    assert made.plan("a/b") is made.plan("a/b")
    assert made.plan_count == 1


def test_changed_entry_invalidates_plans():
    made = table(member("a/+", L1))
    made.plan("a/b")
    made.put(member("a/+", L2))
    assert (made.plan_count, made.plan("a/b").mesh_links, len(made)) == (0, (L2,), 1)


@pytest.mark.parametrize("entry", [member("a/+", L1), non_member("a/+", L1)])
def test_equivalent_entry_invalidates_no_plan(entry):
    made = table(entry)
    made.plan("a/b")
    made.put(GroupEntry("a/+", entry.is_member, entry.mesh_links, entry.core_links))
    assert made.plan_count == 1


def test_removed_group_invalidates_plans():
    made = table(member("a/+", L1))
    made.plan("a/b")
    made.remove("a/+")
    assert (made.plan_count, made.plan("a/b").mesh_links, len(made)) == (0, (), 0)


def test_removing_an_unknown_group_invalidates_no_plan():
    made = table(member("a/+", L1))
    made.plan("a/b")
    made.remove("c")
    assert made.plan_count == 1


def test_changed_local_interest_invalidates_plans():
    made = table(member("a/+", L1))
    made.plan("a/b")
    made.clear_plans()
    assert made.plan_count == 0


def test_plans_are_bounded_in_number():
    made = table(plans_max=2)
    for topic in ("a", "b", "c"):
        made.plan(topic)
    assert made.plan_count == 1


# ---------------------------------------------------------------- windows


def test_number_is_new_once():
    window = SequenceWindow(64)
    assert [window.add(number) for number in (1, 2, 1, 2, 65, 65)] == [True] * 2 + [False] * 2 + [
        True,
        False,
    ]


def test_number_older_than_the_window_counts_as_seen():
    window = SequenceWindow(64)
    window.add(65)
    assert not window.add(1)


def test_number_is_sent_towards_a_group_once():
    window = SequenceWindow(64)
    assert [window.mark_sent_towards(n, g) for n, g in ((1, G), (1, H), (1, G), (2, G))] == [
        True,
        True,
        False,
        True,
    ]


def test_number_older_than_the_window_is_sent_nowhere():
    window = SequenceWindow(64)
    window.mark_sent_towards(65, G)
    assert not window.mark_sent_towards(1, G)


def test_newer_number_in_the_same_slot_replaces_the_older():
    window = SequenceWindow(64)
    window.mark_sent_towards(1, G)
    assert window.mark_sent_towards(65, G)


@given(st.lists(st.integers(1, 300), max_size=200))
def test_window_is_exact_within_its_size(numbers):
    window, seen, newest = SequenceWindow(64), set[int](), 0
    for number in numbers:
        newest = max(newest, number)
        is_new = window.add(number)
        if number > newest - 64:
            assert is_new == (number not in seen)
        else:
            assert not (is_new and number in seen)
        if is_new:
            seen.add(number)


copies = st.tuples(st.integers(1, 200), st.sampled_from([(G,), (H,), (G, H), (H, G)]))


@given(st.lists(copies, max_size=60), st.lists(copies, max_size=60))
def test_adding_a_number_with_groups_equals_adding_them_one_by_one(first, then):
    at_once, one_by_one = SequenceWindow(64), SequenceWindow(64)
    for number, groups in first:
        is_new = one_by_one.add(number)
        assert at_once.add_with_groups(number, groups) == is_new
        if is_new:
            assert all([one_by_one.mark_sent_towards(number, group) for group in groups])
    for number, groups in then:
        for group in groups:
            assert at_once.mark_sent_towards(number, group) == one_by_one.mark_sent_towards(
                number, group
            )


def test_adding_groups_discards_those_of_an_older_number():
    window = SequenceWindow(64)
    assert window.add_with_groups(1, (G, H))
    assert window.add_with_groups(65, (G,))
    assert window.mark_sent_towards(65, H)
    assert not window.add_with_groups(1, (H,))


@given(st.lists(st.tuples(st.integers(1, 300), st.sampled_from([G, H, I])), max_size=200))
def test_nothing_is_sent_towards_a_group_twice_within_a_window(steps):
    window, gone, newest = SequenceWindow(64), set[tuple[int, GroupId]](), 0
    for number, group in steps:
        newest = max(newest, number)
        is_new = window.mark_sent_towards(number, group)
        assert not (is_new and (number, group) in gone)
        if number > newest - 64:
            assert is_new == ((number, group) not in gone)
        if is_new:
            gone.add((number, group))


def test_each_epoch_and_each_number_range_has_its_window():
    windows = DuplicateFilter(64, EVERYBODY, WallClock(1))
    names = [(ORIGIN, 1, False), (ORIGIN, 1, True), (ORIGIN, 2, False), (NodeId(8), 1, False)]
    made = [windows.window_for(*name) for name in names]
    assert len({id(window) for window in made}) == len(windows) == 4
    assert [windows.window_for(*name) for name in names] == made


def test_only_the_newest_epochs_are_remembered():
    windows = DuplicateFilter(64, EVERYBODY, WallClock(1))
    for epoch in (3, 7, 5):
        assert windows.window_for(ORIGIN, epoch, False) is not None
    assert len(windows) == EPOCHS_MAX
    assert windows.window_for(ORIGIN, 4, False) is None


def test_few_unknown_origins_are_accepted_and_more_once_they_are_known():
    known = records(ORIGIN)
    windows = DuplicateFilter(64, known, WallClock(1))
    few = [NodeId(100 + number) for number in range(UNKNOWN_ORIGINS_MAX)]
    too_many = NodeId(200)
    taken = [
        windows.window_for(node, 1, journalled) for node in few for journalled in (False, True)
    ]
    assert None not in taken
    assert (windows.window_for(too_many, 1, False), windows.admit_origin(too_many)) == (None, False)
    assert windows.window_for(ORIGIN, 1, False) is not None
    known.update(records(few[3]))
    assert windows.window_for(too_many, 1, False) is not None
    assert windows.window_for(NodeId(201), 1, False) is None
    assert [windows.window_for(node, 1, kind) for node in few for kind in (False, True)] == taken


def test_nothing_remains_of_an_origin_whose_lease_has_ended():
    windows = DuplicateFilter(64, EVERYBODY, WallClock(1))
    first = windows.window_for(ORIGIN, 1, False)
    windows.window_for(ORIGIN, 1, True)
    windows.expire_node(ORIGIN)
    windows.expire_node(ORIGIN)
    assert len(windows) == 0
    assert windows.window_for(ORIGIN, 1, False) is not first


# ---------------------------------------------------------------- outside the mesh


def test_one_parent_is_the_first():
    assert select_core_links(NonMemberForwarding.ONE, (L2, L1, L3), number=5) == (L2,)


def test_all_parents_are_all():
    assert select_core_links(NonMemberForwarding.ALL, (L2, L1, L3), number=5) == (L2, L1, L3)


def test_random_parent_is_the_same_for_the_same_number_and_spreads_over_many():
    picks = [
        select_core_links(NonMemberForwarding.RANDOM, (L1, L2, L3), number) for number in range(300)
    ]
    assert picks == [
        select_core_links(NonMemberForwarding.RANDOM, (L1, L2, L3), number) for number in range(300)
    ]
    assert all(80 < picks.count((link,)) < 120 for link in (L1, L2, L3))


# ---------------------------------------------------------------- where a publication starts


def test_member_sends_to_all_mesh_neighbours_without_target_groups():
    assert forwarder(member("a/+", L1, L2)).copies_of_local(copy()) == ([(L1, ()), (L2, ())], [])


def test_non_member_sends_towards_the_core_with_the_target_group():
    assert forwarder(non_member("a/+", L1, L2)).copies_of_local(copy()) == ([(L1, (G,))], [])


def test_non_member_sends_to_all_parents_if_configured():
    made = forwarder(non_member("a/+", L1, L2), where=NonMemberForwarding.ALL)
    assert made.copies_of_local(copy()) == ([(L1, (G,)), (L2, (G,))], [])


def test_copies_for_several_groups_to_one_neighbour_are_one_copy():
    made = forwarder(non_member("a/+", L1), non_member("+/b", L1), member("a/#", L1, L2))
    copies, stuck = made.copies_of_local(copy())
    assert [(link, set(target_groups)) for link, target_groups in copies] == [
        (L1, {G, H}),
        (L2, set()),
    ]
    assert stuck == []


def test_groups_without_a_route_are_reported():
    made = forwarder(non_member("a/+"), non_member("+/b", L1))
    assert made.copies_of_local(copy()) == ([(L1, (H,))], [G])


# ---------------------------------------------------------------- where a copy arrives


def test_inside_the_mesh_a_copy_goes_to_all_mesh_neighbours_but_the_sender():
    made = forwarder(member("a/+", L1, L2, L3), local_filters=("a/b",))
    assert made.copies_of_received(copy(), L2) == (True, True, [(L1, ()), (L3, ())], [])


def test_copy_without_local_interest_is_not_delivered():
    assert forwarder(member("a/+", L1, L2)).copies_of_received(copy(), L1) == (
        True,
        False,
        [(L2, ())],
        [],
    )


def test_copy_with_a_target_group_is_forwarded_towards_its_core():
    assert forwarder(non_member("a/+", L2)).copies_of_received(copy(target_groups=(G,)), L1) == (
        True,
        False,
        [(L2, (G,))],
        [],
    )


def test_copy_that_reaches_the_mesh_loses_its_target_group():
    made = forwarder(member("a/+", L2, L3))
    assert made.copies_of_received(copy(target_groups=(G,)), L1) == (
        True,
        False,
        [(L2, ()), (L3, ())],
        [],
    )


def test_copy_is_not_sent_towards_cores_of_other_groups():
    made = forwarder(member("a/+", L1, L2), non_member("+/b", L3))
    assert made.copies_of_received(copy(), L1) == (True, False, [(L2, ())], [])


def test_unknown_target_group_is_dropped():
    assert forwarder(member("a/+", L2)).copies_of_received(
        copy(target_groups=(GroupId(1),)), L1
    ) == (
        True,
        False,
        [(L2, ())],
        [],
    )


def test_copy_is_never_sent_back():
    made = forwarder(non_member("a/+", L1))
    assert made.copies_of_received(copy(target_groups=(G,)), L1) == (True, False, [], [G])


def test_duplicate_is_not_forwarded():
    made = forwarder(member("a/+", L1, L2), local_filters=("a/b",))
    made.copies_of_received(copy(), L1)
    assert made.copies_of_received(copy(), L2) == (False, False, [], [])


def test_duplicate_is_forwarded_only_for_new_target_groups():
    made = forwarder(member("a/+", L1, L2), non_member("+/b", L2, L3), local_filters=("a/b",))
    made.copies_of_received(copy(), L1)
    assert made.copies_of_received(copy(target_groups=(G, H)), L2) == (
        False,
        False,
        [(L3, (H,))],
        [],
    )


def test_duplicate_is_not_sent_towards_a_core_twice():
    made = forwarder(non_member("a/+", L3))
    made.copies_of_received(copy(target_groups=(G,)), L1)
    assert made.copies_of_received(copy(target_groups=(G,)), L2) == (False, False, [], [])


def test_new_epoch_of_the_origin_is_not_a_duplicate():
    made = forwarder(member("a/+", L1, L2))
    made.copies_of_received(copy(epoch=1), L1)
    assert made.copies_of_received(copy(epoch=2), L1) == (True, False, [(L2, ())], [])


def test_guaranteed_publication_is_not_a_duplicate_of_qos_0_with_its_number():
    made = forwarder(member("a/+", L1, L2))
    made.copies_of_received(copy(qos=0), L1)
    assert made.copies_of_received(copy(qos=1), L1) == (True, False, [(L2, ())], [])


def test_copy_of_a_forgotten_epoch_counts_as_a_duplicate():
    made = forwarder(member("a/+", L1, L2), local_filters=("a/b",))
    for epoch in (3, 4):
        made.copies_of_received(copy(epoch=epoch), L1)
    assert made.copies_of_received(copy(epoch=2), L1) == (False, False, [], [])


def test_own_publication_that_returns_is_a_duplicate():
    made = forwarder(member("a/+", L1, L2))
    made.copies_of_local(copy())
    assert made.copies_of_received(copy(), L1) == (False, False, [], [])


# ---------------------------------------------------------------- the hop limit


def test_copy_at_the_hop_limit_is_delivered_but_not_forwarded():
    made = forwarder(member("a/+", L1, L2), local_filters=("a/b",))
    assert made.copies_of_received(copy(hops=HOPS_MAX), L1) == (True, True, [], [G])


def test_copy_at_the_hop_limit_without_links_is_not_reported():
    made = forwarder(member("a/+", L1), local_filters=("a/b",))
    assert made.copies_of_received(copy(hops=HOPS_MAX), L1) == (True, True, [], [])


def test_copy_at_the_hop_limit_does_not_reach_its_target_groups():
    made = forwarder(non_member("a/+", L2))
    assert made.copies_of_received(copy(hops=HOPS_MAX, target_groups=(G,)), L1) == (
        True,
        False,
        [],
        [G],
    )


# ---------------------------------------------------------------- effects


def test_copies_with_equal_target_groups_share_a_frame():
    sends = send_effects(copy(), [(L1, ()), (L2, (G,)), (L3, ())], hops=4)
    assert sends == [
        Send(L1, copy(hops=4)),
        Send(L2, copy(hops=4, target_groups=(G,))),
        Send(L3, copy(hops=4)),
    ]
    frames = [effect.frame for effect in sends if isinstance(effect, Send)]
    assert frames[0] is frames[2]


def test_each_unreached_group_is_reported():
    assert drop_effects(copy(number=5), [G, H]) == [Dropped(ORIGIN, 5, "no route to the core")] * 2


def test_hop_limit_is_reported_as_the_reason():
    assert drop_effects(copy(hops=HOPS_MAX), [G]) == [Dropped(ORIGIN, 1, "hop limit")]


# ---------------------------------------------------------------- any table, any arrivals

links = st.lists(st.sampled_from([L1, L2, L3, L4]), unique=True, max_size=4).map(tuple)
entries = st.tuples(
    *(st.builds(GroupEntry, st.just(g), st.booleans(), links, links) for g in ("a/+", "+/b", "a/#"))
)
arrivals = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.lists(st.sampled_from([G, H, I]), unique=True).map(tuple),
        st.sampled_from([L1, L2, L3, L4]),
    ),
    max_size=12,
)


@given(entries, arrivals, st.sampled_from(NonMemberForwarding))
def test_copies_are_delivered_once_and_cross_no_link_twice_for_the_same_reason(
    drawn, arriving, where
):
    routes = table(*drawn, local_filters=("a/b",))
    made = Forwarder(routes, DuplicateFilter(64, EVERYBODY, WallClock(1)), where)
    spread = set(routes.plan("a/b").mesh_links)
    delivered: list[int] = []
    named_so_far: list[tuple[int, GroupId]] = []
    for number, target_groups, sender in arriving:
        new, deliver, copies, stuck = made.copies_of_received(copy(number, target_groups), sender)
        assert new == deliver == (number not in delivered)
        assert len({link for link, _ in copies}) == len(copies), "one copy per neighbour"
        assert sender not in {link for link, _ in copies}
        plain = {link for link, names in copies if not names}
        assert plain <= (spread if new else set()), "a duplicate goes only where it is named"
        carried = {group for _, names in copies for group in names} | set(stuck)
        assert carried <= set(target_groups)
        assert not carried & {group for n, group in named_so_far if n == number}
        if new:
            assert {link for link, _ in copies} >= spread - {sender}
            delivered.append(number)
        named_so_far += [(number, group) for group in carried]


# ---------------------------------------------------------------- any mesh, however wrong

COUNT = 4
peers = st.lists(st.integers(0, COUNT - 1), unique=True, max_size=COUNT).map(tuple)
tables = st.lists(
    st.tuples(*(st.tuples(st.booleans(), peers, peers) for _ in range(3))),
    min_size=COUNT,
    max_size=COUNT,
)


@given(tables, st.sampled_from(NonMemberForwarding))
@settings(max_examples=60)
def test_forwarding_terminates_and_delivers_at_most_once_in_any_mesh(drawn, where):
    """Links are named by the node that they lead to. Parents may form loops, members may be
    separated, groups may have no core: a changing mesh is all of that for a moment."""
    made = [
        forwarder(
            *(
                GroupEntry(
                    group,
                    is_member,
                    tuple(LinkId(peer) for peer in mesh if peer != node),
                    tuple(LinkId(peer) for peer in routes if peer != node),
                )
                for group, (is_member, mesh, routes) in zip(
                    ("a/+", "+/b", "a/#"), rows, strict=True
                )
            ),
            local_filters=("a/b",),
            where=where,
        )
        for node, rows in enumerate(drawn)
    ]
    crossed: list[tuple[int, int, tuple[GroupId, ...]]] = []
    delivered: list[int] = [0]
    flying: list[tuple[int, int, Publication]] = []

    def send(source: int, publication: Publication, copies: list[tuple[LinkId, Any]]) -> None:
        for link, target_groups in copies:
            crossed.append((source, link, target_groups))
            flying.append(
                (source, link, publication.forwarded_copy(publication.hops + 1, target_groups))
            )

    send(0, copy(), made[0].copies_of_local(copy())[0])
    while flying:
        source, target, publication = flying.pop(0)
        _, deliver, copies, _ = made[target].copies_of_received(publication, LinkId(source))
        if deliver:
            delivered.append(target)
        send(target, publication, copies)

    assert len(delivered) == len(set(delivered))
    for source in range(COUNT):
        for target in range(COUNT):
            target_groups = [names for a, b, names in crossed if (a, b) == (source, target)]
            assert target_groups.count(()) <= 1
            for group in (G, H, I):
                assert sum(group in names for names in target_groups) <= 1


def test_target_groups_beyond_the_limit_go_in_further_copies():
    publication = Publication(NodeId(7), 1, 1, 0, "t", b"x")
    names = tuple(GroupId(number) for number in range(TARGET_GROUPS_MAX + 1))
    sends = send_effects(publication, [(LinkId(1), names)], hops=3)
    assert sends == [
        Send(LinkId(1), publication.forwarded_copy(3, names[:TARGET_GROUPS_MAX])),
        Send(LinkId(1), publication.forwarded_copy(3, names[TARGET_GROUPS_MAX:])),
    ]


def test_table_applies_compiled_entries_when_a_plan_needs_them():
    changes: list[GroupEntry | str] = [member("b", L2), "a"]
    routes = ForwardingTable(FilterTrie(), 100, lambda: [changes.pop() for _ in list(changes)])
    routes.put(member("a", L1))
    assert (routes.plan("b").mesh_links, routes.plan("a").mesh_links, len(routes)) == ((L2,), (), 1)


def test_changed_entries_invalidate_plans():
    changes: list[GroupEntry | str] = []
    routes = ForwardingTable(FilterTrie(), 100, lambda: [changes.pop() for _ in list(changes)])
    routes.invalidate_plans(0)
    assert routes.plan("a").mesh_links == ()
    changes.append(member("a", L1))
    assert (routes.plan("a").mesh_links, len(routes)) == ((), 0)
    routes.invalidate_plans(len(changes))
    assert (routes.plan("a").mesh_links, len(routes)) == ((L1,), 1)


def test_number_of_waiting_entries_is_bounded():
    changes: list[GroupEntry | str] = [member("a", L1)]
    routes = ForwardingTable(FilterTrie(), 100, lambda: [changes.pop() for _ in list(changes)])
    routes.invalidate_plans(STALE_ENTRIES_MAX)
    assert len(routes) == 0
    routes.invalidate_plans(STALE_ENTRIES_MAX + 1)
    assert len(routes) == 1
