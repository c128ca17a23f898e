"""The broker's subscriptions follow the required ones: order, answers, sessions, the disk."""

import pytest
from tests.delivery.core_shell import V311_LASTING, CoreIncarnation, Disk, copies
from tests.delivery.shell import limits

from hansa.delivery import inputs
from hansa.delivery.core import SESSION_LOST, SESSION_LOST_ALARM
from hansa.delivery.dedup.selection import OVERLAP_WAIT_S
from hansa.delivery.effects import Subscribe, Unsubscribe
from hansa.delivery.group_commit import RETRY_S
from hansa.delivery.subscriptions import reconciler
from hansa.delivery.subscriptions.reconciler import LOST_IDENTIFIERS
from hansa.delivery.subscriptions.saved import SubscriptionChange
from hansa.mqtt.fields import VARIABLE_INTEGER_MAX
from hansa.mqtt.packets import Subscription
from hansa.mqtt.types import Version
from hansa.protocol.events import Event, SubscriptionsDenied, SubscriptionsGranted


def subscribe(name: str, identifier: int | None) -> Subscribe:
    wish = Subscription(name, qos=2, no_local=True, retain_as_published=True, retain_handling=2)
    return Subscribe(wish, identifier)


def connected() -> CoreIncarnation:
    agent = CoreIncarnation()
    agent.connect(session_present=False)
    agent.save()
    return agent


def expect_requests(agent: CoreIncarnation, *expected: Subscribe | Unsubscribe) -> None:
    agent.save()
    assert agent.requests == list(expected)
    agent.requests.clear()


def results(agent: CoreIncarnation) -> list[Event]:
    kinds = SubscriptionsGranted | SubscriptionsDenied
    found: list[Event] = [each for each in agent.events if isinstance(each, kinds)]
    agent.events.clear()
    return found


# ---------------------------------------------------------------- one connection


def test_filters_get_increasing_identifiers_and_grants_are_reported():
    agent = connected()
    agent.require("a/#", "b")
    expect_requests(agent, subscribe("a/#", 1), subscribe("b", 2))
    agent.grant("a/#")
    agent.grant("b", 0x87)
    assert results(agent) == [
        SubscriptionsGranted(("a/#",)),
        SubscriptionsDenied(("b",), "the broker refuses 'b' (code 0x87)"),
    ]
    assert agent.counters["subscriptions denied"] == 1
    assert agent.core.subscriptions.last_confirmed == 2


def test_grants_that_arrive_together_are_reported_together():
    agent = connected()
    agent.require("a", "b", "c")
    expect_requests(agent, subscribe("a", 1), subscribe("b", 2), subscribe("c", 3))
    answered = tuple(Subscription(name) for name in ("a", "b", "c"))
    agent.handle(inputs.SubscribeAnswered(answered, b"\2\x87\2"))
    assert results(agent) == [
        SubscriptionsDenied(("b",), "the broker refuses 'b' (code 0x87)"),
        SubscriptionsGranted(("a", "c")),
    ]


def test_request_waits_until_the_change_is_durable():
    agent = connected()
    agent.require("a")
    agent.require("b")
    assert (agent.requests, agent.saves) == ([], 1)
    expect_requests(agent, subscribe("a", 1), subscribe("b", 2))


def test_unsubscription_is_requested_and_confirmed():
    agent = connected()
    agent.subscribe("a")
    agent.release("a")
    expect_requests(agent, Unsubscribe("a"))
    agent.unsubscribed("a")
    expect_requests(agent)
    assert agent.saved_subscriptions.identifiers == {}
    agent.release("a")
    expect_requests(agent)


def test_suback_during_unsubscribe_is_not_reported():
    agent = connected()
    agent.require("a")
    expect_requests(agent, subscribe("a", 1))
    agent.release("a")
    agent.require("a")
    expect_requests(agent, Unsubscribe("a"))
    agent.grant("a")
    assert results(agent) == []  # the broker reads UNSUBSCRIBE after this
    agent.unsubscribed("a")
    expect_requests(agent, subscribe("a", 2))
    agent.grant("a")
    assert results(agent) == [SubscriptionsGranted(("a",))]


