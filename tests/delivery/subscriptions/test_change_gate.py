"""At MQTT 3.1.1, subscriptions change only while no QoS 2 publication is in flight."""

from tests.delivery.core_shell import V311_LASTING, CoreIncarnation
from tests.delivery.shell import YOU

from hansa.delivery.effects import Subscribe, Unsubscribe
from hansa.delivery.subscriptions.change_gate import WAIT_S
from hansa.mqtt.packets import PubCompPacket, PublishPacket, PubRecPacket, PubRelPacket
from hansa.protocol.model import Publication


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
    assert requested(agent) == [(Subscribe, "a/#"), (Unsubscribe, "b")]
    complete(agent, 2)
    assert requested(agent) == [(Subscribe, "d"), (Unsubscribe, "c")]


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
