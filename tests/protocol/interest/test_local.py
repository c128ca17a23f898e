"""Interest of local clients: announcing, covering, lingering and bounds."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.protocol.interest import local as local_interest
from hansa.protocol.interest.local import LocalInterest
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.topics import (
    FilterTrie,
    covers,
    intersect,
    is_local_only,
    remove_covered,
    split_share,
)

SETTINGS = ProtocolSettings(linger=0.5, withdraw_delay_max=10.0)


def local(*filters: str, settings: ProtocolSettings = SETTINGS) -> LocalInterest:
    """An interest that was announced and installed long ago."""
    interest = LocalInterest(settings)
    interest.apply_change(filters, (), now=-100.0)
    interest.pop_due_changes(installed=True, now=-100.0)
    return interest


def test_new_interest_is_empty():
    interest = LocalInterest(SETTINGS)
    assert interest.pop_due_changes(installed=True, now=0.0) == ([], [])
    assert interest.next_deadline(installed=True) is None


def test_filter_is_announced_at_once_and_once():
    interest = LocalInterest(SETTINGS)
    assert interest.apply_change(["a/b", "$share/g/c"], [], now=0.0) == []
    assert interest.pop_due_changes(installed=False, now=0.0) == (["a/b", "$share/g/c"], [])
    assert interest.pop_due_changes(installed=False, now=0.0) == ([], [])


def test_known_filter_is_not_announced_again():
    interest = local("a")
    interest.apply_change(["a"], [], now=0.0)
    assert interest.pop_due_changes(installed=True, now=0.0) == ([], [])


@pytest.mark.parametrize("topic_filter", ["$SYS/#", "$share/g/$SYS/x"])
def test_dollar_filters_are_never_announced(topic_filter):
    interest = local(topic_filter)
    assert (interest.filters, len(interest.plain_filters)) == ({}, 0)
    interest.apply_change([], [topic_filter], now=0.0)
    assert interest.pop_due_changes(installed=True, now=0.0) == ([], [])


def test_covered_filter_is_not_announced():
    interest = local("a/#")
    interest.apply_change(["a/b"], [], now=0.0)
    assert interest.pop_due_changes(installed=True, now=0.0) == ([], [])
    assert list(interest.filters) == ["a/#", "a/b"]


def test_share_is_announced_whatever_covers_it():
    interest = local("#")
    interest.apply_change(["$share/g/a"], [], now=0.0)
    assert interest.pop_due_changes(installed=True, now=0.0) == (["$share/g/a"], [])


def test_filter_removed_before_its_announcement_is_never_announced():
    interest = LocalInterest(SETTINGS)
    interest.apply_change(["a"], [], now=0.0)
    interest.apply_change([], ["a"], now=0.0)
    assert interest.pop_due_changes(installed=True, now=9.0) == ([], [])


# ---------------------------------------------------------------- withdrawing


def test_filter_is_withdrawn_after_a_linger():
    interest = local("a")
    interest.apply_change([], ["a"], now=1.0)
    assert interest.next_deadline(installed=True) == 1.5
    assert interest.pop_due_changes(installed=True, now=1.4) == ([], [])
    assert interest.pop_due_changes(installed=True, now=1.5) == ([], ["a"])
    assert interest.next_deadline(installed=True) is None


def test_next_deadline_is_that_of_the_oldest_withdrawal():
    interest = local("a", "b")
    interest.apply_change([], ["a"], now=1.0)
    interest.apply_change([], ["b"], now=2.0)
    assert interest.next_deadline(installed=True) == 1.5


@pytest.mark.parametrize("installed", [True, False])
def test_share_without_a_consumer_is_withdrawn_at_once(installed):
    interest = local("$share/g/a")
    interest.apply_change([], ["$share/g/a"], now=1.0)
    assert interest.next_deadline(installed) == 1.0
    assert interest.pop_due_changes(installed, now=1.0) == ([], ["$share/g/a"])


def test_filter_subscribed_again_within_the_linger_is_not_withdrawn():
    interest = local("a")
    interest.apply_change([], ["a"], now=0.0)
    interest.apply_change(["a"], [], now=0.4)
    assert interest.pop_due_changes(installed=True, now=9.0) == ([], [])


def test_nothing_is_withdrawn_before_all_is_installed():
    interest = local("a")
    interest.apply_change([], ["a"], now=1.0)
    assert interest.next_deadline(installed=False) == 11.0
    assert interest.pop_due_changes(installed=False, now=10.9) == ([], [])


def test_withdrawal_does_not_wait_for_installation_for_ever():
    interest = local("a")
    interest.apply_change([], ["a"], now=1.0)
    assert interest.pop_due_changes(installed=False, now=11.0) == ([], ["a"])


def test_maximum_delay_is_never_shorter_than_the_linger():
    interest = local("a", settings=replace(SETTINGS, withdraw_delay_max=0.0))
    interest.apply_change([], ["a"], now=1.0)
    assert interest.next_deadline(installed=False) == 1.5


def test_nothing_is_withdrawn_together_with_an_announcement():
    interest = local("a")
    interest.apply_change([], ["a"], now=0.0)
    interest.apply_change(["b"], [], now=9.0)
    assert interest.pop_due_changes(installed=True, now=9.0) == (["b"], [])
    assert interest.pop_due_changes(installed=True, now=9.0) == ([], ["a"])


def test_wider_filter_replaces_narrower_ones():
    interest = local("a/b", "a/c", "b")
    interest.apply_change(["a/#"], [], now=0.0)
    assert interest.pop_due_changes(installed=True, now=0.0) == (["a/#"], [])
    assert interest.pop_due_changes(installed=True, now=0.5) == ([], ["a/b", "a/c"])


def test_covered_filters_are_announced_before_their_cover_is_withdrawn():
    interest = local("a/#", "a/b/c", "a/b/+", "a/d", "b")
    interest.apply_change([], ["a/#"], now=0.0)
    assert interest.pop_due_changes(installed=True, now=0.0) == (["a/b/+", "a/d"], [])
    assert interest.pop_due_changes(installed=True, now=0.5) == ([], ["a/#"])


def test_filter_covered_by_another_one_stays_unannounced():
    interest = local("+/b", "a/#", "a/b")
    interest.apply_change([], ["a/#"], now=0.0)
    assert interest.pop_due_changes(installed=True, now=0.5) == ([], ["a/#"])


def test_removal_of_a_covered_filter_changes_nothing():
    interest = local("a/#", "a/b")
    interest.apply_change([], ["a/b"], now=0.0)
    assert interest.pop_due_changes(installed=True, now=9.0) == ([], [])


def test_unknown_filter_can_be_removed():
    interest = local("a")
    interest.apply_change([], ["b"], now=0.0)
    assert interest.pop_due_changes(installed=True, now=9.0) == ([], [])


# ---------------------------------------------------------------- delivery and bounds


def test_topic_is_delivered_while_any_filter_or_share_matches():
    interest = local("a", "$share/g/a", "$share/h/a")
    assert interest.plain_filters.match("a") == [3]
    interest.apply_change([], ["a", "$share/g/a"], now=0.0)
    assert interest.plain_filters.match("a") == [1]
    interest.apply_change([], ["$share/h/a"], now=0.0)
    assert interest.plain_filters.match("a") == []


def test_filters_above_the_bound_are_refused_and_counted():
    interest = LocalInterest(replace(SETTINGS, filters_per_node_max=2))
    assert (
        interest.apply_change(["a", "b", "c", "a", "d"], [], now=0.0)
        == ["filters_per_node_max"] * 2
    )
    assert interest.pop_due_changes(installed=True, now=0.0) == (["a", "b"], [])


def test_refused_filters_are_announced_when_there_is_room():
    interest = local("a", "b", settings=replace(SETTINGS, filters_per_node_max=2))
    interest.apply_change(["c", "d", "e"], [], now=0.0)
    interest.apply_change([], ["c", "b"], now=0.0)
    assert list(interest.filters) == ["a", "d"]
    assert interest.apply_change(["f"], ["a", "e"], now=0.0) == ["filters_per_node_max"]
    assert list(interest.filters) == ["d", "f"]


def test_filter_that_covers_others_is_accepted_beyond_the_bound():
    """A node that does not know its clients' filters announces `#`."""
    interest = local("a", "b/c", settings=replace(SETTINGS, filters_per_node_max=2))
    assert interest.apply_change(["$share/g/#", "+"], [], now=0.0) == ["filters_per_node_max"]
    assert interest.apply_change(["#"], [], now=0.0) == []
    assert interest.pop_due_changes(installed=True, now=0.0)[0] == ["#"]
    interest.apply_change([], ["#", "+"], now=1.0)
    assert list(interest.filters) == ["a", "b/c"]


