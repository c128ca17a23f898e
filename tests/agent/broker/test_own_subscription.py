"""The subscription by which an agent recognises the list of its own broker."""

import pytest

from hansa.agent.broker.own_subscription import OWN_TOPIC, OwnSubscription
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.types import Version

ASKED = (packets.Subscription(OWN_TOPIC),)
LIMITS = BrokerLimits(version=Version.V311, client_id="", keep_alive=60, session_expiry=0)
CONNECTED = effects.Connected(False, LIMITS)


class Broker:
    """A connection that records what is submitted."""

    def __init__(self) -> None:
        self.submitted: list[object] = []
        self.own = OwnSubscription(self._connect)

    def _connect(self, on_effect):
        self.say = on_effect
        return self

    def submit(self, event: object) -> None:
        self.submitted.append(event)


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_it_is_requested_on_every_connection_and_held_until_that_ends(broker):
    for _ in range(2):
        broker.say(CONNECTED)
        assert not broker.own.is_held
        broker.say(effects.Subscribed(ASKED, b"\0"))
        assert broker.own.is_held
        broker.say(effects.Disconnected(None, "closed", by_broker=False))
        assert (broker.own.is_held, broker.own.is_refused) == (False, False)
    assert broker.submitted == [inputs.Subscribe(ASKED)] * 2


def test_refusal_is_known_until_the_broker_grants_it(broker):
    broker.say(effects.Subscribed(ASKED, b"\x80"))
    broker.say(effects.Disconnected(None, "closed", by_broker=False))
    assert (broker.own.is_held, broker.own.is_refused) == (False, True)
    broker.say(effects.Subscribed(ASKED, b"\0"))
    assert (broker.own.is_held, broker.own.is_refused) == (True, False)
