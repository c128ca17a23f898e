"""Retained values at one node; the rules are tested in test_spec_retained.py."""

import pytest
from msgspec.structs import replace

from hansa.protocol.clock import WallClock
from hansa.protocol.effects import Ignored, ListRetained, PublishRetained, ReadRetained
from hansa.protocol.events import ClientPublished, RetainedListed, RetainedRead
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.retained import values as retained_module
from hansa.protocol.retained.checks import RECENT, STEP_MAX
from hansa.protocol.retained.clock import AHEAD_MAX_S, VERSIONS_PER_MS
from hansa.protocol.retained.digest import RetainedEntry, payload_digest
from hansa.protocol.retained.sync import VERSIONS_PER_FRAME_MAX
from hansa.protocol.retained.values import OLDEST_VERSION, TOPICS_PER_REQUEST_MAX, RetainedState
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.topics import TOPIC_BYTES_MAX
from hansa.protocol.wire.codec import decode, encode
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
    subscribed: tuple[str, ...] = ("a",),
    receivers: tuple[NodeId, ...] = (YOU,),
    **settings: object,
) -> RetainedState:
    made = RetainedState(
        ME,
        ProtocolSettings(**settings),  # type: ignore[arg-type]
        lambda topic: topic in subscribed,
        lambda topic: receivers,
        known or {},
        WallClock(1_000),
    )
    made.set_now(0.0)
    return made


def value(version: int, owner: NodeId, payload: bytes = b"x") -> RetainedEntry:
    return RetainedEntry(version, owner, payload_digest(payload))


def sent(version: int, payload: bytes = b"x", topic: str = "a", qos: int = 0) -> Publication:
    return Publication(YOU, 0, 0, qos, topic, payload, True, version=version)


def confirm(made: RetainedState) -> None:
    """The broker is listed once, and stores the known values."""
    seen = tuple((topic, each.digest) for topic, each in made.entries.items() if each.digest)
    assert made.on_retained_listed(RetainedListed(tuple(made.entries), seen)) == []


def test_of_equal_versions_that_of_the_greater_node_is_newer():
    made = retained({"a": value(5, ME)})
    assert made.receive_unicast(RetainedValuesFrame(ME, YOU, (encode(sent(5, b"y")),))) == [
        PublishRetained(sent(5, b"y"))
    ]
    made = retained({"a": value(5, ME)})
    assert made.receive_unicast(RetainedValuesFrame(ME, OTHER, (encode(sent(5, b"y")),))) == []


def test_versions_only_count_without_a_clock():
    made = RetainedState(
        ME, ProtocolSettings(), lambda topic: True, lambda topic: (), {}, WallClock(0)
    )
    assert [made.assign_version(ClientPublished("a", b"x", retain=True)) for _ in range(2)] == [
        1,
        2,
    ]


def test_values_without_interest_and_invalid_values_are_ignored():
    made = retained()
    frame = RetainedValuesFrame(ME, YOU, (encode(sent(5, topic="b")), encode(sent(6)), b"none"))
    assert made.receive_unicast(frame) == [
        PublishRetained(sent(6)),
        Ignored("invalid retained value"),
    ]


def test_deletion_of_an_unknown_value_is_stored_and_not_published():
    made = retained()
    assert made.receive_unicast(RetainedValuesFrame(ME, YOU, (encode(sent(5, b"")),))) == []
    assert made.entries == {"a": RetainedEntry(5, YOU)}


def test_repeated_deletion_is_neither_published_nor_checked():
    made = retained({"a": RetainedEntry(4, YOU)})
    assert made.receive_unicast(RetainedValuesFrame(ME, YOU, (encode(sent(5, b"")),))) == []
    made.set_now(1.0)
    assert not any(isinstance(each, ListRetained) for each in made.handle_timer())


def test_unsuccessful_repairs_are_counted_for_a_bounded_number_of_topics():
    topics = ("a", "b")
    made = retained({t: value(5, YOU) for t in topics}, subscribed=topics, retained_max=1)
    for _ in range(2):
        made.mark_uncertain(topics)
        asked = made.on_retained_listed(RetainedListed(topics, ()))
        assert asked == [RetainedRequest(YOU, ME, (), tuple((t, 0) for t in topics))]
        made.entries.update({t: value(5, YOU) for t in topics})


def test_node_without_values_sends_no_digest():
    made = retained({"a": value(5, YOU)})
    made.schedule_digest(YOU)
    assert made.handle_timer() == []