@pytest.mark.pure
def test_covering_filters_are_bounded_too(monkeypatch):
    monkeypatch.setattr(local_interest, "COVERING_FILTERS_MAX", 1)
    interest = local("a", settings=replace(SETTINGS, filters_per_node_max=1))
    assert interest.apply_change(["+", "#"], [], now=0.0) == ["filters_per_node_max"]


def test_oldest_withdrawals_do_not_linger_beyond_the_bound():
    interest = local("a", "b", "c", settings=replace(SETTINGS, filters_per_node_max=3))
    interest.apply_change([], ["b", "a"], now=0.0)
    interest.apply_change(["d"], [], now=0.1)
    assert interest.pop_due_changes(installed=True, now=0.1) == (["d"], ["b"])
    assert interest.pop_due_changes(installed=True, now=0.5) == ([], ["a"])


FILTERS = [
    "#", "a", "a/#", "a/+", "a/b", "+/b", "b/c", "b/+/d", "b/#",
    "$share/g/a", "$share/g/#", "$share/h/a", "$SYS/x",
]  # fmt: skip
some_filters = st.lists(st.sampled_from(FILTERS), max_size=3)
local_steps = st.one_of(
    st.tuples(st.just("change"), some_filters, some_filters),
    st.tuples(st.sampled_from(["announce", "install"])),
    st.tuples(st.just("wait"), st.sampled_from([0.1, 0.5, 3.0])),
)


