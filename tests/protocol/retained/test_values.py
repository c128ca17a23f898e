"""Versions of retained values at one node; the rules are proved in test_spec_retained.py."""

import pytest
from msgspec.structs import replace

from hansa.protocol.clock import WallClock
from hansa.protocol.effects import Ignored, ListRetained, PublishRetained, ReadRetained
from hansa.protocol.events import ClientPublished, RetainedListed, RetainedRead
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.retained import values as retained_module
from hansa.protocol.retained.checks import RECENT
from hansa.protocol.retained.clock import AHEAD_MAX_S, VERSIONS_PER_MS
from hansa.protocol.retained.digest import RetainedEntry, payload_digest
from hansa.protocol.retained.sync import VERSIONS_PER_FRAME_MAX
from hansa.protocol.retained.values import OLDEST_VERSION, TOPICS_PER_REQUEST_MAX, RetainedState
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import (
    RETAINED_BUCKETS,
    RetainedDigests,
    RetainedRequest,
    RetainedValuesFrame,
    RetainedVersions,
)

ME, YOU, OTHER = NodeId(2), NodeId(3), NodeId(1)
ALL = tuple(range(RETAINED_BUCKETS))


def retained(
    known: dict[str, RetainedEntry] | None = None,
    wanted: tuple[str, ...] = ("a",),
    receivers: tuple[NodeId, ...] = (YOU,),
    **settings: object,
) -> RetainedState:
    made = RetainedState(
        ME,
        ProtocolSettings(**settings),  # type: ignore[arg-type]
        lambda topic: topic in wanted,
        lambda topic: receivers,
        known or {},
        WallClock(1_000),
    )
    made.begin(0.0)
    return made


def value(version: int, owner: NodeId, payload: bytes = b"x") -> RetainedEntry:
    return RetainedEntry(version, owner, payload_digest(payload))


def sent(version: int, payload: bytes = b"x", topic: str = "a", qos: int = 0) -> Publication:
    return Publication(YOU, 0, 0, qos, topic, payload, True, version=version)


def confirm(made: RetainedState) -> None:
    """The broker is read once, and stores what is known."""
    seen = tuple((topic, each.digest) for topic, each in made.entries.items() if each.digest)
    assert made.on_retained_listed(RetainedListed(tuple(made.entries), seen)) == []


def test_of_equal_versions_that_of_the_greater_node_is_newer():
    made = retained({"a": value(5, ME)})
    assert made.receive_unicast(RetainedValuesFrame(ME, YOU, (encode(sent(5, b"y")),))) == [
        PublishRetained(sent(5, b"y"))
    ]
    made = retained({"a": value(5, ME)})
    assert made.receive_unicast(RetainedValuesFrame(ME, OTHER, (encode(sent(5, b"y")),))) == []


def test_without_a_clock_versions_only_count():
    made = RetainedState(
        ME, ProtocolSettings(), lambda topic: True, lambda topic: (), {}, WallClock(0)
    )
    assert [made.assign_version(ClientPublished("a", b"x", retain=True)) for _ in range(2)] == [
        1,
        2,
    ]


def test_values_that_nobody_here_wants_or_that_cannot_be_read_are_left_alone():
    made = retained()
    letter = RetainedValuesFrame(ME, YOU, (encode(sent(5, topic="b")), encode(sent(6)), b"none"))
    assert made.receive_unicast(letter) == [
        PublishRetained(sent(6)),
        Ignored("invalid retained value"),
    ]


def test_a_deletion_of_what_is_not_here_is_noted_and_not_published():
    made = retained()
    assert made.receive_unicast(RetainedValuesFrame(ME, YOU, (encode(sent(5, b"")),))) == []
    assert made.entries == {"a": RetainedEntry(5, YOU)}


def test_deletion_of_what_is_known_to_be_deleted_is_neither_published_nor_checked():
    made = retained({"a": RetainedEntry(4, YOU)})
    assert made.receive_unicast(RetainedValuesFrame(ME, YOU, (encode(sent(5, b"")),))) == []
    made.begin(1.0)
    assert not any(isinstance(each, ListRetained) for each in made.handle_timer())


def test_unsuccessful_repairs_are_counted_for_a_bounded_number_of_topics():
    topics = ("a", "b")
    made = retained({t: value(5, YOU) for t in topics}, wanted=topics, retained_max=1)
    for _ in range(2):
        made.distrust(topics)
        asked = made.on_retained_listed(RetainedListed(topics, ()))
        assert asked == [RetainedRequest(YOU, ME, (), tuple((t, 0) for t in topics))]
        made.entries.update({t: value(5, YOU) for t in topics})