def test_differing_values_are_listed_and_requested_in_parts():
    owner = retained({f"{n}": value(n + 1, ME) for n in range(VERSIONS_PER_FRAME_MAX + 1)})
    listings = owner.receive_unicast(RetainedRequest(ME, YOU, ALL))
    assert [len(each.entries) for each in listings if isinstance(each, RetainedVersions)] == [
        VERSIONS_PER_FRAME_MAX,
        1,
    ]
    assert owner.receive_unicast(RetainedRequest(ME, YOU, ())) == []
    topics = tuple(f"{n}" for n in range(TOPICS_PER_REQUEST_MAX + 1))
    asking = retained(subscribed=topics)
    asked = asking.receive_unicast(RetainedVersions(ME, YOU, tuple((topic, 1) for topic in topics)))
    assert [len(each.topics) for each in asked if isinstance(each, RetainedRequest)] == [
        TOPICS_PER_REQUEST_MAX,
        1,
    ]


def test_long_topics_are_listed_and_requested_in_frames_within_the_bounds():
    topics = tuple(f"{n:02}".ljust(TOPIC_BYTES_MAX, "t") for n in range(20))
    owner = retained({topic: value(1, ME) for topic in topics})
    listings = owner.receive_unicast(RetainedRequest(ME, YOU, ALL))
    asking = retained(subscribed=topics)
    asked = asking.receive_unicast(RetainedVersions(ME, YOU, tuple((topic, 1) for topic in topics)))
    assert [decode(encode(each)) for each in (*listings, *asked)] == [*listings, *asked]  # type: ignore[arg-type]
    assert [entry for each in listings for entry in each.entries] == [(t, 1) for t in topics]  # type: ignore[union-attr]
    assert [entry for each in asked for entry in each.topics] == [(t, 0) for t in topics]  # type: ignore[union-attr]


def test_digests_are_scheduled_without_a_look_at_all_values(monkeypatch):
    made = retained({"a": value(1, YOU)})
    monkeypatch.setattr(made, "entries", None)
    made.schedule_digest(YOU)
    assert made.next_deadline() != 0.0, "a node without own values sends no digests"
    made = retained({"a": value(1, YOU)})
    made.assign_version(ClientPublished("b", b"x", retain=True))
    monkeypatch.setattr(made, "entries", None)
    made.schedule_digest(YOU)
    assert made.next_deadline() == 0.0


def test_owner_that_lost_a_version_is_asked_and_assigns_a_new_one():
    asking = retained({"a": value(9, YOU)})
    assert asking.receive_unicast(RetainedVersions(ME, YOU, (("a", 1), ("b", 1)))) == [
        RetainedRequest(YOU, ME, (), (("a", 9),))
    ]
    assert asking.receive_unicast(RetainedVersions(ME, OTHER, (("a", 1),))) == []
    assert asking.handle_timer() == [
        RetainedVersions(OTHER, YOU, (("a", 9),))
    ]  # it may correct its broker
    owner = retained({"a": value(1, ME), "b": value(1, YOU)})
    order = owner.receive_unicast(RetainedRequest(ME, YOU, (), (("a", 9), ("b", 0), ("c", 0))))
    assert order == [ReadRetained(YOU, ("a",))]
    assert owner.entries["a"].version > 9


def test_deletion_is_answered_at_once():
    owner = retained({"a": RetainedEntry(5, ME)})
    gone = Publication(ME, 0, 0, 0, "a", b"", True, version=5)
    assert owner.receive_unicast(RetainedRequest(ME, YOU, (), (("a", 0),))) == [
        RetainedValuesFrame(YOU, ME, (encode(gone),))
    ]


def test_value_that_changed_since_the_request_is_not_sent():
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


def test_large_values_are_sent_in_separate_frames():
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
def test_listing_confirms_known_values(known, found, left):
    made = retained({"a": known} if known else {})
    confirm(made)
    seen = (("a", payload_digest(found)),) if found else ()
    asked = made.on_retained_listed(RetainedListed(("a",), seen))
    is_missing = known is not None and bool(known.digest) and not found
    missing = Ignored("retained value missing at the broker")
    assert asked == ([missing] if is_missing else [])
    assert made.entries.get("a") == left


def test_listing_of_too_many_topics_is_counted():
    made = retained({"z": value(5, YOU)}, retained_max=1)
    assert made.on_retained_listed(RetainedListed(("a",), (("a", b"y"),))) == [
        Ignored("retained_max")
    ]


