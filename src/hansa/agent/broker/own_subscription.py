"""A subscription of the agent that a broker's list must contain.

An HTTP API may list nothing, or the clients of another virtual host, without an error. Where no
other broker has subscribers, the agent is subscribed to nothing else that could show that.
"""

from hansa.agent.broker.connection import ConnectionFactory
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.types import REFUSAL_CODE_MIN

OWN_TOPIC = "hansa/listed"
"""Nobody publishes to it."""


class OwnSubscription:
    """Keeps one subscription at QoS 0, in a clean session of its own."""

    def __init__(self, make_connection: ConnectionFactory) -> None:
        self.connection = make_connection(self._on_effect)
        self.is_held = False
        """Whether the broker has confirmed it on the current connection."""
        self.is_refused = False
        """Whether the broker refused it when the agent last asked."""

    def _on_effect(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Connected():
                subscription = packets.Subscription(OWN_TOPIC)
                self.connection.submit(inputs.Subscribe((subscription,)))
            case effects.Subscribed(reasons=reasons):
                self.is_refused = any(code >= REFUSAL_CODE_MIN for code in reasons)
                self.is_held = not self.is_refused
            case effects.ConnectRefused() | effects.Disconnected() | effects.ProtocolViolation():
                self.is_held = False
            case _:
                pass