def test_who_owns_nothing_offers_nothing():
    made = retained({"a": value(5, YOU)})
    made.schedule_digest(YOU)
    assert made.handle_timer() == []


def test_what_differs_is_listed_and_asked_for_in_parts():
    owner = retained({f"{n}": value(n + 1, ME) for n in range(VERSIONS_PER_FRAME_MAX + 1)})
    listings = owner.receive_unicast(RetainedRequest(ME, YOU, ALL))
    assert [len(each.entries) for each in listings if isinstance(each, RetainedVersions)] == [
        VERSIONS_PER_FRAME_MAX,
        1,
    ]
    assert owner.receive_unicast(RetainedRequest(ME, YOU, ())) == []
    topics = tuple(f"{n}" for n in range(TOPICS_PER_REQUEST_MAX + 1))
    asking = retained(wanted=topics)
    asked = asking.receive_unicast(RetainedVersions(ME, YOU, tuple((topic, 1) for topic in topics)))
    assert [len(each.topics) for each in asked if isinstance(each, RetainedRequest)] == [
        TOPICS_PER_REQUEST_MAX,
        1,
    ]


def test_an_owner_that_knows_less_than_before_is_asked_and_takes_a_new_version():
    asking = retained({"a": value(9, YOU)})
    assert asking.receive_unicast(RetainedVersions(ME, YOU, (("a", 1), ("b", 1)))) == [
        RetainedRequest(YOU, ME, (), (("a", 9),))
    ]
    assert asking.receive_unicast(RetainedVersions(ME, OTHER, (("a", 1),))) == []
    assert asking.handle_timer() == [
        RetainedVersions(OTHER, YOU, (("a", 9),))
    ]  # it may set its broker right
    owner = retained({"a": value(1, ME), "b": value(1, YOU)})
    order = owner.receive_unicast(RetainedRequest(ME, YOU, (), (("a", 9), ("b", 0), ("c", 0))))
    assert order == [ReadRetained(YOU, ("a",))]
    assert owner.entries["a"].version > 9


def test_a_deletion_is_answered_at_once():
    owner = retained({"a": RetainedEntry(5, ME)})
    gone = Publication(ME, 0, 0, 0, "a", b"", True, version=5)
    assert owner.receive_unicast(RetainedRequest(ME, YOU, (), (("a", 0),))) == [
        RetainedValuesFrame(YOU, ME, (encode(gone),))
    ]


def test_what_changed_since_it_was_asked_for_is_not_sent():
    owner = retained({"a": value(5, ME), "b": value(6, ME)})
    read = RetainedRead(
        YOU,
        (
            ClientPublished("a", b"x", 1, True, b"\x01\x01"),
            ClientPublished("b", b"newer", retain=True),
            ClientPublished("c", b"x", retain=True),
        ),
    )
    expected = Publication(ME, 0, 0, 1, "a", b"x", True, properties=b"\x01\x01", version=5)
    assert owner.on_retained_read(read) == [RetainedValuesFrame(YOU, ME, (encode(expected),))]


def test_large_values_travel_apart():
    payload = bytes(600)
    owner = retained({t: value(5, ME, payload) for t in "abc"}, repair_bytes=1_500)
    read = RetainedRead(YOU, tuple(ClientPublished(t, payload, retain=True) for t in "abc"))
    assert [
        len(each.publications)
        for each in owner.on_retained_read(read)
        if isinstance(each, RetainedValuesFrame)
    ] == [
        2,
        1,
    ]


def test_digests_that_agree_need_no_answer():
    owner = retained({"a": value(5, ME)})
    owner.schedule_digest(YOU)
    (holdings,) = owner.handle_timer()
    assert isinstance(holdings, RetainedDigests)
    same = RetainedState(
        YOU,
        ProtocolSettings(),
        lambda t: True,
        lambda t: (),
        {"a": value(5, ME), "b": value(1, YOU)},
        WallClock(1_000),
    )
    assert same.receive_unicast(holdings) == []
    other = RetainedState(
        YOU, ProtocolSettings(), lambda t: True, lambda t: (), {}, WallClock(1_000)
    )
    (ask,) = other.receive_unicast(holdings)
    assert isinstance(ask, RetainedRequest)
    assert len(ask.buckets) == 1


