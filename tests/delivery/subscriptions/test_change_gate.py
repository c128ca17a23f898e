"""At MQTT 3.1.1, subscriptions change only while no QoS 2 publication is in flight."""

from dataclasses import replace

import pytest
from tests.delivery.core_shell import V5, V311_LASTING, CoreIncarnation
from tests.delivery.shell import YOU

from hansa.delivery import inputs
from hansa.delivery.effects import (
    Commit,
    LogName,
    PublicationDropped,
    Publish,
    Subscribe,
    Unsubscribe,
)
from hansa.delivery.poison_quarantine import DISCONNECTS_MAX
from hansa.delivery.subscriptions.change_gate import WAIT_S
from hansa.delivery.subscriptions.reconciler import REQUESTS_MAX
from hansa.delivery.subscriptions.saved import LEAVING
from hansa.errors import JournalUnusable
from hansa.mqtt.packets import PubCompPacket, PublishPacket, PubRecPacket, PubRelPacket
from hansa.protocol.model import Publication

TWO_IN_FLIGHT = replace(V311_LASTING, receive_maximum=2)


def connected(*filters):
    agent = CoreIncarnation()
    agent.connect(False, V311_LASTING)
    agent.subscribe(*filters)
    return agent


def inject(agent, sequence, qos=2, payload=b"x"):
    agent.deliver(Publication(YOU, 8, sequence, qos, "a/b", payload))
    agent.commit()


def complete(agent, packet_id):
    """Answer PUBLISH and PUBREL of an injected publication."""
    agent.answer(PubRecPacket(packet_id))
    agent.commit()
    agent.answer(PubCompPacket(packet_id))


def requested(agent):
    """Return the filters that were requested since the last call, with the kind of request."""
    found = [
        (
            type(each),
            each.subscription.topic_filter if type(each) is Subscribe else each.topic_filter,
        )
        for each in agent.requests
    ]
    agent.requests.clear()
    return found


def published(agent):
    found = [each.packet_id for each in agent.sent if type(each) is PublishPacket]
    agent.sent.clear()
    return found


def test_subscription_waits_for_qos_2_and_new_publications_wait_for_it():
    agent = connected()
    inject(agent, 1)
    assert published(agent) == [2]
    agent.require("a/#")
    inject(agent, 2)
    inject(agent, 3, qos=1)
    assert (requested(agent), published(agent)) == ([], [])
    complete(agent, 2)
    assert (requested(agent), published(agent)) == ([(Subscribe, "a/#")], [3, 4])
    agent.grant("a/#")
    echoes = [PublishPacket("a/b", b"x", 2, packet_id=each) for each in (1, 2, 3)]
    agent.receive(*echoes)
    assert agent.counters["echoes"] == 2
    assert agent.disk.outbox.next_sequence == 2, "the third one is of a client"


def test_publications_of_qos_1_in_flight_delay_nothing():
    agent = connected()
    inject(agent, 1, qos=1)
    agent.require("a/#")
    assert requested(agent) == [(Subscribe, "a/#")]


def test_unsubscription_waits_too():
    agent = connected("a/#")
    inject(agent, 1)
    agent.release("a/#")
    assert requested(agent) == []
    complete(agent, 2)
    assert requested(agent) == [(Unsubscribe, "a/#")]


def test_change_does_not_wait_for_ever():
    agent = connected()
    inject(agent, 1)
    agent.require("a/#", "b")
    inject(agent, 2)
    assert agent.deadline() == WAIT_S
    agent.advance(WAIT_S / 2)
    assert requested(agent) == []
    published(agent)
    agent.advance(WAIT_S / 2)
    assert (requested(agent), published(agent)) == ([(Subscribe, "a/#"), (Subscribe, "b")], [3])
    assert agent.deadline() is None


def test_every_change_waits_for_its_own_time():
    agent = connected()
    inject(agent, 1)
    agent.require("a/#")
    complete(agent, 2)
    agent.advance(WAIT_S / 2)
    inject(agent, 2)
    agent.require("b")
    assert agent.deadline() == agent.now + WAIT_S


def test_publications_continue_if_the_change_is_not_needed_any_more():
    agent = connected()
    inject(agent, 1)
    agent.require("a/#")
    inject(agent, 2)
    published(agent)
    agent.release("a/#")
    assert (requested(agent), published(agent)) == ([], [3])


