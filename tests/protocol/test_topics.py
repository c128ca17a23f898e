"""MQTT's topic rules by example, and every function compared with a slow reference.

The reference matches recursively, level by level, as the standard reads. Covering follows from it
by looking at all topics of a set small enough to enumerate: filters use the levels of `LEVELS`,
topics also `z`, which stands for every level that no filter names.
"""

import os
import subprocess
import sys
import tracemalloc
from functools import cache
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hansa.errors import InvalidTopic, UsageError
from hansa.protocol.topics import (
    FILTER_BYTES_MAX,
    FILTER_LEVELS_MAX,
    TOPIC_BYTES_MAX,
    TOPIC_LEVELS_MAX,
    FilterTrie,
    check_filter,
    check_name,
    covers,
    intersect,
    is_filter,
    is_local_only,
    matches,
    remove_covered,
    split_share,
)

# ---------------------------------------------------------------- the reference


def reference_matches(topic_filter: str, topic: str) -> bool:
    if topic.startswith("$") and topic_filter[0] in "+#":
        return False
    return levels_match(topic_filter.split("/"), topic.split("/"))


def levels_match(topic_filter: list[str], topic: list[str]) -> bool:
    if topic_filter == ["#"]:
        return True
    if not topic_filter or not topic:
        return topic_filter == topic
    first, *rest = topic_filter
    return first in ("+", topic[0]) and levels_match(rest, topic[1:])


LEVELS = ("", "a", "$x")


def texts(levels: tuple[str, ...], depth_max: int) -> list[str]:
    joined = ("/".join(t) for depth in range(depth_max) for t in product(levels, repeat=depth + 1))
    return [text for text in joined if text]


CLOSED = texts((*LEVELS, "+"), 3)
FILTERS = ["#", "/#", *CLOSED, *(f"{text}/#" for text in CLOSED)]
TOPICS = texts((*LEVELS, "z"), 4)  # one level deeper than any filter: matched by `#` alone


@cache
def topics_of(topic_filter: str) -> frozenset[str]:
    return frozenset(topic for topic in TOPICS if reference_matches(topic_filter, topic))


def topics_of_all(filters: tuple[str, ...]) -> set[str]:
    return set().union(*map(topics_of, filters))


small_filters = st.sampled_from(FILTERS)
deep_levels = st.lists(st.sampled_from(["", "a", "b", "ab", "$x", "+"]), min_size=1, max_size=7)
deep_filters = st.tuples(deep_levels, st.booleans()).map(
    lambda drawn: "/".join([*drawn[0], "#"] if drawn[1] or drawn[0] == [""] else drawn[0])
)
deep_topics = (
    st.lists(st.sampled_from(["", "a", "b", "ab", "$x", "$"]), min_size=1, max_size=8)
    .map("/".join)
    .filter(bool)
)


# ---------------------------------------------------------------- check_name


@pytest.mark.parametrize(
    "name",
    ["a", "/", "//", " ", "a/b", "/a", "a/", "a//b", "$SYS/broker", "$", "grün/温度/🌡", "\ufeffa"],
)
def test_valid_name_is_returned(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "topic name '': must not be empty"),
        ("a/+/b", "topic name 'a/+/b': '+' and '#' are for filters only"),
        ("a#", "topic name 'a#': '+' and '#' are for filters only"),
        ("a\0b", r"topic name 'a\x00b': must not contain U+0000"),
        ("a\ud800", r"topic name 'a\ud800': must be UTF-8, which has no lone surrogates"),
        ("x" * 65_536, f"topic name '{'x' * 60}…': 65536 bytes, the limit is 65535"),
        ("ü" * 40_000, f"topic name '{'ü' * 60}…': 80000 bytes, the limit is 65535"),
        ("/" * 200, f"topic name '{'/' * 60}…': 201 levels, the limit is 200"),
    ],
)
def test_invalid_name_says_what_is_wrong(name, message):
    with pytest.raises(InvalidTopic) as caught:
        check_name(name)
    assert str(caught.value) == message


