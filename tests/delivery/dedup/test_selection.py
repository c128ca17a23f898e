"""Which received copies count: overlap copies, echoes, replays, local and unusable topics."""

import pytest
from tests.delivery.shell import limits
from tests.delivery.subscriptions.test_table import holding

from hansa.delivery.context import Context
from hansa.delivery.dedup import echo
from hansa.delivery.dedup.selection import (
    ECHOES_IN_DOUBT,
    OVERLAP_WAIT_S,
    TOO_MANY_LEVELS,
    CopySelection,
)
from hansa.delivery.effects import PublicationDropped
from hansa.delivery.subscriptions.table import SubscriptionTable
from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.types import Version

DEEP = "/".join("x" * 201)


class Scene:
    """The selection on one connection."""

    def __init__(
        self,
        subscriptions: SubscriptionTable,
        version: Version = Version.V5,
        sends_overlap_copies: bool = True,
    ) -> None:
        self.context = Context(lambda: 0)
        self.counters = self.context.counters
        self.made = CopySelection(self.context, subscriptions, lambda copy: 0, sends_overlap_copies)
        self.made.on_connected(True, limits(version=version))

    def deadline(self) -> float | None:
        return self.made.deadline

    def is_full(self) -> bool:
        return self.made.is_echo_filter_full

    def qos0(self, *batch: PublishPacket) -> list[tuple[str, tuple[int, ...]]]:
        return [(each.topic, each.subscription_ids) for each in self.made.select_qos0(batch)]

    def guaranteed(self, *batch: PublishPacket) -> list[bool]:
        return [is_selected for _, is_selected in self.made.select_guaranteed(batch)]


def plain(topic: str, *identifiers: int, retain: bool = False) -> PublishPacket:
    return PublishPacket(topic, b"x", 0, retain, subscription_ids=identifiers)


def guaranteed_packet(topic: str, *identifiers: int, retain: bool = False) -> PublishPacket:
    return PublishPacket(topic, b"x", 1, retain, False, 1, identifiers)


# ---------------------------------------------------------------- MQTT 5


def test_copy_of_oldest_filter_counts_at_qos_0():
    scene = Scene(holding("a/#", "a/b"))
    assert scene.qos0(plain("a/b", 1), plain("a/b", 2), plain("a/c", 1)) == [
        ("a/b", (1,)),
        ("a/c", (1,)),
    ]
    assert scene.counters == {"captured": 2, "overlap copies": 1, f"dropped: {TOO_MANY_LEVELS}": 0}


def test_only_dropped_copies_are_counted_as_such():
    scene = Scene(holding("a"))
    assert scene.qos0(plain("a", 1)) == [("a", (1,))]
    assert dict(scene.counters) == {"captured": 1}


def test_copy_with_all_identifiers_counts_once():
    scene = Scene(holding("a/#", "a/b"))
    assert scene.qos0(plain("a/b", 2, 1)) == [("a/b", (2, 1))]


def test_every_copy_counts_without_identifiers():
    scene = Scene(holding("a/#"))
    assert scene.qos0(plain("a/b"), plain("a/b"), plain("other")) == [("a/b", ()), ("a/b", ())]


def test_topic_with_too_many_levels_is_dropped_and_counted():
    scene = Scene(holding("#"))
    assert scene.qos0(plain(DEEP, 1)) == []
    assert scene.counters[f"dropped: {TOO_MANY_LEVELS}"] == 1
    assert scene.guaranteed(guaranteed_packet(DEEP, 1)) == [False]
    assert scene.context.take_effects() == [PublicationDropped(TOO_MANY_LEVELS, DEEP, 1)]
    assert scene.counters["overlap copies"] == 0


def test_copy_of_an_ended_subscription_is_not_counted_as_dropped():
    scene = Scene(holding("a"))
    assert scene.qos0(plain("b", 9)) == []
    assert scene.guaranteed(guaranteed_packet("b", 9)) == [True], "it was queued"
    assert scene.counters[f"dropped: {TOO_MANY_LEVELS}"] == 0
    assert scene.context.take_effects() == []


def test_copy_waits_for_the_copy_that_decides():
    scene = Scene(holding("a/#", "a/b"))
    copy = guaranteed_packet("a/b", 2)
    assert scene.guaranteed(copy) == []
    assert scene.deadline() == OVERLAP_WAIT_S
    scene.context.now = OVERLAP_WAIT_S / 2
    assert scene.made.decide_waiting() == []
    scene.context.now = OVERLAP_WAIT_S
    assert scene.made.decide_waiting() == [(copy, True)]
    assert scene.deadline() is None
    assert scene.made.decide_waiting() == []
    assert scene.counters["captured"] == 1


def test_wait_ends_with_the_deciding_copy_or_the_connection():
    scene = Scene(holding("a/#", "a/b"))
    assert scene.guaranteed(guaranteed_packet("a/b", 2)) == []
    assert scene.guaranteed(guaranteed_packet("a/b", 1)) == [False, True]
    assert scene.deadline() is None
    assert scene.counters == {"captured": 1, "overlap copies": 1}
    assert scene.guaranteed(guaranteed_packet("a/b", 2)) == []
    scene.made.on_disconnected()
    assert scene.deadline() is None
    for _ in range(2):
        scene.made.on_connected(True, limits())
        assert scene.deadline() is None
        assert scene.guaranteed(guaranteed_packet("a/b", 2)) == []
        assert scene.deadline() is not None


def test_mqtt_5_has_no_echoes():
    scene = Scene(holding("a"))
    scene.made.expect_echo("a", b"x", 0)
    assert (scene.made.expects_echoes, scene.is_full()) == (False, False)
    assert scene.qos0(plain("a", 1)) == [("a", (1,))]