def test_waiting_change_ends_with_the_connection():
    agent = connected()
    inject(agent, 1)
    agent.require("a/#")
    agent.disconnect()
    assert agent.deadline() is None
    agent.connect(False, V311_LASTING)
    assert requested(agent) == [(Subscribe, "a/#")]


def test_change_has_the_whole_time_on_a_new_connection():
    agent = connected()
    inject(agent, 1)
    agent.require("a/#")
    agent.disconnect()
    agent.advance(2 * WAIT_S)
    agent.connect(True, V311_LASTING)
    assert (requested(agent), agent.deadline()) == ([], agent.now + WAIT_S)


def test_requests_are_repeated_before_publications_and_without_waiting():
    agent = connected("a/#", "b")
    agent.require("c")  # not answered
    agent.release("b")  # not answered
    inject(agent, 1)
    agent.disconnect()
    agent.release("c")
    agent.require("d")
    requested(agent)
    agent.connect(True, V311_LASTING)
    assert requested(agent) == [(Subscribe, "a/#"), (Unsubscribe, "b"), (Subscribe, "c")]
    assert agent.saved_subscriptions.identifiers == {"a/#": 1, "b": LEAVING, "c": 4}
    complete(agent, 2)
    assert requested(agent) == [(Subscribe, "d"), (Unsubscribe, "c")]


def test_change_follows_qos_1_publications_that_are_sent_again():
    agent = connected("b")
    inject(agent, 1, qos=1)
    agent.disconnect()
    agent.require("a/#")
    agent.disk.has_marker = True
    caused = agent.handle(inputs.Connected(True, V311_LASTING))
    order = [each for each in caused if isinstance(each, Subscribe | Publish)]
    assert [type(each) for each in order] == [Subscribe, Publish, Subscribe]


def test_accepted_publication_of_an_earlier_incarnation_is_in_flight():
    agent = connected("a/#")
    inject(agent, 1)
    agent.answer(PubRecPacket(2))
    agent.commit()
    agent.expect_sent(PublishPacket("a/b", b"x", 2, packet_id=2), PubRelPacket(2))
    again = CoreIncarnation(agent.stopped())
    again.require("a/#", "b")
    again.connect(True, V311_LASTING)
    assert requested(again) == [(Subscribe, "a/#")]
    again.answer(PubCompPacket(2))
    assert requested(again) == [(Subscribe, "b")]


# ---------------------------------------------------------------- reconnections


def reconnect(agent, filters):
    """Reconnect; return how many echoes a broker sends that has these filters and not yet the
    publications that are sent now."""
    agent.handle(inputs.ConnectStarted())
    echoes = 0
    for effect in agent.handle(inputs.Connected(True, V311_LASTING)):
        match effect:
            case Subscribe(subscription):
                filters |= {subscription.topic_filter}
            case Unsubscribe(name):
                filters -= {name}
            case Publish(batch):
                echoes += len(batch) * len(filters)
    return echoes


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize(
    ("before", "while_connected", "while_disconnected"),
    [
        (("a/#", "a/b"), (), (("release", "a/#"),)),
        (("a/b",), (), (("require", "a/#"),)),
        (("a/#", "a/b"), (("release", "a/b"),), (("require", "a/b"),)),
        (("a/#",), (("require", "a/b"),), (("release", "a/b"),)),
    ],
    ids=["released", "required", "required again", "released again"],
)
def test_publication_sent_again_is_counted_with_the_earlier_filters(
    qos, before, while_connected, while_disconnected
):
    """Requests and publication are lost with the connection, and the requirements change."""
    agent = connected(*before)
    for change, name in while_connected:
        getattr(agent, change)(name)
    inject(agent, 1, qos)
    agent.disconnect()
    for change, name in while_disconnected:
        getattr(agent, change)(name)
    count = reconnect(agent, set(before))
    agent.receive(
        *(PublishPacket("a/b", b"x", qos, packet_id=each) for each in range(1, count + 1))
    )
    assert (agent.counters["echoes"], agent.counters["captured"]) == (count, 0)
    agent.receive(PublishPacket("a/b", b"x", qos, packet_id=99))
    assert agent.counters["captured"] == 1, "no echo is expected any more"