def test_value_written_unseen_gets_a_new_version_and_is_announced():
    made = retained({"a": value(5, YOU)})
    confirm(made)
    assert made.on_retained_listed(RetainedListed(("#",), (("a", payload_digest(b"y")),))) == []
    assert made.entries["a"] == RetainedEntry(
        6, ME, payload_digest(b"y")
    )  # and of no node that wrote since
    assert made.handle_timer() == [RetainedVersions(YOU, ME, (("a", 6),))]


def test_value_of_another_node_that_was_not_confirmed_since_the_start_is_never_claimed():
    """The last write of an earlier run may not have reached the broker."""
    made = retained({"a": value(5, YOU)})
    assert made.on_retained_listed(RetainedListed(("#",), (("a", payload_digest(b"y")),))) == [
        RetainedRequest(YOU, ME, (), (("a", 0),))
    ]
    assert made.entries["a"] == RetainedEntry(0, YOU, payload_digest(b"y"))


def test_repairs_of_one_listing_are_requested_together():
    topics = tuple(f"{n}" for n in range(TOPICS_PER_REQUEST_MAX + 1))
    known = {topic: value(5, YOU) for topic in topics} | {"gone": RetainedEntry(5, YOU)}
    made = retained(known, subscribed=tuple(known))
    stored = RetainedListed(tuple(known), (("gone", payload_digest(b"x")),))
    gone, *asked = made.on_retained_listed(stored)
    assert gone == PublishRetained(sent(5, b"", "gone", 1))
    assert [len(each.topics) for each in asked if isinstance(each, RetainedRequest)] == [
        TOPICS_PER_REQUEST_MAX,
        1,
    ]


@pytest.mark.parametrize(("qos", "is_doubtful"), [((1, 1), False), ((0, 1), True), ((0, 0), False)])
def test_writes_of_a_client_at_two_qos_levels_may_be_captured_out_of_order(qos, is_doubtful):
    made = retained()
    for each in qos:
        made.assign_version(ClientPublished("a", b"%d" % each, each, retain=True))
    made.set_now(1.0)
    assert (ListRetained(("a",)) in made.handle_timer()) == is_doubtful


def test_recently_changed_topic_is_listed_again():
    made = retained()
    made.resolve_retain_flag(sent(5))
    assert made.on_retained_listed(RetainedListed(("a",), ())) == []
    assert made.entries["a"] == value(5, YOU)
    made.set_now(1.0)
    assert ListRetained(("a",)) in made.handle_timer()


def test_topic_changed_before_the_broker_had_it_is_listed_again():
    made = retained()
    made.resolve_retain_flag(sent(5))
    made.set_now(4.0)
    late = RetainedListed(("a",), (("a", payload_digest(b"older")),), age=3.5)
    assert made.on_retained_listed(late) == []
    assert made.entries["a"] == value(5, YOU)
    made.set_now(5.0)
    assert ListRetained(("a",)) in made.handle_timer()


def test_topics_of_a_listing_that_took_too_long_are_listed_in_smaller_steps():
    made = retained({"a": value(5, YOU), "b": value(6, YOU)})
    found = (("a", payload_digest(b"older")), ("c", payload_digest(b"z")))
    assert made.on_retained_listed(RetainedListed(("#",), found, RECENT)) == []
    assert made.entries == {"a": value(5, YOU), "b": value(6, YOU)}
    made.set_now(1.0)
    assert made.handle_timer() == [ListRetained(("a", "b", "c"))]
    made.on_retained_listed(RetainedListed(("c",), found[1:]))
    assert made.entries["c"] == value(OLDEST_VERSION, ME, b"z")


def test_very_slow_broker_is_listed_to_an_end():
    """It answers listings of up to 100 topics in time."""
    made = retained()
    topics = [f"{n}" for n in range(STEP_MAX)]
    listings: list[tuple[str, ...]] = [("#",)]
    now = 0.0
    while listings:
        filters = listings.pop(0)
        asked = topics if filters == ("#",) else filters
        now += len(asked) * 0.09
        made.set_now(now)
        found = tuple((topic, payload_digest(b"x")) for topic in asked)
        assert made.on_retained_listed(RetainedListed(filters, found, len(asked) * 0.09)) == []
        while not listings and len(made.entries) < STEP_MAX:
            due = made.next_deadline()
            assert due is not None
            now = due
            made.set_now(now)
            listings = [e.filters for e in made.handle_timer() if isinstance(e, ListRetained)]
        assert now < 1_000
    assert sorted(made.entries) == sorted(topics)