def test_filter_required_again_at_once_is_reported_again():
    """Before its UNSUBSCRIBE was sent."""
    agent = connected()
    agent.subscribe("a")
    results(agent)
    agent.require("b")
    agent.release("a")
    agent.require("a")
    expect_requests(agent, subscribe("b", 2), subscribe("a", 1), subscribe("a", 1))
    agent.grant("a")
    assert results(agent) == [SubscriptionsGranted(("a",))]


def test_answer_for_a_released_filter_is_not_reported():
    agent = connected()
    agent.require("a")
    agent.save()
    agent.release("a")
    agent.grant("a")
    assert results(agent) == []


def test_answer_for_a_filter_that_will_be_unsubscribed_is_not_reported():
    """UNSUBSCRIBE waits for the disk."""
    agent = connected()
    agent.require("a")
    agent.save()
    agent.require("b")
    agent.release("a")
    agent.grant("a")
    assert results(agent) == []


def test_refused_filter_does_not_count_and_is_requested_on_the_next_connection():
    agent = connected()
    agent.require("a/#", "a/b")
    agent.save()
    agent.grant("a/#", 0x87)
    agent.grant("a/b")
    agent.save()
    agent.requests.clear()
    assert agent.core.subscriptions.deciding_identifier("a/b") == 2
    agent.disconnect()
    agent.connect()
    expect_requests(agent, subscribe("a/b", 2), subscribe("a/#", 3))


def test_refusal_of_a_released_filter_is_not_reported():
    agent = connected()
    agent.require("a")
    agent.save()
    agent.handle(inputs.ReleaseFilters(["a"]))
    agent.grant("a", 0x87)
    assert (results(agent), agent.saved_subscriptions.identifiers) == ([], {})


def test_unspecified_error_is_a_refusal():
    """It is the least code of a refusal, and the only one of MQTT 3.1.1."""
    agent = connected()
    agent.require("a")
    agent.save()
    agent.grant("a", 0x80)
    assert results(agent) == [
        SubscriptionsDenied(("a",), "the broker refuses 'a' (code 0x80)"),
    ]
    assert agent.saved_subscriptions.identifiers == {}


def test_filter_with_risky_characters_is_denied_locally():
    agent = connected()
    name = "a\x7f"
    agent.require(name, "b")
    expect_requests(agent, subscribe("b", 1))
    text = f"a broker may refuse the characters of {name!r}"
    assert results(agent) == [SubscriptionsDenied((name,), text)]
    assert agent.counters["subscriptions denied"] == 1


def test_filter_is_denied_if_identifiers_are_exhausted():
    agent = CoreIncarnation()
    agent.disk.subscriptions = [SubscriptionChange("a", VARIABLE_INTEGER_MAX)]
    agent = CoreIncarnation(agent.disk)
    agent.require("b")
    agent.connect()
    agent.save()
    (denied,) = results(agent)
    assert isinstance(denied, SubscriptionsDenied)
    assert "all subscription identifiers were given" in denied.reason


def test_requests_in_flight_are_limited(monkeypatch):
    monkeypatch.setattr(reconciler, "REQUESTS_MAX", 2)
    agent = connected()
    agent.require("a", "b", "c", "d")
    expect_requests(agent, subscribe("a", 1), subscribe("b", 2))
    agent.grant("a")
    expect_requests(agent, subscribe("c", 3))
    agent.grant("b")
    agent.grant("c")
    expect_requests(agent, subscribe("d", 4))


def test_requests_of_an_ended_connection_are_not_in_flight(monkeypatch):
    monkeypatch.setattr(reconciler, "REQUESTS_MAX", 2)
    agent = connected()
    agent.require("a", "b")
    expect_requests(agent, subscribe("a", 1), subscribe("b", 2))
    agent.disconnect()
    agent.connect(session_present=False)
    expect_requests(agent, subscribe("a", 1), subscribe("b", 2))


def test_filters_wait_for_connection():
    agent = CoreIncarnation()
    agent.require("a", "b")
    agent.release("b")
    assert (agent.requests, agent.saves) == ([], 0)
    agent.connect(session_present=False)
    expect_requests(agent, subscribe("a", 1))