def test_recovered_publications_that_were_not_sent_wait_for_the_change():
    agent = CoreIncarnation()
    agent.connect(False, TWO_IN_FLIGHT)
    for each in range(1, 7):
        inject(agent, each)
    assert published(agent) == [2, 3]
    again = CoreIncarnation(agent.stopped())
    again.connect(True, TWO_IN_FLIGHT)
    assert published(again) == [2, 3]
    again.require("a/#")
    complete(again, 2)
    assert (requested(again), published(again)) == ([], [])
    complete(again, 3)
    assert (requested(again), published(again)) == ([(Subscribe, "a/#")], [4, 5])


def test_publications_behind_one_that_was_not_sent_are_sent_again():
    agent = connected()
    agent.deliver(
        Publication(YOU, 8, 1, 2, "t", b"1", retain=True),
        Publication(YOU, 8, 2, 1, "t", b"2", retain=True),  # waits for the first
        Publication(YOU, 8, 3, 2, "a/b", b"x"),
    )
    agent.commit()
    assert published(agent) == [2, 4]
    agent.disconnect()
    agent.require("a/#")
    agent.connect(True, V311_LASTING)
    assert published(agent) == [2, 4]


# ---------------------------------------------------------------- nothing to wait for


def test_quarantined_publication_delays_no_change():
    agent = connected()
    inject(agent, 1)
    for _ in range(DISCONNECTS_MAX):
        agent.disconnect()
        agent.connect(True, V311_LASTING)
    agent.commit()
    assert len(agent.core.injection.quarantine) == 1
    agent.require("a/#")
    assert requested(agent) == [(Subscribe, "a/#")]


def test_failed_log_delays_no_change(monkeypatch):
    def fail(_):
        raise JournalUnusable("disk")

    agent = connected()
    inject(agent, 1)
    monkeypatch.setattr(agent.core.inbox.log, "append", fail)
    agent.answer(PubRecPacket(2))
    agent.require("a/#")
    assert requested(agent) == [(Subscribe, "a/#")]


def test_filter_required_again_during_unsubscribe_delays_nothing():
    """UNSUBACK lets it be subscribed again; until then there is nothing to change."""
    agent = connected("a/#")
    agent.release("a/#")
    assert requested(agent) == [(Unsubscribe, "a/#")]
    inject(agent, 1)
    agent.require("a/#")
    inject(agent, 2)
    assert (requested(agent), published(agent), agent.deadline()) == ([], [2, 3], None)


def test_mqtt_5_does_not_wait_for_publications_of_an_earlier_connection():
    agent = connected("b")
    inject(agent, 1)
    agent.disconnect()
    agent.connect(True, V5)
    agent.save()
    requested(agent)
    agent.require("a/#")
    agent.save()
    assert requested(agent) == [(Subscribe, "a/#")]


@pytest.mark.parametrize("granted", [V5, V311_LASTING])
def test_publications_follow_those_that_cannot_be_sent_after_the_commit(granted):
    """With every version: no change waits."""
    agent = CoreIncarnation()
    agent.connect(False, replace(granted, receive_maximum=1))
    agent.commit()
    inject(agent, 1, qos=1)
    inject(agent, 2, qos=1)
    (packet,) = (each for each in agent.sent if isinstance(each, PublishPacket))
    caused = agent.handle(inputs.PublicationsNotSent([packet], "too large"))
    assert caused == [PublicationDropped("too large", "a/b", 1), Commit(LogName.INBOX)]
    agent.commit()
    assert published(agent) == [2, 3]


# ---------------------------------------------------------------- many filters


def test_changes_that_exceed_the_requests_in_flight_do_not_wait_again():
    names = [f"h/{each:03}" for each in range(REQUESTS_MAX + 10)]
    agent = connected(*names)
    inject(agent, 1)
    agent.release(*names)
    inject(agent, 2)
    assert (requested(agent), published(agent)) == ([], [2])
    agent.advance(WAIT_S)
    assert (len(requested(agent)), published(agent)) == (REQUESTS_MAX, [3])
    assert agent.deadline() is None
    agent.unsubscribed(names[0])
    assert requested(agent) == [(Unsubscribe, names[REQUESTS_MAX])]


def test_inbox_is_not_searched_if_no_filter_has_to_be_reconciled(monkeypatch):
    """It may have thousands of entries, and every SUBACK would search them."""
    agent = connected()
    agent.require("a/#")
    monkeypatch.setattr(agent.core.injection, "blocks_changes", lambda: pytest.fail("searched"))
    agent.grant("a/#")
