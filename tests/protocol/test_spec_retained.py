"""Section 9 of docs/protocol.md: retained messages."""

from functools import partial
from typing import Any

from tests.protocol.wire_of_nodes import Wire

from hansa.protocol.delivery.state import RestoredState
from hansa.protocol.effects import (
    Deliver,
    Ignored,
    ListRetained,
    PersistRetained,
    PublishRetained,
    Send,
)
from hansa.protocol.events import ClientPublished, ClockRead, InterestChanged, StoreUncertain
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.retained.checks import CHECK_S, FORMER_S, SAMPLE_MAX
from hansa.protocol.retained.clock import VERSIONS_PER_MS
from hansa.protocol.retained.digest import RetainedEntry, payload_digest
from hansa.protocol.retained.values import OLDEST_VERSION, REPAIRS_MAX
from hansa.protocol.wire.frames import (
    RetainedDigests,
    RetainedRequest,
    RetainedValuesFrame,
    RetainedVersions,
)

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
LETTERS = (RetainedDigests, RetainedRequest, RetainedVersions, RetainedValuesFrame)


def settled(links: str, *subscriptions: tuple[int, str], **settings: Any) -> Wire:
    """Converged nodes with interest, and brokers that store retained values."""
    wire = Wire(links, **settings)
    wire.stored = {place: {} for place in wire.nodes}
    for place, name in subscriptions:
        wire.subscribe(place, name)
    wire.run(3.0)
    wire.log.clear()
    return wire


def keep(wire: Wire, place: int, payload: bytes, topic: str = "a", qos: int = 0) -> None:
    wire.publish(place, topic, payload, qos, retain=True)


def values(wire: Wire, place: int) -> dict[str, RetainedEntry]:
    return dict(wire.nodes[place].delivery.retained)


def unicasts(wire: Wire) -> list[str]:
    """The names of frames about retained values, in order."""
    return [
        type(effect.frame).__name__
        for step in wire.log
        for effect in step.effects
        if isinstance(effect, Send) and isinstance(effect.frame, LETTERS)
    ]


def test_9_1_versions_follow_time_and_observed_versions():
    """9.1 At least the time in milliseconds, and above every observed version."""
    wire = settled("1-2", (1, "a"), (2, "a"))
    keep(wire, 1, b"x")
    wire.run(0.1)
    first = values(wire, 2)["a"]
    assert first == values(wire, 1)["a"]
    assert first.owner == ONE
    assert first.version >= int(wire.now * 1000 - 200) * VERSIONS_PER_MS
    wire.give(1, ClockRead(round(wire.now * 1000) + 100_000))  # a clock that is ahead
    keep(wire, 1, b"y")
    wire.run(0.1)
    keep(wire, 2, b"z")
    wire.run(0.1)
    assert wire.retained_at(1) == wire.retained_at(2) == {"a": b"z"}
    assert values(wire, 1)["a"].owner == TWO


def test_9_2_older_value_is_delivered_without_the_flag():
    """9.2 Brokers agree whatever the order in which two values arrive."""
    wire = settled("1-2", (1, "a"), (2, "a"))
    keep(wire, 1, b"x")
    keep(wire, 2, b"y")  # neither knows of the other's value
    wire.run(0.1)
    flags = [
        [(e.publication.payload, e.publication.retain) for e in wire.effects(place, Deliver)]
        for place in (1, 2)
    ]
    assert flags == [[(b"y", True)], [(b"x", False)]]
    assert wire.retained_at(1) == wire.retained_at(2) == {"a": b"y"}


def test_9_2_same_value_is_delivered_with_the_flag_again():
    """9.2 A value that an earlier incarnation stored and did not deliver is still retained."""
    value = RetainedEntry(5 * VERSIONS_PER_MS, ONE, payload_digest(b"x"))
    wire = settled("1-2", (2, "a"))
    retained = wire.nodes[2]._delivery.retained  # noqa: SLF001
    retained.entries["a"] = value
    publication = Publication(ONE, 1, 1, 0, "a", b"x", True, version=value.version)
    assert retained.resolve_retain_flag(publication) == publication


def test_9_3_only_newly_interested_nodes_get_the_value():
    """9.3 Owners send digests; differing versions are listed, missing values are sent."""
    wire = settled("1-2 2-3", (2, "a/#"))
    for number in range(3):
        keep(wire, 1, b"%d" % number, f"a/{number}", qos=number)
    wire.run(3.0)
    wire.log.clear()
    wire.subscribe(3, "a/1", "a/2")
    wire.run(3.0)
    assert wire.retained_at(3) == {"a/1": b"1", "a/2": b"2"}
    stored = {e.publication.topic: e.publication.qos for e in wire.effects(3, PublishRetained)}
    assert stored == {"a/1": 1, "a/2": 2}
    assert wire.effects(2, PublishRetained) == []