def test_name_may_reach_its_bounds():
    longest = "x" * TOPIC_BYTES_MAX
    deepest = "/" * (TOPIC_LEVELS_MAX - 1)
    assert check_name(longest) == longest
    assert check_name(deepest) == deepest


def test_invalid_topic_is_a_usage_error():
    with pytest.raises(UsageError):
        check_name("")


# ---------------------------------------------------------------- check_filter


@pytest.mark.parametrize(
    "topic_filter",
    [
        "a", "#", "+", "/", "/#", "+/#", "a/#", "a/+", "+/a", "+/+/#", "a//+", "$SYS/#", "$a/+",
        "$shared/+/a", "$share/g/a", "$share/g/#", "$share/g/+/a", "$share/g//a", "$share/g h/$SYS",
    ],
)  # fmt: skip
def test_valid_filter_is_returned(topic_filter):
    assert check_filter(topic_filter) == topic_filter


@pytest.mark.parametrize(
    ("topic_filter", "reason"),
    [
        ("a/#/b", "'#' must be the last level"),
        ("#/", "'#' must be the last level"),
        ("#/#", "'#' must be the last level"),
        ("a#", "'#' must be alone in its level"),
        ("a/#b", "'#' must be alone in its level"),
        ("##", "'#' must be alone in its level"),
        ("a+/b", "'+' must be alone in its level"),
        ("a/++", "'+' must be alone in its level"),
        ("+#", "'#' must be alone in its level"),
        ("", "must not be empty"),
        ("$share", "the share name must not be empty"),
        ("$share/", "the share name must not be empty"),
        ("$share//a", "the share name must not be empty"),
        ("$share/g", "a filter must follow the share name"),
        ("$share/g/", "a filter must follow the share name"),
        ("$share/+/a", "the share name must not contain '+' or '#'"),
        ("$share/#", "the share name must not contain '+' or '#'"),
        ("$share/g/a/#/b", "'#' must be the last level"),
        ("$share/g/a+", "'+' must be alone in its level"),
    ],
)
def test_invalid_filter_says_what_is_wrong(topic_filter, reason):
    with pytest.raises(InvalidTopic) as caught:
        check_filter(topic_filter)
    assert str(caught.value) == f"topic filter '{topic_filter}': {reason}"


@pytest.mark.parametrize(
    ("topic_filter", "message"),
    [
        ("a\0", r"topic filter 'a\x00': must not contain U+0000"),
        ("\udfff/#", r"topic filter '\udfff/#': must be UTF-8, which has no lone surrogates"),
        ("x" * 1_025, f"topic filter '{'x' * 60}…': 1025 bytes, the limit is 1024"),
        ("+/" * 32 + "#", f"topic filter '{'+/' * 30}…': 33 levels, the limit is 32"),
        ("$share/g/" + "/" * 32, f"topic filter '$share/g/{'/' * 32}': 33 levels, the limit is 32"),
    ],
)
def test_filter_has_the_limits_of_a_name_but_tighter(topic_filter, message):
    with pytest.raises(InvalidTopic) as caught:
        check_filter(topic_filter)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "topic_filter",
    [
        "x" * FILTER_BYTES_MAX,
        "$share/g/" + "x" * (FILTER_BYTES_MAX - len("$share/g/")),
        "+/" * (FILTER_LEVELS_MAX - 1) + "#",
        "$share/g/" + "+/" * (FILTER_LEVELS_MAX - 1) + "#",
    ],
)
def test_filter_may_reach_its_bounds(topic_filter):
    assert check_filter(topic_filter) == topic_filter


pieces = st.sampled_from(["a", "/", "+", "#", "$", "\0", "\ud800", "$share/", "é", "x" * 300])


@settings(max_examples=200, deadline=None)
@given(st.lists(pieces).map("".join))
def test_any_text_is_returned_or_refused_with_a_short_message_that_can_be_printed(text):
    for check in (check_name, check_filter):
        try:
            assert check(text) == text
            assert text.isprintable()
        except InvalidTopic as refusal:
            assert str(refusal).isprintable()
            assert len(str(refusal)) < 500


# ---------------------------------------------------------------- shares and local topics


