"""Rights of a node: topics and filters within its certificate."""

import pytest
from hypothesis import given
from tests.protocol.arbitrary import filters, topic_names

from hansa.protocol.membership.rights import NO_RIGHTS, UNLIMITED, Rights
from hansa.protocol.topics import intersect, is_filter, is_local_only, matches, split_share

PLANT_A = Rights(may_publish=("plant/a/+",), may_subscribe=("plant/a/#", "site/+/temp"))


def test_unlimited_node_may_do_everything():
    assert UNLIMITED.allows_publishing("a") and UNLIMITED.allows_receiving("a")
    assert UNLIMITED.allows_interest("$share/g/a") and not UNLIMITED.limits_publishing
    assert UNLIMITED.narrow("$share/g/#") == ("$share/g/#",)


def test_node_without_rights_may_do_nothing():
    assert not NO_RIGHTS.allows_publishing("a") and not NO_RIGHTS.allows_receiving("a")
    assert not NO_RIGHTS.allows_interest("a") and NO_RIGHTS.narrow("#") == ()


def test_topics_must_match_a_filter_of_the_certificate():
    assert PLANT_A.limits_publishing
    assert [PLANT_A.allows_publishing(t) for t in ("plant/a/1", "plant/a", "x")] == [True, 0, 0]
    assert [PLANT_A.allows_receiving(t) for t in ("plant/a", "site/1/temp", "x")] == [True, 1, 0]


@pytest.mark.parametrize(
    ("topic_filter", "narrowed"),
    [
        ("plant/a/1", ("plant/a/1",)),
        ("$share/g/plant/a/#", ("$share/g/plant/a/#",)),
        ("#", ("plant/a/#", "site/+/temp")),
        ("+/+/+", ("plant/a/+", "site/+/temp")),
        ("$share/g/+/a/temp", ("$share/g/plant/a/temp", "$share/g/site/a/temp")),
        ("plant/b", ()),
    ],
)
def test_filter_is_narrowed_to_what_the_node_may_receive(topic_filter, narrowed):
    assert PLANT_A.narrow(topic_filter) == narrowed
    assert all(PLANT_A.allows_interest(each) for each in narrowed)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("#", "a/+", "a/+"),
        ("a/#", "a", "a"),
        ("a/#", "+", "a"),
        ("a/#", "+/b/#", "a/b/#"),
        ("+/b", "a/+", "a/b"),
        ("a/+", "a", None),
        ("a", "b", None),
        ("a/b", "a/b", "a/b"),
        ("#", "$SYS/a", None),
        ("$SYS/#", "+/a", None),
        ("$SYS/#", "$SYS/+", "$SYS/+"),
        ("/#", "+", None),
    ],
)
def test_intersection_of_two_filters(one, other, both):
    assert (intersect(one, other), intersect(other, one)) == (both, both)


@given(filters, filters, topic_names)
def test_intersection_matches_what_both_filters_match(one, other, topic):
    one, other = split_share(one)[1], split_share(other)[1]
    both = intersect(one, other)
    if not is_local_only(topic):
        expected = matches(one, topic) and matches(other, topic)
        assert (both is not None and matches(both, topic)) == expected
    assert both is None or is_filter(both)
