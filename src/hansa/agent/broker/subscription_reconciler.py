"""Brings the broker's subscriptions in line with the required ones, in the order of the requests.

The session accepts a few hundred requests at a time; what to do with a filter is decided in its
turn. A request is sent once the change is on disk (`subscription_log`); meanwhile others gather.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from hansa.agent import tasks
from hansa.agent.broker.connection import Connection
from hansa.agent.broker.subscription_log import ENDED, LEAVING, SubscriptionLog
from hansa.agent.broker.subscription_table import SubscriptionTable
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.fields import VARIABLE_INTEGER_MAX, has_refusable_characters
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.types import REFUSAL_CODE_MIN, Version
from hansa.protocol.events import Event, SubscriptionsDenied, SubscriptionsGranted

RETRY_S = 1.0
"""Seconds until a failed write is repeated."""


class SubscriptionReconciler:
    """Subscribes to required filters and unsubscribes from others."""

    def __init__(
        self,
        connection: Connection,
        subscriptions: SubscriptionTable,
        feed: Callable[[Event], None],
        counters: Counter[str],
        log: SubscriptionLog | None,
    ) -> None:
        """Without a log there is no persistent session and everything is QoS 0."""
        self._connection = connection
        self._subscriptions = subscriptions
        self._feed = feed
        self._counters = counters
        self._log = log
        if log is not None:
            if log.has_session:
                connection.mark_mqtt5_known()
            for name, identifier in log.identifiers.items():
                if identifier != LEAVING:
                    subscriptions.restore(name, identifier)
            subscriptions.restore_identifiers(log.last_identifier, log.last_identifier_at_end)
        self._limits: BrokerLimits | None = None
        """Limits of the broker; None while disconnected."""
        self._is_mqtt311 = False
        """Whether the broker only supports MQTT 3.1.1."""
        self._unconfirmed: set[str] = set()
        """Filters of the session whose state the broker has to confirm."""
        self._to_reconcile: deque[str] = deque()
        """Filters that may have to be subscribed or unsubscribed."""
        self._requests: list[inputs.Subscribe | inputs.Unsubscribe] = []
        """Requests to send once the log is written."""
        self._write_task: asyncio.Task[None] | None = None

    def reconcile(self, filters: Iterable[str]) -> None:
        """Check filters that are required now, or no longer."""
        self._to_reconcile.extend(filters)
        self._continue()

    def on_connected(self, session_present: bool, limits: BrokerLimits) -> bool:
        """Start from the session that the broker has; return whether it should have one."""
        self._limits = limits
        self._is_mqtt311 = limits.version is Version.V311
        log, subscriptions = self._log, self._subscriptions
        held = log.identifiers if log is not None else {}
        # For every version, and also without filters: handshakes may be in flight.
        is_expected = log is not None and log.has_session
        if session_present:
            self._unconfirmed = set(held) | set(subscriptions.active_identifiers)
            subscriptions.on_session_resumed()
        else:
            subscriptions.on_session_lost()
            if log is not None:
                log.clear()
            self._unconfirmed = set()
        if log is not None:
            log.has_session = not self._is_mqtt311
        return is_expected

    def reconcile_all(self) -> None:
        """Subscribe to everything, oldest first. In a resumed session, subscriptions are repeated
        before others are ended: between two filters that match one topic nothing is missed."""
        held, new = self._subscriptions.active_identifiers, self._subscriptions.last_identifier + 1
        required = sorted(self._subscriptions.required, key=lambda name: held.get(name, new))
        self._to_reconcile = deque(dict.fromkeys([*required, *sorted(self._unconfirmed)]))
        self._continue()

    def on_disconnected(self) -> None:
        """Forget the connection; `reconcile_all` starts from the required filters."""
        self._limits = None
        self._to_reconcile.clear()
        self._requests.clear()

    def on_subscribed(self, effect: effects.Subscribed) -> None:
        """Report the result to the node. An answer for a filter that is being unsubscribed means
        nothing, even if it is required again: its UNSUBSCRIBE is in flight."""
        subscriptions = self._subscriptions
        for subscription, reason in zip(effect.subscriptions, effect.reasons, strict=True):
            name = subscription.topic_filter
            subscriptions.on_confirmed(name)
            if reason >= REFUSAL_CODE_MIN:
                self._counters["subscriptions denied"] += 1
                subscriptions.deactivate(name)
                self._log_change(name, ENDED)
            if name not in subscriptions or subscriptions.is_unsubscribing(name):
                continue
            if reason >= REFUSAL_CODE_MIN:
                self._feed(
                    SubscriptionsDenied((name,), f"the broker refuses {name!r} (code {reason:#x})")
                )
            else:
                self._feed(SubscriptionsGranted((name,)))
        self._continue()

    def on_unsubscribed(self, filters: Sequence[str]) -> None:
        """The broker confirmed UNSUBSCRIBE."""
        for name in filters:
            self._log_change(name, ENDED)
        self.reconcile([name for name in filters if self._subscriptions.on_unsubscribed(name)])

    # ------------------------------------------------------------ one after the other

    def _continue(self) -> None:
        session = self._connection.session
        if self._limits is None or session is None:
            self._to_reconcile.clear()
            return
        while (
            self._to_reconcile
            and not self._awaits_disk
            and len(self._requests) < session.request_quota
        ):
            self._requests += self._make_requests(self._to_reconcile.popleft())
        if self._log is not None and self._log.has_unwritten and self._write_task is None:
            self._write_task = tasks.start_task(self._write_log(self._log))
        if not self._awaits_disk:
            self._send_requests()

    @property
    def _awaits_disk(self) -> bool:
        """Whether changes must be on disk before the next request. Not for MQTT 3.1.1: no session
        persists, and echoes are counted from when a request is sent."""
        return self._write_task is not None and not self._is_mqtt311

    async def _write_log(self, log: SubscriptionLog) -> None:
        try:
            is_written = await log.write()
        finally:
            self._write_task = None
        self._send_requests()
        if is_written:
            self._continue()
        else:
            asyncio.get_running_loop().call_later(RETRY_S, self._continue)

    def _send_requests(self) -> None:
        requests, self._requests = self._requests, []
        for request in requests:
            self._connection.submit(request)

    def _make_requests(self, name: str) -> list[inputs.Subscribe | inputs.Unsubscribe]:
        """Return the next requests and record their changes."""
        subscriptions = self._subscriptions
        is_required, held = name in subscriptions, subscriptions.is_subscribed(name)
        is_unconfirmed = name in self._unconfirmed
        self._unconfirmed.discard(name)
        if is_required and held:  # unconfirmed, or required again before its answer
            return [self._make_subscribe(name, subscriptions.identifier_of(name))]
        if is_required and (reason := self._refusal_reason(name)):
            self._counters["subscriptions denied"] += 1
            self._feed(SubscriptionsDenied((name,), reason))
            return []
        if is_required and not subscriptions.is_unsubscribing(name):
            identifier = subscriptions.assign_identifier(name)
            self._log_change(name, identifier)
            return [self._make_subscribe(name, identifier)]
        if not is_required and (held or is_unconfirmed):
            subscriptions.start_unsubscribe(name)
            self._log_change(name, LEAVING)
            return [inputs.Unsubscribe((name,))]
        return []

    def _refusal_reason(self, name: str) -> str:
        """Return why the broker is not asked for a new filter; empty if it is."""
        if has_refusable_characters(name):  # the broker might close the connection
            return f"a broker may refuse the characters of {name!r}"
        if self._subscriptions.last_identifier >= VARIABLE_INTEGER_MAX:
            # Their order tells copies apart, so no identifier is reused within a session.
            return "all subscription identifiers were given; only a new session at the broker helps"
        return ""

    def _log_change(self, name: str, identifier: int) -> None:
        if self._log is not None and not self._is_mqtt311:
            self._log.record(name, identifier)

    def _make_subscribe(self, name: str, identifier: int) -> inputs.Subscribe:
        # Retained values are synchronised separately: a replay must not look like a new
        # publication.
        assert self._limits is not None
        is_old = self._is_mqtt311  # MQTT 3.1.1 has none of these options
        wish = packets.Subscription(
            name,
            qos=2 if self._log is not None else 0,
            no_local=not is_old,
            retain_as_published=not is_old,
            retain_handling=0 if is_old else 2,
        )
        return inputs.Subscribe(
            (wish,), identifier if self._limits.subscription_ids_available else None
        )