@pytest.mark.parametrize(
    ("topic_filter", "parts"),
    [
        ("a/b", (None, "a/b")),
        ("$share/g/a/b", ("g", "a/b")),
        ("$share/g//a", ("g", "/a")),
        ("$share/g/$SYS/#", ("g", "$SYS/#")),
        ("$shared/g/a", (None, "$shared/g/a")),
    ],
)
def test_share_is_split_from_its_filter(topic_filter, parts):
    assert split_share(topic_filter) == parts


@pytest.mark.parametrize("text", ["$SYS/#", "$", "$a", "$share", "$share/g", "$share/g/$SYS/#"])
def test_dollar_topics_are_local(text):
    assert is_local_only(text)


@pytest.mark.parametrize("text", ["a", "#", "+/$SYS", "/$a", "a$", "$share/g/a", "$share/g/#"])
def test_other_topics_are_not_local(text):
    assert not is_local_only(text)


# ---------------------------------------------------------------- matches


@pytest.mark.parametrize(
    ("topic_filter", "topic"),
    [
        ("a/b", "a/b"),
        ("sport/tennis/player1/#", "sport/tennis/player1"),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking"),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon"),
        ("sport/#", "sport"),
        ("#", "a/b/c"),
        ("#", "/"),
        ("+", "a"),
        ("sport/tennis/+", "sport/tennis/player1"),
        ("sport/+", "sport/"),
        ("+/+", "/finance"),
        ("/+", "/finance"),
        ("+/tennis/#", "sport/tennis"),
        ("$SYS/#", "$SYS"),
        ("$SYS/monitor/+", "$SYS/monitor/Clients"),
        ("a/+", "a/$b"),
        ("a/#", "a/$b/c"),
    ],
)
def test_filter_matches(topic_filter, topic):
    assert matches(topic_filter, topic)


@pytest.mark.parametrize(
    ("topic_filter", "topic"),
    [
        ("a/b", "a/B"),
        ("a", "/a"),
        ("a", "a/"),
        ("sport/tennis/+", "sport/tennis/player1/ranking"),
        ("sport/+", "sport"),
        ("+", "/finance"),
        ("sport/#", "sports"),
        ("a/+/c", "a/b"),
        ("a/+/#", "a"),
        ("#", "$SYS"),
        ("#", "$SYS/monitor"),
        ("+", "$SYS"),
        ("+/monitor/Clients", "$SYS/monitor/Clients"),
        ("+/#", "$SYS"),
    ],
)
def test_filter_does_not_match(topic_filter, topic):
    assert not matches(topic_filter, topic)


def test_matching_equals_the_reference_for_all_small_filters():
    wrong = [
        (topic_filter, topic)
        for topic_filter in FILTERS
        for topic in TOPICS
        if matches(topic_filter, topic) != (topic in topics_of(topic_filter))
    ]
    assert wrong == []


@settings(max_examples=200, deadline=None)
@given(deep_filters, deep_topics)
def test_matching_equals_the_reference(topic_filter, topic):
    assert matches(topic_filter, topic) == reference_matches(topic_filter, topic)


# ---------------------------------------------------------------- covers


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("a", "a"),
        ("#", "a/+/b"),
        ("a/#", "a"),
        ("a/#", "a/+/#"),
        ("+/+", "a/+"),
        ("$SYS/#", "$SYS/broker/+"),
        ("+/#", "#"),
        ("/+/#", "/#"),
        ("+/+/#", "/#"),
    ],
)
def test_filter_covers(wide, narrow):
    assert covers(wide, narrow)


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("a", "b"),
        ("a/b", "a/+"),
        ("a/+", "a/#"),
        ("a/+/#", "a/#"),
        ("+", "a/b"),
        ("+/+/#", "#"),
        ("#", "$SYS/#"),
        ("+/a", "$x/a"),
        ("$x/+", "+/+"),
    ],
)
def test_filter_does_not_cover(wide, narrow):
    assert not covers(wide, narrow)