@pytest.mark.parametrize(
    ("known", "found", "left"),
    [
        (None, b"y", value(OLDEST_VERSION, ME, b"y")),
        (value(5, YOU), b"x", value(5, YOU)),
        (value(5, YOU), b"", value(5, YOU)),
        (RetainedEntry(5, YOU), b"", RetainedEntry(5, YOU)),
    ],
    ids=["new", "as it should be", "missing", "deleted"],
)
def test_a_survey_settles_what_is_known(known, found, left):
    made = retained({"a": known} if known else {})
    confirm(made)
    seen = (("a", payload_digest(found)),) if found else ()
    asked = made.on_retained_listed(RetainedListed(("a",), seen))
    is_missing = known is not None and bool(known.digest) and not found
    missing = Ignored("retained value missing at the broker")
    assert asked == ([missing] if is_missing else [])
    assert made.entries.get("a") == left


def test_a_survey_of_too_many_topics_is_counted():
    made = retained({"z": value(5, YOU)}, retained_max=1)
    assert made.on_retained_listed(RetainedListed(("a",), (("a", b"y"),))) == [
        Ignored("retained_max")
    ]


def test_what_a_client_wrote_unseen_gets_a_new_version_and_is_offered():
    made = retained({"a": value(5, YOU)})
    confirm(made)
    assert made.on_retained_listed(RetainedListed(("#",), (("a", payload_digest(b"y")),))) == []
    assert made.entries["a"] == RetainedEntry(
        6, ME, payload_digest(b"y")
    )  # and nobody's who wrote since
    assert made.handle_timer() == [RetainedVersions(YOU, ME, (("a", 6),))]


def test_value_of_another_node_that_was_not_confirmed_since_the_start_is_never_claimed():
    """The last write of an earlier run may not have reached the broker."""
    made = retained({"a": value(5, YOU)})
    assert made.on_retained_listed(RetainedListed(("#",), (("a", payload_digest(b"y")),))) == [
        RetainedRequest(YOU, ME, (), (("a", 0),))
    ]
    assert made.entries["a"] == RetainedEntry(0, YOU, payload_digest(b"y"))


def test_repairs_of_one_survey_are_asked_for_together():
    topics = tuple(f"{n}" for n in range(TOPICS_PER_REQUEST_MAX + 1))
    known = {topic: value(5, YOU) for topic in topics} | {"gone": RetainedEntry(5, YOU)}
    made = retained(known, wanted=tuple(known))
    stored = RetainedListed(tuple(known), (("gone", payload_digest(b"x")),))
    gone, *asked = made.on_retained_listed(stored)
    assert gone == PublishRetained(sent(5, b"", "gone", 1))
    assert [len(each.topics) for each in asked if isinstance(each, RetainedRequest)] == [
        TOPICS_PER_REQUEST_MAX,
        1,
    ]


@pytest.mark.parametrize(("qos", "is_doubtful"), [((1, 1), False), ((0, 1), True), ((0, 0), False)])
def test_a_client_that_writes_at_two_qualities_may_have_been_seen_out_of_order(qos, is_doubtful):
    made = retained()
    for each in qos:
        made.assign_version(ClientPublished("a", b"%d" % each, each, retain=True))
    made.begin(1.0)
    assert (ListRetained(("a",)) in made.handle_timer()) == is_doubtful


def test_what_changed_a_moment_ago_is_looked_at_again():
    made = retained()
    made.resolve_retain_flag(sent(5))
    assert made.on_retained_listed(RetainedListed(("a",), ())) == []
    assert made.entries["a"] == value(5, YOU)
    made.begin(1.0)
    assert ListRetained(("a",)) in made.handle_timer()


def test_what_changed_when_the_broker_may_not_have_had_it_is_looked_at_again():
    made = retained()
    made.resolve_retain_flag(sent(5))
    made.begin(4.0)
    late = RetainedListed(("a",), (("a", payload_digest(b"older")),), age=3.5)
    assert made.on_retained_listed(late) == []
    assert made.entries["a"] == value(5, YOU)
    made.begin(5.0)
    assert ListRetained(("a",)) in made.handle_timer()


def test_a_survey_that_took_longer_than_changes_are_known_is_made_again():
    made = retained({"a": value(5, YOU)})
    older = (("a", payload_digest(b"older")),)
    assert made.on_retained_listed(RetainedListed(("a",), older, RECENT)) == [ListRetained(("a",))]
    assert made.entries["a"] == value(5, YOU)


def test_what_was_published_at_qos_0_is_listed_once_it_has_settled():
    made = retained(wanted=("a", "c"))
    made.assign_version(ClientPublished("a", b"x", retain=True))
    version = made.assign_version(ClientPublished("a", b"y", retain=True))
    made.assign_version(ClientPublished("b", b"x", 1, retain=True))
    made.assign_version(ClientPublished("c", b"x", retain=True))
    made.resolve_retain_flag(sent(version + 10, topic="c"))
    assert made.handle_timer() == []
    made.begin(1.0)
    assert RetainedVersions(YOU, ME, (("a", version),)) in made.handle_timer()
    made.assign_version(ClientPublished("d", b"x", retain=True))
    del made.entries["d"]
    made.begin(2.0)
    assert not any(isinstance(each, RetainedVersions) for each in made.handle_timer())