def test_9_3_node_with_all_values_is_sent_nothing():
    """9.3 A link that is cut and joined again costs a digest."""
    wire = settled("1-2", (2, "a"))
    keep(wire, 1, b"x")
    wire.run(3.0)
    wire.log.clear()
    wire.cut("1-2")
    wire.run(1.0)
    wire.join("1-2")
    wire.run(3.0)
    assert set(unicasts(wire)) == {"RetainedDigests"}
    assert (wire.effects(2, PublishRetained), wire.effects(2, Deliver)) == ([], [])


def test_9_3_values_lost_in_a_partition_are_repaired():
    """9.3 Each side sends the other what it owns and the other lacks."""
    wire = settled("1-2", (1, "a/+"), (2, "a/+"))
    keep(wire, 1, b"old", "a/1")
    wire.run(3.0)
    wire.cut("1-2")
    wire.run(1.0)
    keep(wire, 1, b"new", "a/1")
    keep(wire, 2, b"other", "a/2")
    wire.join("1-2")
    wire.run(3.0)
    assert wire.retained_at(1) == wire.retained_at(2) == {"a/1": b"new", "a/2": b"other"}


def test_9_3_unnoticed_loss_of_a_copy_is_repaired():
    """9.3 At QoS 0 the owner sends the versions once more."""
    wire = settled("1-2", (2, "a"))
    wire.is_lost = lambda source, target, frame: isinstance(frame, Publication)
    keep(wire, 1, b"x")
    wire.run(0.5)
    assert wire.retained_at(2) == {}
    wire.run(2.0)
    assert wire.retained_at(2) == {"a": b"x"}


def test_9_4_earlier_values_are_listed_with_the_lowest_version():
    """9.4 The broker is listed when other nodes become interested in a filter."""
    wire = settled("1-2")
    wire.store(1, ClientPublished("a", b"x", 2, retain=True))
    wire.subscribe(2, "a")
    wire.run(3.0)
    assert wire.effects(1, ListRetained)[0] == ListRetained(("a",))
    assert wire.retained_at(2) == {"a": b"x"}
    assert values(wire, 2) == {"a": RetainedEntry(OLDEST_VERSION, ONE, payload_digest(b"x"))}
    wire.unsubscribe(2, "a")
    wire.run(3.0)
    # unseen: no other node is interested any more
    wire.store(1, ClientPublished("a", b"y", 2, retain=True))
    wire.subscribe(2, "a")
    wire.run(3.0)
    assert wire.retained_at(2) == {"a": b"y"}
    assert values(wire, 2) == {"a": RetainedEntry(OLDEST_VERSION + 1, ONE, payload_digest(b"y"))}


def is_of(kind: type, _from: int, _to: int, frame: object) -> bool:
    return isinstance(frame, kind)


def test_9_3_lost_unicast_frame_is_repaired():
    """9.3 A digest is repeated some times."""
    for kind in (
        RetainedRequest,
        RetainedVersions,
        RetainedValuesFrame,
    ):  # a list of versions says as much as `RetainedDigests`
        wire = settled("1-2")
        wire.store(1, ClientPublished("a", b"x", 1, retain=True))
        wire.is_lost = partial(is_of, kind)
        wire.subscribe(2, "a")
        wire.run(3.0)
        assert wire.retained_at(2) == {}
        wire.is_lost = lambda *_: False
        wire.run(30.0)
        assert wire.retained_at(2) == {"a": b"x"}, kind


def test_9_5_deleted_and_overwritten_values_stay_so_without_interest():
    """9.5 Owners keep versions, and are informed of the value that replaced theirs."""
    for last in (b"", b"new"):
        wire = settled("1-2 2-3", (2, "a"))
        keep(wire, 1, b"x", qos=1)
        wire.run(3.0)
        keep(wire, 3, last, qos=1)
        wire.run(3.0)
        held = {"a": last} if last else {}
        assert wire.retained_at(1) == wire.retained_at(2) == held  # no client at 1 is interested
        wire.unsubscribe(2, "a")
        wire.run(20.0)
        wire.subscribe(2, "a")
        wire.run(5.0)
        assert wire.retained_at(2) == held


