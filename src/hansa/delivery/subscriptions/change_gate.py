"""Lets subscriptions change only while no QoS 2 publication is in flight, at MQTT 3.1.1.

A broker of MQTT 3.1.1 sends the agent's own publications back, once per matching subscription, and
the agent counts them (`dedup.echo`). It may send a QoS 2 publication back when PUBLISH arrives or
when PUBREL arrives; Mosquitto does the latter. If a subscription began or ended in between, the
number would be unknown, and an echo would be captured as if a client had published it:

    PUBLISH 3 "x"       no subscription matches: no echo expected
    SUBSCRIBE "a/#"
    PUBREL 3            Mosquitto sends "x" to all subscriptions that match now

So a change waits for the publications in flight, and new publications wait for the change. After a
reconnection, requests are repeated without waiting: publications in flight were counted with them.
If the broker does not complete a handshake, a change waits no longer than WAIT_S: then an echo may
be captured, and delivered twice elsewhere.
"""

from collections.abc import Callable

from hansa.delivery.context import Context

WAIT_S = 5.0
"""Longest time that a change waits for publications in flight."""


class ChangeGate:
    """Says when subscriptions may change."""

    def __init__(self, context: Context, has_qos2_in_flight: Callable[[], bool]) -> None:
        self._context = context
        self._has_qos2_in_flight = has_qos2_in_flight
        self.deadline: float | None = None
        """Until when a change waits; None if none does."""

    def is_closed(self) -> bool:
        """Return whether subscriptions must not change now; then a change waits from now on."""
        if not self._has_qos2_in_flight():
            return False
        if self.deadline is None:
            self.deadline = self._context.now + WAIT_S
        self._context.is_change_waiting = self._context.now < self.deadline
        return self._context.is_change_waiting

    def reset(self) -> None:
        """No change waits any more."""
        self.deadline = None
        self._context.is_change_waiting = False