def test_qos_0_values_are_announced_after_the_settling_time():
    made = retained(subscribed=("a", "c"))
    made.assign_version(ClientPublished("a", b"x", retain=True))
    version = made.assign_version(ClientPublished("a", b"y", retain=True))
    made.assign_version(ClientPublished("b", b"x", 1, retain=True))
    made.assign_version(ClientPublished("c", b"x", retain=True))
    made.resolve_retain_flag(sent(version + 10, topic="c"))
    assert made.handle_timer() == []
    made.set_now(1.0)
    assert RetainedVersions(YOU, ME, (("a", version),)) in made.handle_timer()
    made.assign_version(ClientPublished("d", b"x", retain=True))
    del made.entries["d"]
    made.set_now(2.0)
    assert not any(isinstance(each, RetainedVersions) for each in made.handle_timer())


def test_deletion_without_local_interest_needs_no_clearing():
    made = retained({"b": RetainedEntry(5, YOU)})
    assert made.on_retained_listed(RetainedListed(("b",), ())) == []
    assert made.entries == {}


def test_only_values_without_interest_are_cleared():
    made = retained({"a": value(5, YOU), "b": value(6, ME), "c": value(7, YOU)})
    made.on_local_interest_removed(["#"])
    made.on_remote_interest_removed(["$share/g/+"])
    made.set_now(1.0)
    assert made.handle_timer() == [ListRetained(("c",))]
    assert list(made.entries) == ["a", "b", "c"]


def test_nothing_is_cleared_without_a_withdrawal():
    made = retained({"b": value(5, YOU), "a": value(6, ME)}, receivers=())
    made.on_local_interest_removed([])
    made.on_remote_interest_removed([])
    made.set_now(1.0)
    assert (list(made.entries), made.handle_timer()) == (["b", "a"], [])
    assert made.on_filters_granted([]) == []


def test_very_many_copies_that_may_be_lost_are_listed_some_at_a_time(monkeypatch):
    monkeypatch.setattr(retained_module, "SLICE_TOPICS", 2)
    made = retained()
    for number in range(5):
        made.assign_version(ClientPublished(f"t/{number}", b"x", retain=True))
    made.set_now(2.0)
    steps = [made.handle_timer() for _ in range(3)]
    listed = [[len(e.entries) for e in step if isinstance(e, RetainedVersions)] for step in steps]
    assert listed == [[2], [2], [1]]


def test_newer_values_are_requested_without_local_interest():
    made = retained({"b": value(5, ME)})
    assert made.receive_unicast(RetainedVersions(ME, YOU, (("b", 6), ("c", 6)))) == [
        RetainedRequest(YOU, ME, (), (("b", 5),))
    ]
    newer = sent(6, b"y", topic="b")
    assert made.receive_unicast(RetainedValuesFrame(ME, YOU, (encode(newer),))) == [
        PublishRetained(newer)
    ]


def test_new_owner_informs_the_former_owner():
    made = retained({"a": value(5, OTHER)})
    made.resolve_retain_flag(sent(6, b"y"))
    made.resolve_retain_flag(sent(7, b"z"))
    assert made.next_deadline() == 0.0
    assert made.handle_timer() == [RetainedVersions(OTHER, YOU, (("a", 6),))]


def test_value_with_only_shared_interest_is_not_stored():
    made = retained(subscribed=())
    assert made.resolve_retain_flag(sent(5)) == replace(sent(5), retain=False)
    assert made.entries == {}


def test_version_far_ahead_of_the_clock_is_counted_and_not_stored():
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


def test_values_left_by_an_earlier_incarnation_are_listed():
    made = retained({"a": value(5, YOU), "b": value(6, YOU), "c": value(7, ME)})
    made.set_now(10.0)
    assert made.handle_timer() == []
    made.set_now(11.0)
    assert made.handle_timer() == [ListRetained(("b",))]


def test_versions_without_remote_interest_are_forgotten_only_beyond_the_bound():
    for most, left in ((4, ["a", "b"]), (3, ["a"])):
        made = retained({"a": value(5, YOU), "b": value(6, ME)}, receivers=(), retained_max=most)
        made.on_remote_interest_removed(["#"])
        assert list(made.entries) == left