def test_9_5_returning_owner_is_informed_of_the_newer_value():
    """9.5 It sends digests of its values, and is corrected."""
    wire = settled("1-2 2-3", (2, "a"))
    keep(wire, 1, b"x", qos=1)
    wire.run(3.0)
    wire.cut("1-2")
    wire.run(1.0)
    keep(wire, 3, b"", qos=1)
    wire.run(3.0)
    wire.join("1-2")
    wire.run(5.0)
    assert wire.retained_at(1) == wire.retained_at(2) == {}


def test_9_5_deleted_values_stay_deleted():
    """9.5 A deletion wins over the deleted value, and is forgotten after the lease."""
    wire = settled("1-2", (1, "a"), (2, "a"), interest_lease=60.0)
    keep(wire, 1, b"x")
    wire.run(3.0)
    wire.cut("1-2")
    wire.run(1.0)
    keep(wire, 2, b"")
    wire.join("1-2")
    wire.run(3.0)
    assert wire.retained_at(1) == wire.retained_at(2) == {}
    assert values(wire, 1)["a"].digest == b""
    wire.run(60.0)
    keep(wire, 1, b"y", "b")  # the next save removes expired deletions
    wire.run(3.0)
    assert "a" not in values(wire, 1)


def test_9_6_value_written_unseen_is_older_than_later_publications():
    """9.6 An incarnation that did not save its deliveries does not take them for its own values."""
    wire = settled("1-2", (1, "a"), (2, "a"))
    keep(wire, 1, b"first", qos=1)
    wire.run(15.0)
    saved = dict(values(wire, 2))
    keep(wire, 1, b"second", qos=1)
    wire.run(0.2)
    wire.stop(2)
    wire.run(2.0)
    keep(wire, 1, b"third", qos=1)
    wire.run(2.0)
    past = RestoredState(epoch=9, retained=saved, accepted={ONE: (1, 2)})
    wire.start(2, restored=past)
    wire.subscribe(2, "a")
    wire.join("1-2")
    wire.run(10.0)
    assert wire.retained_at(1) == wire.retained_at(2) == {"a": b"third"}


def test_9_6_broker_is_asked_after_concurrent_writes():
    """9.6 The broker's value is the newest, whatever the node assumed."""
    wire = settled("1-2", (1, "a"), (2, "a"))
    keep(wire, 2, b"theirs")
    wire.run(0.05)
    wire.give(
        1, ClientPublished("a", b"ours", retain=True)
    )  # it was written before theirs, and is captured late
    assert wire.retained_at(1) == {"a": b"theirs"}
    wire.run(5.0)
    assert wire.retained_at(1) == wire.retained_at(2) == {"a": b"theirs"}
    assert values(wire, 1)["a"].owner == ONE


def test_9_6_deletion_that_came_last_is_the_newest():
    """9.6 If the broker holds nothing after concurrent writes, the deletion was the later one."""
    wire = settled("1-2", (1, "a"), (2, "a"))
    keep(wire, 2, b"")
    wire.run(0.05)
    wire.give(1, ClientPublished("a", b"ours", retain=True))
    wire.run(5.0)
    assert wire.retained_at(1) == wire.retained_at(2) == {}


def test_9_6_value_overtaken_by_an_older_one_is_requested_again():
    """9.6 Copies of different QoS reach the broker in any order; the newest is stored in the
    end."""
    wire = settled("1-2", (2, "a"))
    keep(wire, 1, b"old", qos=1)
    wire.run(0.1)
    keep(wire, 1, b"new")
    wire.run(0.1)
    wire.store(2, ClientPublished("a", b"old", retain=True))  # it took longer
    wire.run(5.0)
    assert wire.retained_at(2) == {"a": b"new"}


def test_9_6_value_lost_by_the_broker_is_not_deleted():
    """9.6 A broker that has lost its values does not delete them elsewhere."""
    wire = settled("1-2 2-3", (2, "a"))
    keep(wire, 1, b"x")
    wire.run(15.0)
    wire.stored[1].clear()
    wire.subscribe(3, "a")
    wire.give(1, InterestChanged())
    retained = wire.nodes[1]._delivery.retained  # noqa: SLF001
    assert retained.on_filters_granted(["a"]) == [ListRetained(("a",))]
    wire.give(1, wire._read(1, ListRetained(("a",))))  # noqa: SLF001
    wire.run(3.0)
    assert wire.retained_at(2) == {"a": b"x"}
    assert values(wire, 1) == {}


def test_9_7_value_is_cleared_with_the_last_interest():
    """9.7 Cleared where it has no interest, unless a client there wrote another value."""
    wire = settled("1-2", (2, "a"), (2, "b"))
    keep(wire, 1, b"x")
    keep(wire, 1, b"x", "b")
    wire.run(3.0)
    wire.store(2, ClientPublished("b", b"own", retain=True))  # unseen: no other node is interested
    wire.unsubscribe(2, "a", "b")
    wire.run(3.0)
    assert wire.retained_at(2) == {"b": b"own"}
    assert wire.retained_at(1) == {"a": b"x", "b": b"x"}