def test_nothing_is_requested_or_saved_while_disconnected():
    agent = connected()
    agent.subscribe("a")
    agent.disconnect()
    agent.require("b")
    agent.release("a")
    assert (agent.requests, agent.saves) == ([], 0)


def test_broker_without_identifiers_gets_none():
    agent = CoreIncarnation()
    agent.require("a")
    agent.connect(False, limits(subscription_ids_available=False))
    expect_requests(agent, subscribe("a", None))


# ---------------------------------------------------------------- MQTT 3.1.1


def test_mqtt_3_1_1_has_no_options_and_saves_nothing():
    agent = CoreIncarnation()
    agent.require("a")
    agent.connect(False, limits(version=Version.V311, subscription_ids_available=False))
    assert agent.requests == [Subscribe(Subscription("a", 2), None)], "without waiting for the disk"
    agent.save()
    assert agent.disk.subscriptions is None
    agent.grant("a")
    assert results(agent) == [SubscriptionsGranted(("a",))]


def test_lasting_session_of_mqtt_3_1_1_is_saved_without_waiting_for_the_disk():
    agent = CoreIncarnation()
    agent.require("a", "b")
    agent.connect(False, V311_LASTING)
    assert agent.requests == [Subscribe(Subscription(name, 2), None) for name in ("a", "b")]
    agent.save()
    agent.grant("a")
    agent.grant("b")
    following = CoreIncarnation(agent.stopped())
    assert following.saved_subscriptions.version is Version.V311
    following.require("b")
    following.connect(True, V311_LASTING)
    assert following.requests == [
        *(Subscribe(Subscription(name, 2), None) for name in ("b", "a")),
        Unsubscribe("a"),
    ]
    following.disconnect()
    following.connect(False, V311_LASTING)
    assert following.alarm(SESSION_LOST_ALARM) == SESSION_LOST


def test_session_loss_is_reported_if_broker_falls_back_to_3_1_1():
    agent = connected()
    agent.subscribe("a")
    agent.disconnect()
    assert agent.disk.subscriptions is not None
    agent.connect(False, limits(version=Version.V311, subscription_ids_available=False))
    assert agent.alarm(SESSION_LOST_ALARM) == SESSION_LOST
    agent.save()
    assert agent.disk.subscriptions is None, "no session persists"


def test_other_version_of_a_resumed_session_is_saved():
    agent = connected()
    agent.subscribe("a")
    agent.disconnect()
    agent.connect(True, V311_LASTING)
    agent.save()
    again = CoreIncarnation(agent.crashed())
    assert again.saved_subscriptions.version is Version.V311


# ---------------------------------------------------------------- sessions


def test_first_session_is_not_lost():
    agent = connected()
    assert (agent.alarm(SESSION_LOST_ALARM), agent.counters["broker sessions lost"]) == ("", 0)


@pytest.mark.parametrize("filters", [(), ("a",)])
def test_lost_session_is_reported_and_subscribed_from_scratch(filters):
    agent = connected()
    agent.subscribe("old")
    agent.release("old")
    agent.save()
    agent.unsubscribed("old")
    agent.subscribe(*filters)
    agent.disconnect()
    agent.connect(session_present=False)
    assert agent.alarm(SESSION_LOST_ALARM) == SESSION_LOST
    assert agent.counters["broker sessions lost"] == 1
    agent.save()
    assert agent.requests == [subscribe(name, 1) for name in filters]


def test_filters_of_a_lost_session_are_not_saved_any_more():
    agent = connected()
    agent.subscribe("a", "b")
    agent.disconnect()
    agent.release("a")
    agent.connect(session_present=False)
    agent.save()
    assert agent.saved_subscriptions.identifiers == {"b": 1}


def test_filters_of_an_interrupted_connection_are_unknown_to_a_new_session(monkeypatch):
    monkeypatch.setattr(reconciler, "REQUESTS_MAX", 1)
    agent = connected()
    for name in ("a", "b"):
        agent.subscribe(name)
    again = CoreIncarnation(agent.crashed())
    again.require("b")
    again.connect()
    expect_requests(again, subscribe("b", 2))
    again.disconnect()
    again.connect(session_present=False)
    expect_requests(again, subscribe("b", 1))
    again.grant("b")
    expect_requests(again)