def test_a_deletion_that_nobody_wants_here_needs_no_clearing():
    made = retained({"b": RetainedEntry(5, YOU)})
    assert made.on_retained_listed(RetainedListed(("b",), ())) == []
    assert made.entries == {}


def test_only_what_is_not_wanted_ends():
    made = retained({"a": value(5, YOU), "b": value(6, ME), "c": value(7, YOU)})
    made.on_local_interest_removed(["#"])
    made.on_remote_interest_removed(["$share/g/+"])
    made.begin(1.0)
    assert made.handle_timer() == [ListRetained(("c",))]
    assert list(made.entries) == ["a", "b", "c"]


def test_nothing_ends_where_nothing_was_withdrawn():
    made = retained({"b": value(5, YOU), "a": value(6, ME)}, receivers=())
    made.on_local_interest_removed([])
    made.on_remote_interest_removed([])
    made.begin(1.0)
    assert (list(made.entries), made.handle_timer()) == (["b", "a"], [])
    assert made.on_filters_granted([]) == []


def test_very_many_copies_that_may_be_lost_are_listed_some_at_a_time(monkeypatch):
    monkeypatch.setattr(retained_module, "SLICE_TOPICS", 2)
    made = retained()
    for number in range(5):
        made.assign_version(ClientPublished(f"t/{number}", b"x", retain=True))
    made.begin(2.0)
    told = [made.handle_timer() for _ in range(3)]
    listed = [[len(e.entries) for e in step if isinstance(e, RetainedVersions)] for step in told]
    assert listed == [[2], [2], [1]]


def test_an_owner_that_nobody_here_asked_for_is_asked_for_what_is_newer_than_ours():
    made = retained({"b": value(5, ME)})
    assert made.receive_unicast(RetainedVersions(ME, YOU, (("b", 6), ("c", 6)))) == [
        RetainedRequest(YOU, ME, (), (("b", 5),))
    ]
    newer = sent(6, b"y", topic="b")
    assert made.receive_unicast(RetainedValuesFrame(ME, YOU, (encode(newer),))) == [
        PublishRetained(newer)
    ]


def test_who_takes_over_a_value_makes_its_former_owner_know():
    made = retained({"a": value(5, OTHER)})
    made.resolve_retain_flag(sent(6, b"y"))
    made.resolve_retain_flag(sent(7, b"z"))
    assert made.next_deadline() == 0.0
    assert made.handle_timer() == [RetainedVersions(OTHER, YOU, (("a", 6),))]


def test_what_is_only_wanted_by_shares_is_not_kept():
    made = retained(wanted=())
    assert made.resolve_retain_flag(sent(5)) == replace(sent(5), retain=False)
    assert made.entries == {}


def test_a_version_from_far_ahead_is_not_kept_and_counted():
    made = retained()
    ahead = int((1.0 + AHEAD_MAX_S) * 1000) * VERSIONS_PER_MS + 1
    assert made.resolve_retain_flag(sent(ahead)) == replace(sent(ahead), retain=False)
    assert made.next_deadline() == 0.0
    assert made.handle_timer() == [Ignored("retained version ahead of the clock")]
    assert made.receive_unicast(RetainedValuesFrame(ME, YOU, (encode(sent(ahead)),))) == []
    assert made.receive_unicast(RetainedVersions(ME, YOU, (("a", ahead),))) == []
    assert made.entries == {}
    owner = retained({"a": value(1, ME)})
    owner.receive_unicast(RetainedRequest(ME, YOU, (), (("a", ahead),)))
    assert owner.entries["a"].version == 1


def test_what_a_former_life_did_not_get_to_clear_is_looked_at():
    made = retained({"a": value(5, YOU), "b": value(6, YOU), "c": value(7, ME)})
    made.begin(10.0)
    assert made.handle_timer() == []
    made.begin(11.0)
    assert made.handle_timer() == [ListRetained(("b",))]


def test_what_others_want_no_more_is_forgotten_only_where_it_is_much():
    for most, left in ((4, ["a", "b"]), (3, ["a"])):
        made = retained({"a": value(5, YOU), "b": value(6, ME)}, receivers=(), retained_max=most)
        made.on_remote_interest_removed(["#"])
        assert list(made.entries) == left