def test_9_8_restarted_node_requests_nothing_that_it_has():
    """9.8 Saved versions are known; digests agree."""
    wire = settled("1-2", (2, "a"))
    keep(wire, 1, b"x")
    wire.run(3.0)
    assert wire.effects(2, PersistRetained) != []
    saved = dict(values(wire, 2))
    wire.stop(2)
    wire.run(1.0)
    wire.log.clear()
    wire.start(2, restored=RestoredState(epoch=9, retained=saved))
    wire.subscribe(2, "a")
    wire.join("1-2")
    wire.run(3.0)
    assert set(unicasts(wire)) == {"RetainedDigests"}
    assert wire.effects(2, PublishRetained) == []


def test_9_8_values_beyond_the_bound_are_delivered_as_they_arrive():
    """9.8 They are not compared, and counted where the broker was listed for them."""
    wire = settled("1-2", (2, "a/+"), retained_max=1)
    keep(wire, 1, b"x", "a/1")
    keep(wire, 1, b"y", "a/2")
    wire.run(3.0)
    assert wire.retained_at(2) == {"a/1": b"x", "a/2": b"y"}
    assert list(values(wire, 2)) == ["a/1"]


def hold_former(wire: Wire, last: bytes, qos: int = 1) -> None:
    """Write a topic twice at one QoS; the receiver's broker ends with the first value."""
    keep(wire, 1, b"old", qos=qos)
    wire.run(0.1)
    keep(wire, 1, last, qos=qos)
    wire.run(0.1)
    wire.store(2, ClientPublished("a", b"old", qos, retain=True))


def test_9_9_replaced_value_is_detected_by_a_sample_and_repaired():
    """9.9 Whatever made the broker store it; the shell has reported nothing."""
    for last in (b"new", b""):
        wire = settled("1-2", (2, "a"))
        hold_former(wire, last)
        wire.run(CHECK_S + 1.0)
        assert wire.retained_at(1) == wire.retained_at(2) == ({"a": last} if last else {})
        assert values(wire, 1) == values(wire, 2)
        stored = [each.publication.payload for each in wire.effects(2, PublishRetained)]
        assert stored == [last]


def test_9_9_sample_is_bounded_and_taken_once_per_write():
    """9.9 Of many writes the oldest are read first, each once."""
    wire = settled("1-2", (2, "#"))
    for number in range(SAMPLE_MAX + 1):
        keep(wire, 1, b"x", f"t/{number}", qos=1)
    wire.run(60.0)
    read = [len(each.filters) for each in wire.effects(2, ListRetained)]
    assert read == [SAMPLE_MAX, 1]


def test_9_9_value_that_a_client_wrote_again_later_stays():
    """9.9 If the broker stores a replaced value after 20 s, a client wrote it."""
    wire = settled("1-2", (2, "a"))
    hold_former(wire, b"new")
    wire.store(2, ClientPublished("a", b"new", 1, retain=True))  # as it should be
    wire.run(FORMER_S + 1.0)
    # unseen: no other node is interested
    wire.store(2, ClientPublished("a", b"old", 1, retain=True))
    wire.give(2, wire._read(2, ListRetained(("a",))))  # noqa: SLF001
    wire.run(5.0)
    assert wire.retained_at(2) == {"a": b"old"}
    assert values(wire, 2)["a"].owner == TWO


def test_9_9_topics_that_the_shell_reports_are_read_after_the_settling_time():
    """9.9 A differing or missing value is not a new one, but is repaired."""
    for found in (b"older", b""):
        wire = settled("1-2", (2, "a"))
        keep(wire, 1, b"x", qos=1)
        wire.run(30.0)
        wire.store(2, ClientPublished("a", found, 1, retain=True))
        wire.log.clear()
        wire.give(2, StoreUncertain(("a", "unknown")))
        wire.run(2.0)
        assert wire.effects(2, ListRetained) == [ListRetained(("a",))]
        assert wire.retained_at(1) == wire.retained_at(2) == {"a": b"x"}