def is_covered(topic_filter: str, names: set[str]) -> bool:
    if topic_filter.startswith("$share/"):
        return topic_filter in names
    return any(covers(name, topic_filter) for name in names if not name.startswith("$share/"))


class World:
    """A local interest, and the state of the rest of the federation."""

    def __init__(self) -> None:
        self.interest = LocalInterest(replace(SETTINGS, withdraw_delay_max=1e9))
        self.announced: set[str] = set()
        self.in_force: set[str] = set()  # at every other node
        self.now = 0.0

    @property
    def safe(self) -> set[str]:
        """The subscribed filters that are covered at all other nodes."""
        return {name for name in self.interest.filters if is_covered(name, self.in_force)}

    def announce(self) -> None:
        added, removed = self.interest.pop_due_changes(self.in_force == self.announced, self.now)
        assert self.announced.isdisjoint(added)
        assert self.announced.issuperset(removed)
        self.announced = (self.announced | set(added)) - set(removed)
        self.in_force -= set(removed)  # at once, for the worst case
        assert all(is_covered(name, self.announced) for name in self.interest.filters)

    def perform(self, step: tuple) -> None:  # type: ignore[type-arg]
        match step:
            case "change", added, removed:
                self.interest.apply_change(added, removed, self.now)
            case "wait", seconds:
                self.now += seconds
            case ("announce",):
                self.announce()
            case ("install",):
                self.in_force = set(self.announced)


@settings(max_examples=80)
@given(st.lists(local_steps, max_size=25))
def test_subscribed_filters_stay_covered_by_filters_in_force(steps):
    world = World()
    subscribed: set[str] = set()
    for step in steps:
        safe = world.safe
        world.perform(step)
        if step[0] == "change":
            subscribed = (subscribed | {f for f in step[1] if not is_local_only(f)}) - set(step[2])
        assert set(world.interest.filters) == subscribed
        assert safe & subscribed <= world.safe
    for step in (("announce",), ("install",), ("wait", 0.5), ("announce",)):
        world.perform(step)
    assert world.announced == world.in_force == set(remove_covered(subscribed))