@pytest.mark.parametrize("is_cloned", [False, True])
def test_session_of_a_newer_state_gets_new_identifiers(is_cloned):
    """The state is an older copy: nothing is saved of that session, or not everything."""
    agent = CoreIncarnation(
        Disk(subscriptions=[SubscriptionChange("a", 1)]) if is_cloned else None, is_cloned=is_cloned
    )
    agent.require("a", "b")
    agent.connect(session_present=True)
    first, second = LOST_IDENTIFIERS + 1, LOST_IDENTIFIERS + 2
    if is_cloned:
        expect_requests(agent, subscribe("a", 1), subscribe("b", first))
    else:
        expect_requests(agent, subscribe("a", first), subscribe("b", second))


def test_copies_queued_for_a_newer_state_are_captured_once():
    """Its filters had the identifiers 1 and 2 in another order."""
    agent = CoreIncarnation()
    agent.require("a/b", "a/#")
    agent.connect(session_present=True)
    agent.receive(*copies(1, 2, qos=2), *copies(1, 2, qos=2, payload=b"y", first_packet_id=3))
    agent.advance(OVERLAP_WAIT_S)
    agent.commit()
    assert [each.payload for each in agent.disk.outbox.captured_records(1, 9)] == [b"x", b"y"]


def test_resumed_session_is_subscribed_again_with_the_same_identifiers():
    agent = connected()
    agent.subscribe("a", "b")
    again = CoreIncarnation(agent.crashed())
    again.require("b", "a")
    again.connect()
    expect_requests(again, subscribe("a", 1), subscribe("b", 2))
    assert again.alarm(SESSION_LOST_ALARM) == ""


def test_unconfirmed_filter_gets_a_new_identifier_in_a_resumed_session():
    """It is unknown whether the broker has it."""
    agent = connected()
    agent.subscribe("a")
    agent.require("b")
    expect_requests(agent, subscribe("b", 2))
    agent.disconnect()
    agent.connect()
    expect_requests(agent, subscribe("a", 1), subscribe("b", 3))
    agent.grant("b")
    assert agent.core.subscriptions.original_identifiers((1, 3)) == (1, 2)


def test_resumed_session_subscribes_new_filters_before_unsubscribing():
    agent = connected()
    agent.subscribe("a", "b")
    again = CoreIncarnation(agent.crashed())
    again.require("c", "b")
    again.connect()
    expect_requests(again, subscribe("b", 2), subscribe("c", 3), Unsubscribe("a"))
    again.unsubscribed("a")
    again.save()
    assert again.saved_subscriptions.identifiers == {"b": 2, "c": 3}


def test_unsubscription_that_was_not_confirmed_is_repeated():
    agent = connected()
    agent.subscribe("a", "b")
    agent.release("a")
    expect_requests(agent, Unsubscribe("a"))
    again = CoreIncarnation(agent.crashed())
    again.require("b")
    again.connect()
    expect_requests(again, subscribe("b", 2), Unsubscribe("a"))


# ---------------------------------------------------------------- the disk


def test_failed_save_does_not_stop_the_work_and_is_repeated():
    agent = connected()
    agent.require("a")
    agent.saves = 0
    agent.saved_subscriptions.take_unsaved()
    agent.handle(inputs.SubscriptionsSaved(False))
    assert agent.requests == [subscribe("a", 1)]
    assert agent.deadline() == RETRY_S
    agent.require("b")
    assert (agent.saves, agent.requests[1:]) == (0, [subscribe("b", 2)]), "not before the pause"
    agent.advance(RETRY_S / 2)
    assert agent.saves == 0
    agent.advance(RETRY_S / 2)
    assert (agent.saves, agent.deadline()) == (1, None)
    agent.save()
    assert CoreIncarnation(agent.crashed()).saved_subscriptions.identifiers == {"a": 1, "b": 2}


def test_requests_that_wait_for_the_disk_are_not_sent_on_the_next_connection():
    agent = connected()
    agent.require("a")
    agent.disconnect()
    agent.save()
    assert agent.requests == []
    agent.connect()
    expect_requests(agent, subscribe("a", 2))