def test_covering_is_inclusion_of_topics_for_all_small_filters():
    wrong = [
        (wide, narrow)
        for wide, narrow in product(FILTERS, repeat=2)
        if covers(wide, narrow) != (topics_of(narrow) <= topics_of(wide))
    ]
    assert wrong == []


@settings(max_examples=200, deadline=None)
@given(deep_filters, deep_filters, deep_topics)
def test_covering_agrees_with_matching(one, other, topic):
    assert not covers(one, other) or not matches(other, topic) or matches(one, topic)
    assert covers(one, topic) == matches(one, topic)


# ---------------------------------------------------------------- remove_covered


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ([], ()),
        (["b", "a", "b"], ("a", "b")),
        (["a/b", "a/+", "a/#", "b"], ("a/#", "b")),
        (["a", "a/b", "#", "$SYS/x"], ("#", "$SYS/x")),
        (["$SYS/x", "$SYS/#"], ("$SYS/#",)),
        (["+/#", "#"], ("#",)),
        (["/+/#", "/#"], ("/#",)),
        (["/#", "+/+/#"], ("+/+/#",)),
        (["a/+", "+/b"], ("+/b", "a/+")),
        (["$share/g/a", "a", "$share/g/a", "$share/g/#", "#"], ("#", "$share/g/#", "$share/g/a")),
    ],
)
def test_remove_covered_drops_covered_filters(filters, kept):
    assert remove_covered(filters) == kept
    assert remove_covered(reversed(filters)) == kept


@settings(max_examples=200, deadline=None)
@given(st.lists(small_filters, max_size=12))
@example(["/#", "/+/#", "+/#", "#", "+/+/#"])
def test_remove_covered_matches_the_same_topics_and_is_minimal(filters):
    kept = remove_covered(filters)
    assert set(kept) <= set(filters)
    assert list(kept) == sorted(set(kept))
    assert topics_of_all(kept) == topics_of_all(tuple(filters))
    assert not [pair for pair in product(kept, repeat=2) if covers(*pair) and pair[0] != pair[1]]


def test_remove_covered_does_not_compare_every_pair():
    distinct = [f"site/{n % 25}/sensor/{n}/temp" for n in range(10_000)]
    assert remove_covered(distinct) == tuple(sorted(distinct))
    assert remove_covered([*distinct, "site/+/sensor/#"]) == ("site/+/sensor/#",)


def test_remove_covered_stops_at_the_widest_cover():
    nested = ["/".join(levels) for levels in product("a+", repeat=12)]
    assert remove_covered(nested) == ("/".join("+" * 12),)


# ---------------------------------------------------------------- the trie


def trie_of(filters) -> FilterTrie[str]:
    trie = FilterTrie[str]()
    for topic_filter in filters:
        trie.put(topic_filter, topic_filter)
    return trie


def shape(trie: FilterTrie[str]) -> tuple[object, object]:
    # No public answer shows a branch that was left behind.
    return drawn(trie._root), drawn(trie._dollar_root)  # noqa: SLF001


def drawn(item):
    return (
        {key: drawn(below) for key, below in item.items()} if isinstance(item, dict) else item.text
    )


def test_empty_trie_knows_nothing():
    trie = FilterTrie[int]()
    assert len(trie) == 0
    assert "a" not in trie
    assert trie.get("a") is None
    assert (trie.match("a"), trie.covering("a"), trie.covered("#")) == ([], [], [])
    assert not trie.is_covered("a")
    assert not trie.remove("a")


def test_put_replaces_the_value():
    trie = FilterTrie[int]()
    trie.put("a/+", 1)
    trie.put("a/+", 2)
    assert (len(trie), trie.get("a/+"), trie.match("a/b")) == (1, 2, [2])


def test_get_finds_the_filter_itself_and_nothing_that_matches_it():
    trie = trie_of(["a/#", "a/+", "a/b/c"])
    assert [trie.get(text) for text in ("a/#", "a/+", "a/b/c")] == ["a/#", "a/+", "a/b/c"]
    assert [trie.get(text) for text in ("a", "a/b", "a/b/c/d", "a/b/c/#", "b", "a/b/x")] == [
        None
    ] * 6
    assert "a/#" in trie
    assert "#" not in trie


