"""Lets subscriptions change only if the number of echoes stays known, at MQTT 3.1.1.

A broker of MQTT 3.1.1 sends the agent's own publications back, once per matching subscription, and
the agent counts them (`dedup.echo`). It may send a QoS 2 publication back when PUBLISH arrives or
when PUBREL arrives; Mosquitto does the latter. If a subscription began or ended in between, the
number would be unknown, and an echo would be captured as if a client had published it:

    PUBLISH 3 "x"       no subscription matches: no echo expected
    SUBSCRIBE "a/#"
    PUBREL 3            Mosquitto sends "x" to all subscriptions that match now

So a change waits for QoS 2 publications in flight, and new publications wait for the change. After
a reconnection the order is: requests again, publications again, changes, new publications; what is
sent again was counted with the earlier requests. If the broker does not complete a handshake, a
change waits no longer than WAIT_S: then an echo may be captured, and delivered twice elsewhere.
"""

from collections.abc import Callable

from hansa.delivery.context import Context

WAIT_S = 5.0
"""Longest time that a change waits for publications in flight."""


class ChangeGate:
    """Says when subscriptions may change."""

    def __init__(self, context: Context, are_changes_blocked: Callable[[], bool]) -> None:
        self._context = context
        self._are_changes_blocked = are_changes_blocked
        self._wait_until: float | None = None

    @property
    def deadline(self) -> float | None:
        """Until when a change waits; None if none does."""
        return self._wait_until if self._context.is_change_waiting else None

    def is_closed(self) -> bool:
        """Whether subscriptions must not change now."""
        is_overdue = self._wait_until is not None and self._context.now >= self._wait_until
        return not is_overdue and self._are_changes_blocked()

    def wait(self) -> None:
        """A change waits from now on."""
        if self._wait_until is None:
            self._wait_until = self._context.now + WAIT_S
        self._context.is_change_waiting = True

    def stop_waiting(self, are_all_made: bool = True) -> None:
        """No change waits any more. If some are not made yet because too many requests are in
        flight, they do not get the whole time again."""
        self._context.is_change_waiting = False
        if are_all_made:
            self._wait_until = None