def test_former_filters_are_remembered_up_to_a_bound():
    interest = LocalInterest(replace(SETTINGS, filters_per_node_max=2))
    assert interest.was_announced("anything")  # interest of clients is not known yet
    for name in ("a", "b", "c"):
        interest.apply_change([name], [], 0.0)
        interest.apply_change([], [name], 0.0)
    assert [interest.was_announced(topic) for topic in "abcd"] == [False, True, True, False]
    interest.apply_change(["a"], [], 0.0)
    assert interest.was_announced("a")


@pytest.mark.parametrize("share", ["$share/g/a/b", "$share/g/#"])
def test_filter_that_overlaps_a_share_does_not_linger(share):
    interest = local("a/#", share, share.replace("/g/", "/h/"))
    interest.apply_change([], ["a/#"], now=0.0)
    assert interest.next_deadline(installed=True) == 0.0
    assert interest.next_deadline(installed=False) == SETTINGS.withdraw_delay_max
    interest.apply_change([], [share], now=0.1)
    assert interest.next_deadline(installed=True) == 0.0  # the other share is left
    interest.apply_change([], [share.replace("/g/", "/h/")], now=0.2)
    assert interest.pop_due_changes(installed=True, now=0.2)[1] == [
        share,
        share.replace("/g/", "/h/"),
    ]
    assert interest.next_deadline(installed=True) == SETTINGS.linger


def test_share_that_comes_later_ends_the_linger_of_filters_that_overlap_it():
    interest = local("a/#", "+/b", "c")
    interest.apply_change([], ["a/#", "+/b", "c"], now=0.0)
    assert interest.next_deadline(installed=True) == SETTINGS.linger
    for share, left in (("$share/g/a/x", ["+/b", "c"]), ("$share/g/x/b", ["c"])):
        interest.apply_change([share], [], now=0.1)
        interest.pop_due_changes(installed=True, now=0.1)  # announces the share
        interest.pop_due_changes(installed=True, now=0.1)
        assert list(interest.withdrawing) == left


def test_overlaps_with_shares_are_searched_once_for_all_inputs(monkeypatch):
    """A client can have thousands of shares and withdrawals, and every input asks."""
    interest = local("a/#", "b/#", "$share/g/a/x")
    interest.apply_change([], ["a/#", "b/#"], now=0.0)
    assert interest.next_deadline(installed=True) == 0.0
    monkeypatch.delattr(FilterTrie, "overlaps")
    assert interest.next_deadline(installed=True) == 0.0
    interest.apply_change(["$share/g/c"], [], now=0.1)
    assert interest.next_deadline(installed=True) == 0.0


@settings(max_examples=80)
@given(st.lists(local_steps, max_size=25))
def test_known_overlaps_agree_with_the_shares(steps):
    world = World()
    for step in steps:
        world.perform(step)
        interest = world.interest
        interest.next_deadline(installed=True)
        known = interest._share_overlaps.known  # noqa: SLF001
        shares = [plain for share, plain in map(split_share, interest.filters) if share is not None]
        assert known == {
            name: any(intersect(name, plain) is not None for plain in shares)
            for name in interest.withdrawing
            if split_share(name)[0] is None
        }


def test_withdrawals_search_no_shares_if_there_are_none(monkeypatch):
    interest = local("a", "b", "$share/g/a")
    interest.apply_change([], ["a", "b", "$share/g/a"], now=0.0)
    monkeypatch.delattr(FilterTrie, "covered")
    monkeypatch.delattr(FilterTrie, "is_covered")
    assert interest.next_deadline(installed=True) == 0.0
    interest.pop_due_changes(installed=True, now=0.0)
    assert interest.next_deadline(installed=True) == SETTINGS.linger