def test_match_returns_each_matching_filter_once():
    trie = trie_of(["#", "+/#", "+/b", "a/#", "a/+", "a/b", "a/b/#", "a/b/+", "a", "b", "$SYS/#"])
    assert sorted(trie.match("a/b")) == ["#", "+/#", "+/b", "a/#", "a/+", "a/b", "a/b/#"]
    assert trie.match("$SYS/x") == ["$SYS/#"]
    assert trie.match("$x") == []


def test_filters_with_the_same_value_each_count():
    trie = FilterTrie[str]()
    trie.put("a/+", "node")
    trie.put("+/b", "node")
    assert trie.match("a/b") == ["node", "node"]


def test_remove_leaves_the_neighbours_alone():
    trie = trie_of(["a/b/c/d", "a/b/c/e", "a/b/c", "a/#"])
    assert trie.remove("a/b/c")
    assert not trie.remove("a/b/c")
    assert not trie.remove("a/b")
    assert not trie.remove("a/b/c/d/e")
    assert len(trie) == 3
    assert sorted(trie.match("a/b/c/d")) == ["a/#", "a/b/c/d"]
    assert shape(trie) == shape(trie_of(["a/b/c/d", "a/b/c/e", "a/#"]))


def test_covering_lists_the_wider_filters():
    trie = trie_of(["#", "+/#", "+/b", "a/#", "a/+", "a/b", "a/+/#", "/#", "/+/#", "$x/#"])
    assert trie.covering("a/b") == ["#", "+/#", "+/b", "a/#", "a/+", "a/+/#", "a/b"]
    assert trie.covering("a/+") == ["#", "+/#", "a/#", "a/+", "a/+/#"]
    assert trie.covering("a/#") == ["#", "+/#", "a/#"]
    assert trie.covering("#") == ["#", "+/#"]
    assert trie.covering("/#") == ["#", "+/#", "/#", "/+/#"]
    assert trie.covering("$x/+") == ["$x/#"]
    assert trie.covering("$y/+") == []


def test_covered_lists_the_narrower_filters():
    trie = trie_of(["#", "+/#", "+/b", "a/#", "a/+", "a/b", "a", "/#", "/+/#", "$x/#", "$x/a/b"])
    assert trie.covered("#") == ["#", "+/#", "+/b", "/#", "/+/#", "a", "a/#", "a/+", "a/b"]
    assert trie.covered("+/#") == trie.covered("#")
    assert trie.covered("+/+/#") == ["+/b", "/#", "/+/#", "a/+", "a/b"]
    assert trie.covered("/+/#") == ["/#", "/+/#"]
    assert trie.covered("a/#") == ["a", "a/#", "a/+", "a/b"]
    assert trie.covered("+/b") == ["+/b", "a/b"]
    assert trie.covered("a/b") == ["a/b"]
    assert trie.covered("$x/#") == ["$x/#", "$x/a/b"]
    assert trie.covered("b/#") == []


@pytest.mark.parametrize(
    ("topic_filter", "does_overlap"),
    [
        *[("+/temp", True), ("plant/#", True), ("plant/line/temp", True), ("+/+/+/x", True)],
        *[("#", True), ("+", False), ("/", False), ("plant", False), ("city/state", False)],
        *[("$SYS/#", False), ("+/x", False)],
    ],
)
def test_filters_overlap_if_a_topic_matches_both(topic_filter, does_overlap):
    trie = trie_of(["plant/line/#", "plant/+/state", "+/temp", "a/b/c/#"])
    assert trie.overlaps(topic_filter) is does_overlap


def test_depth_needs_no_stack():
    deep = "/".join(["a"] * 5_000)
    trie = trie_of([deep, f"{deep}/+", f"{deep}/#"])
    assert sorted(trie.match(deep)) == [deep, f"{deep}/#"]
    assert trie.covered("#") == [deep, f"{deep}/#", f"{deep}/+"]
    assert matches(f"{deep}/#", deep)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["a/b/c"], {"a": "a/b/c"}),
        (["a/b/c", "a/d"], {"a": {"b": "a/b/c", "d": "a/d"}}),
        (["a/b", "a/b/#", "a/b/+/c"], {"a": {"b": {"/": "a/b", "#": "a/b/#", "+": "a/b/+/c"}}}),
    ],
)
def test_branch_exists_only_where_filters_differ(filters, expected):
    assert shape(trie_of(filters)) == (expected, {})


