"""The summary of an area's interest: bounded, and never a false negative."""

from collections import Counter

import pytest
from bench.interest_summary import NO_CHANGE, Change, InterestSummary, summarise
from hypothesis import given
from hypothesis import strategies as st

from hansa.protocol.topics import covers, matches

LEVELS = st.sampled_from(["a", "b", "c", ""])
TOPICS = st.lists(LEVELS, min_size=1, max_size=5).map("/".join).filter(bool)


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.one_of(LEVELS, st.just("+")), min_size=1, max_size=4))
    if draw(st.booleans()):
        levels.append("#")
    return "/".join(levels) or "#"


FILTERS = filters()
SETS = st.lists(FILTERS, max_size=30)
LIMITS = st.integers(1, 12)


@given(SETS, LIMITS, TOPICS)
def test_a_topic_of_any_filter_matches_the_summary(names: list[str], limit: int, topic: str):
    entries = summarise(names, limit)
    if any(matches(name, topic) for name in names):
        assert any(matches(entry, topic) for entry in entries)


@given(SETS, LIMITS)
def test_summary_is_bounded_and_covers_every_filter(names: list[str], limit: int):
    entries = summarise(names, limit)
    assert len(entries) <= limit
    assert [name for name in names if not any(covers(entry, name) for entry in entries)] == []


@given(SETS)
def test_without_pressure_the_summary_has_no_false_positives(names: list[str]):
    assert set(summarise(names, 30)) <= set(names)


@given(st.lists(st.tuples(st.booleans(), FILTERS), max_size=60), LIMITS, st.lists(TOPICS))
def test_changes_keep_the_summary_bounded_and_covering(
    steps: list[tuple[bool, str]], limit: int, topics: list[str]
):
    summary = InterestSummary(limit)
    present = Counter[str]()
    reported = set[str]()
    for is_added, name in steps:
        if not is_added and not present[name]:
            continue
        change = summary.add(name) if is_added else summary.remove(name)
        present[name] += 1 if is_added else -1
        reported = reported.difference(change.removed).union(change.added)
        names = [each for each, count in present.items() if count]
        assert reported == set(summary.entries)
        assert len(reported) <= limit
        assert [each for each in names if not any(covers(e, each) for e in reported)] == []
        assert [e for e in reported if not any(covers(e, each) for each in names)] == []
        for topic in topics:
            if any(matches(each, topic) for each in names):
                assert summary.matches(topic)


def test_longest_common_prefix_is_widened_first():
    names = ["a/b/1", "a/b/2", "a/c", "d/e", "d/f"]
    assert summarise(names, 4) == ("a/b/#", "a/c", "d/e", "d/f")
    assert summarise(names, 3) == ("a/#", "d/e", "d/f")
    assert summarise(names, 2) == ("a/#", "d/#")
    assert summarise(names, 1) == ("#",)


def test_prefix_with_most_filters_is_widened_first():
    assert summarise(["a/1", "a/2", "b/1", "b/2", "b/3"], 3) == ("a/1", "a/2", "b/#")


def test_parent_level_is_covered_by_its_widened_prefix():
    assert summarise(["a", "a/b", "c/d/e"], 2) == ("a/#", "c/d/e")


def test_covered_filter_changes_nothing():
    summary = InterestSummary(2, ["a/#", "b"])
    assert summary.add("a/b") == NO_CHANGE
    assert summary.remove("a/b") == NO_CHANGE


def test_entry_is_withdrawn_with_the_last_filter_below_it():
    summary = InterestSummary(2, ["b"])
    assert summary.add("a/1") == Change(added=("a/1",))
    assert summary.add("a/2") == Change(added=("a/#",), removed=("a/1",))
    assert summary.add("a/2") == NO_CHANGE
    assert summary.remove("a/1") == NO_CHANGE
    assert summary.remove("a/2") == NO_CHANGE
    assert summary.remove("a/2") == Change(removed=("a/#",))


@pytest.mark.parametrize("name", ["$share/g/a", "$SYS/#"])
def test_dollar_filters_are_refused(name: str):
    with pytest.raises(ValueError, match="plain"):
        summarise([name], 4)


def test_empty_bound_is_refused():
    with pytest.raises(ValueError, match="covers nothing"):
        summarise(["a"], 0)