def test_9_9_recent_writes_are_read_after_the_connection_was_interrupted():
    """9.9 The broker may have lost a write of QoS 0 of the last seconds, of whichever owner. The
    node does not read an own value that was written earlier."""
    wire = settled("1-2", (1, "#"), (2, "#"))
    keep(wire, 2, b"x", "older")
    wire.run(60.0)
    keep(wire, 1, b"x")
    wire.run(0.1)
    wire.stored[2].pop("a")
    wire.log.clear()
    wire.give(2, StoreUncertain((), reconnected=True))
    wire.run(2.0)
    assert wire.effects(2, ListRetained) == [ListRetained(("a",))]
    assert wire.retained_at(2) == {"a": b"x", "older": b"x"}


def test_9_9_write_that_was_lost_before_the_agent_was_restarted_is_repaired():
    """9.9 The version was saved, the write did not reach the broker; then another node becomes
    interested, so that the broker is listed before the comparison."""
    for subscribes_first in (False, True):
        wire = settled("1-2", (2, "#"))
        for topic in ("deleted", "replaced"):
            keep(wire, 1, b"old", topic, qos=1)
        wire.run(30.0)
        before = dict(wire.stored[2])
        keep(wire, 1, b"", "deleted")
        keep(wire, 1, b"new", "replaced")
        wire.run(4.0)
        saved = dict(values(wire, 2))
        wire.stop(2)
        wire.stored[2] = before
        wire.start(2, restored=RestoredState(epoch=9, retained=saved))
        wire.subscribe(2, "#")
        if subscribes_first:
            wire.subscribe(1, "#")
        else:
            wire.give(2, StoreUncertain((), reconnected=True))
        wire.join("1-2")
        wire.run(20.0)
        assert wire.retained_at(1) == wire.retained_at(2) == {"replaced": b"new"}
        assert {each.owner for each in values(wire, 1).values()} == {ONE}
        wire.unsubscribe(1, "#")
        wire.run(20.0)
        assert wire.retained_at(1) == {"replaced": b"new"}


def test_9_9_broker_that_restored_an_older_state_is_repaired():
    """9.9 However long ago the values were written; its session may survive."""
    wire = settled("1-2", (2, "#"))
    for topic in ("deleted", "replaced", "same"):
        keep(wire, 1, b"old", topic, qos=1)
    wire.run(30.0)
    before = dict(wire.stored[2])
    keep(wire, 1, b"", "deleted", qos=1)
    keep(wire, 1, b"new", "replaced", qos=1)
    wire.run(120.0)
    wire.stored[2] = before
    wire.log.clear()
    wire.give(2, StoreUncertain((), reconnected=True))
    wire.run(5.0)
    assert wire.retained_at(1) == wire.retained_at(2) == {"replaced": b"new", "same": b"old"}
    assert len(wire.effects(2, PublishRetained)) == 2
    assert {each.owner for each in values(wire, 2).values()} == {ONE}


def test_9_9_deletion_of_an_unknown_topic_is_checked():
    """9.9 An earlier incarnation may have stored a value without saving its version."""
    wire = settled("1-2", (2, "a"))
    keep(wire, 1, b"x", qos=1)
    keep(wire, 1, b"", qos=1)
    wire.run(2.0)
    wire.stop(2)
    wire.stored[2] = {"a": ClientPublished("a", b"x", 1, True)}
    wire.start(2, restored=RestoredState(epoch=9, accepted={ONE: (1, 2)}))
    wire.subscribe(2, "a")
    wire.join("1-2")
    wire.run(10.0)
    assert wire.retained_at(2) == {}


def test_9_9_value_that_a_client_deleted_unseen_does_not_return():
    """9.9 Node 2 has no subscription for a topic that only its own clients are interested in."""
    wire = settled("1-2", (2, "a"))
    keep(wire, 1, b"x", qos=1)
    wire.run(3.0)
    wire.stored[2].pop("a")
    wire.run(120.0)
    assert wire.retained_at(2) == {}
    reason = "retained value missing at the broker"
    assert Ignored(reason) in wire.effects(2, Ignored)


def test_9_9_value_that_a_broker_never_stores_is_not_published_without_limit():
    """9.9 Three times for one version; a newer one is tried again."""
    wire = settled("1-2", (2, "a"))
    wire.stored[2] = StoresNothing()
    for count in (1, 2):
        keep(wire, 1, b"%d" % count, qos=1)
        for _ in range(REPAIRS_MAX + 1):
            wire.run(20.0)
            wire.give(2, StoreUncertain(("a",)))
        wire.run(20.0)
        assert len(wire.effects(2, PublishRetained)) == REPAIRS_MAX * count
        reason = "retained value not stored by the broker"
        assert wire.effects(2, Ignored).count(Ignored(reason)) == count


class StoresNothing(dict[str, ClientPublished]):
    def __setitem__(self, topic: str, value: ClientPublished) -> None:
        pass