steps = st.tuples(st.booleans(), st.one_of(small_filters, deep_filters), st.integers())


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=40), deep_topics, st.one_of(small_filters, deep_filters))
def test_trie_answers_as_a_scan_of_its_filters(steps, topic, probe):
    trie = FilterTrie[int]()
    model: dict[str, int] = {}
    for is_put, topic_filter, value in steps:
        if is_put:
            trie.put(topic_filter, value)
            model[topic_filter] = value
        else:
            assert trie.remove(topic_filter) == (topic_filter in model)
            model.pop(topic_filter, None)
        assert (len(trie), trie.get(topic_filter)) == (len(model), model.get(topic_filter))
    assert all(trie.get(text) == value and text in trie for text, value in model.items())
    assert trie.covering(probe) == sorted(text for text in model if covers(text, probe))
    assert trie.covered(probe) == sorted(text for text in model if covers(probe, text))
    assert trie.is_covered(probe) == any(covers(text, probe) for text in model)
    assert trie.overlaps(probe) == any(intersect(text, probe) is not None for text in model)
    expected = [value for text, value in model.items() if reference_matches(text, topic)]
    assert sorted(trie.match(topic)) == sorted(expected)


@settings(max_examples=200, deadline=None)
@given(st.lists(small_filters, unique=True, max_size=25), st.sampled_from(TOPICS))
def test_trie_matches_as_the_reference(filters, topic):
    assert sorted(trie_of(filters).match(topic)) == sorted(
        text for text in filters if topic in topics_of(text)
    )


@settings(max_examples=200, deadline=None)
@given(
    st.lists(small_filters, unique=True, max_size=25),
    st.lists(small_filters, unique=True, max_size=25),
    st.sampled_from(TOPICS),
)
def test_shape_and_order_depend_only_on_what_is_stored(filters, passing, topic):
    plain = trie_of(filters)
    other = trie_of([*passing, *reversed(filters)])
    for topic_filter in passing:
        if topic_filter not in filters:
            other.remove(topic_filter)
    assert shape(other) == shape(plain)
    assert other.match(topic) == plain.match(topic)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(small_filters, deep_filters), unique=True), st.randoms())
def test_trie_emptied_in_any_order_keeps_no_branch(filters, random):
    trie = trie_of(filters)
    random.shuffle(filters)
    assert all(trie.remove(topic_filter) for topic_filter in filters)
    assert (len(trie), shape(trie)) == (0, ({}, {}))


STORY = """
from hansa.protocol.topics import FilterTrie, remove_covered
filters = {f"{a}/{b}{c}" for a in "ab+" for b in "cde+" for c in ("", "/#", "/+")} | {"#", "$x/#"}
trie = FilterTrie()
for text in sorted(filters):
    trie.put(text, text)
print(trie.match("a/c"), trie.covering("a/c/+"), trie.covered("a/#"), remove_covered(filters))
"""


def test_answers_do_not_depend_on_the_hash_seed():
    counted = [
        subprocess.run(
            [sys.executable, "-c", STORY],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("0", "1")
    ]
    assert counted[0] == counted[1] != b""


def test_stored_filter_costs_little_more_than_a_leaf_and_a_dict_entry():
    filters = [f"site/{n % 25}/line/{n // 25 % 8}/sensor/{n}/temp" for n in range(10_000)]
    trie = FilterTrie[None]()
    tracemalloc.start()
    try:
        for topic_filter in filters:
            trie.put(topic_filter, None)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / len(trie) < 250


@pytest.mark.parametrize(
    ("text", "valid"), [("a/+/#", True), ("a/#/b", False), ("x" * 2000, False)]
)
def test_filter_is_one_that_passes_the_check(text: str, valid: bool) -> None:
    assert is_filter(text) is valid