# ---------------------------------------------------------------- MQTT 3.1.1


@pytest.mark.parametrize(("sends_overlap_copies", "count"), [(True, 2), (False, 1)])
def test_echoes_do_not_count(sends_overlap_copies, count):
    scene = Scene(holding("a/#", "a/b"), Version.V311, sends_overlap_copies)
    assert scene.made.expects_echoes
    scene.made.expect_echo("a/b", b"x", 0)
    assert scene.qos0(*[plain("a/b")] * count) == []
    assert scene.counters["echoes"] == count
    assert scene.qos0(plain("a/b")) == [("a/b", ())], "of a client"


@pytest.mark.parametrize(("sends_overlap_copies", "count"), [(True, 2), (False, 1)])
def test_one_copy_of_a_client_counts(sends_overlap_copies, count):
    scene = Scene(holding("a/#", "a/b"), Version.V311, sends_overlap_copies)
    assert scene.guaranteed(*[guaranteed_packet("a/b")] * count) == [True, False][:count]
    assert scene.guaranteed(guaranteed_packet("a/b")) == [True]


def test_retained_values_are_replays():
    """MQTT 3.1.1 marks only stored values with the retain flag."""
    scene = Scene(holding("a"), Version.V311)
    assert scene.qos0(plain("a", retain=True)) == []
    assert scene.guaranteed(guaranteed_packet("a", retain=True)) == [False]
    assert scene.counters["retained replays ignored"] == 2


def test_too_many_expected_echoes_are_reported(monkeypatch):
    monkeypatch.setattr(echo, "ECHOES_MAX", 1)
    scene = Scene(holding("a"), Version.V311)
    assert not scene.is_full()
    scene.made.expect_echo("a", b"x", 0)
    assert scene.is_full()
    scene.context.now = 2 * echo.ECHO_EXPECTED_S
    assert not scene.is_full()
    assert scene.qos0(plain("a")) == [("a", ())]
    assert scene.counters["echoes missed"] == 1


def test_new_connection_expects_no_echoes():
    scene = Scene(holding("a"), Version.V311)
    scene.made.expect_echo("a", b"x", 0)
    scene.made.on_connected(False, limits(version=Version.V311))
    assert scene.qos0(plain("a")) == [("a", ())]


def test_session_that_lasts_expects_queued_echoes():
    scene = Scene(holding("a"), Version.V311)
    scene.made.expect_echo("a", b"x", 1)
    scene.made.on_connected(True, limits(version=Version.V311))
    assert scene.guaranteed(guaranteed_packet("a"), guaranteed_packet("a")) == [False, True]


def test_echoes_of_the_previous_incarnation_count_in_its_session_only():
    earlier = Scene(holding("a"), Version.V311)
    earlier.made.expect_echo("a", b"x", 1)
    saved = earlier.made.save_echoes()
    assert saved is not None
    for is_present in (True, False):
        made = CopySelection(
            earlier.context, holding("a"), lambda copy: 0, True, saved_echoes=saved
        )
        assert made.save_echoes() is saved, "before the first connection"
        made.on_connected(is_present, limits(version=Version.V311))
        assert made.select_guaranteed([guaranteed_packet("a")]) == [
            (guaranteed_packet("a"), not is_present)
        ]


def test_mqtt_5_saves_no_echoes():
    scene = Scene(holding("a"))
    scene.made.on_released([1])
    assert scene.made.save_echoes() is None


def test_redelivered_publication_is_no_echo_of_its_other_copy():
    again = PublishPacket("a/b", b"x", 1, False, True, 1)
    made = CopySelection(
        Context(lambda: 0), holding("a/#", "a/b"), lambda copy: 0, True, lambda copy: copy.dup
    )
    made.on_connected(True, limits(version=Version.V311))
    assert made.select_guaranteed([guaranteed_packet("a/b")]) == [(guaranteed_packet("a/b"), True)]
    made.on_connected(True, limits(version=Version.V311))
    other = PublishPacket("a/b", b"x", 1, False, False, 2)
    assert made.select_guaranteed([again, other]) == [(again, True), (other, False)]


def test_no_echoes_are_expected_before_the_first_connection():
    made = CopySelection(Context(lambda: 0), holding("a"), lambda copy: 0, True)
    assert not made.expects_echoes


def test_packet_id_of_an_echo_is_free_after_pubrel():
    scene = Scene(holding("a"), Version.V311)
    scene.made.expect_echo("a", b"x", 2)
    echo_packet = PublishPacket("a", b"x", 2, packet_id=7)
    assert scene.guaranteed(echo_packet) == [False]
    scene.made.on_released([7])
    scene.made.on_connected(True, limits(version=Version.V311))
    assert scene.guaranteed(echo_packet) == [True]


def test_echoes_beyond_the_bound_are_in_doubt(monkeypatch):
    monkeypatch.setattr(echo, "ECHOES_MAX", 1)
    scene = Scene(holding("a"), Version.V311)
    for payload in (b"x", b"y"):
        scene.made.expect_echo("a", payload, 1)
    assert scene.counters == {ECHOES_IN_DOUBT: 1}


def test_new_session_expects_no_queued_echoes():
    scene = Scene(holding("a"), Version.V311)
    scene.made.expect_echo("a", b"x", 1)
    scene.made.on_connected(False, limits(version=Version.V311))
    assert scene.guaranteed(guaranteed_packet("a")) == [True]


def test_broker_that_changes_to_mqtt_5_sends_no_echoes():
    scene = Scene(holding("a"), Version.V311)
    scene.made.expect_echo("a", b"x", 1)
    scene.made.on_connected(True, limits())
    assert scene.guaranteed(guaranteed_packet("a", 1)) == [True]
