"""Brings the broker's subscriptions in line with the required ones, in the order of the requests.

At most REQUESTS_MAX requests are in flight; what to do with a filter is decided in its turn. A
request is sent once the change is durable (`saved`); meanwhile others gather.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from hansa.delivery.context import Context
from hansa.delivery.effects import FeedNode, SaveSubscriptions, Subscribe, Unsubscribe
from hansa.delivery.group_commit import RETRY_S
from hansa.delivery.subscriptions.change_gate import ChangeGate
from hansa.delivery.subscriptions.saved import ENDED, LEAVING, SavedSubscriptions
from hansa.delivery.subscriptions.table import SubscriptionTable
from hansa.mqtt.fields import VARIABLE_INTEGER_MAX, has_refusable_characters
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.packets import Subscription
from hansa.mqtt.types import REFUSAL_CODE_MIN, Version
from hansa.protocol.events import SubscriptionsDenied, SubscriptionsGranted

LOST_IDENTIFIERS = 1 << 20
"""Identifiers that are not assigned in a session if the saved state is an older copy: the replaced
state may have assigned some of them, and queued copies name those."""

REQUESTS_MAX = 256
"""Requests in flight. A connection has packet ids for about twice as many."""


class SubscriptionReconciler:
    """Subscribes to required filters and unsubscribes from others."""

    def __init__(
        self,
        context: Context,
        subscriptions: SubscriptionTable,
        saved: SavedSubscriptions,
        are_changes_blocked: Callable[[], bool],
        is_copy: bool,
    ) -> None:
        """`are_changes_blocked` returns whether publications in flight forbid changes at MQTT 3.1.1
        (`change_gate`). `is_copy` says that the saved state is a restored copy."""
        self._context = context
        self._subscriptions = subscriptions
        self._saved = saved
        self.gate = ChangeGate(context, are_changes_blocked)
        self._is_copy = is_copy
        for name, identifier in saved.identifiers.items():
            if identifier != LEAVING:
                subscriptions.restore(name, identifier)
        subscriptions.restore_identifiers(saved.last_identifier, saved.last_identifier_at_end)
        self._limits: BrokerLimits | None = None
        """Limits of the broker; None while disconnected."""
        self._unconfirmed: set[str] = set()
        """Filters of the session whose state the broker has to confirm."""
        self._to_reconcile: deque[str] = deque()
        """Filters that may have to be subscribed or unsubscribed."""
        self._requests: list[Subscribe | Unsubscribe] = []
        """Requests to send once the changes are saved."""
        self._in_flight = 0
        self._is_saving = False
        self.retry_at: float | None = None
        """When a failed save is repeated."""

    @property
    def _is_mqtt311(self) -> bool:
        """Whether the broker only supports MQTT 3.1.1."""
        return self._limits is not None and self._limits.version is Version.V311

    def reconcile(self, filters: Iterable[str]) -> None:
        """Check filters that are required now, or no longer."""
        self._to_reconcile.extend(filters)
        self._continue()

    def on_connected(self, session_present: bool, limits: BrokerLimits) -> bool:
        """Start from the session that the broker has; return whether it should have one."""
        self._limits = limits
        self._in_flight = 0
        saved, subscriptions = self._saved, self._subscriptions
        # For every version, and also without filters: handshakes may be in flight.
        is_expected = saved.has_session
        if session_present:
            self._unconfirmed = {*saved.identifiers, *subscriptions.active_identifiers}
            if self._is_copy or not is_expected:
                subscriptions.skip_identifiers(LOST_IDENTIFIERS)
            subscriptions.on_session_resumed()
        else:
            subscriptions.on_session_lost()
            saved.clear()
            self._unconfirmed = set()
        is_lasting = not self._is_mqtt311 or limits.session_expiry > 0
        if (saved.has_session, saved.version) != (is_lasting, limits.version):
            saved.has_session, saved.version = is_lasting, limits.version
            saved.request_rewrite()
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
        self.gate.stop_waiting()

    def on_subscribed(self, answered: Sequence[Subscription], reasons: bytes) -> None:
        """Report the results of requests to the node. An answer for a filter that is being
        unsubscribed means nothing, even if it is required again: its UNSUBSCRIBE is in flight."""
        subscriptions = self._subscriptions
        self._in_flight -= len(answered)
        granted: list[str] = []
        for subscription, reason in zip(answered, reasons, strict=True):
            name = subscription.topic_filter
            subscriptions.on_confirmed(name)
            if reason >= REFUSAL_CODE_MIN:
                self._context.counters["subscriptions denied"] += 1
                subscriptions.deactivate(name)
                self._record_change(name, ENDED)
            if name not in subscriptions or subscriptions.is_unsubscribing(name):
                continue
            if reason >= REFUSAL_CODE_MIN:
                text = f"the broker refuses {name!r} (code {reason:#x})"
                self._context.effects.append(FeedNode(SubscriptionsDenied((name,), text)))
            else:
                granted.append(name)
        if granted:
            self._context.effects.append(FeedNode(SubscriptionsGranted(tuple(granted))))
        self._continue()

    def on_unsubscribed(self, filters: Sequence[str]) -> None:
        """The broker confirmed UNSUBSCRIBE."""
        self._in_flight -= 1
        for name in filters:
            self._record_change(name, ENDED)
        self.reconcile([name for name in filters if self._subscriptions.on_unsubscribed(name)])

    # ------------------------------------------------------------ one after the other

    def _continue(self) -> None:
        if self._limits is None:
            self._to_reconcile.clear()
            return
        is_closed = bool(self._to_reconcile) and self._is_mqtt311 and self.gate.is_closed()
        waiting: list[str] = []
        while (
            self._to_reconcile
            and not self._awaits_save
            and self._in_flight + len(self._requests) < REQUESTS_MAX
        ):
            name = self._to_reconcile.popleft()
            if is_closed and self._is_change(name):
                waiting.append(name)
            else:
                self._requests += self._make_requests(name)
        self._to_reconcile.extendleft(reversed(waiting))
        if waiting:
            self.gate.wait()
        else:
            self.gate.stop_waiting(are_all_made=not self._to_reconcile)
        if self._saved.has_unsaved and not self._is_saving and self.retry_at is None:
            self._is_saving = True
            self._context.effects.append(SaveSubscriptions())
        if not self._awaits_save:
            self._send_requests()

    @property
    def _awaits_save(self) -> bool:
        """Whether changes must be durable before the next request. Not for MQTT 3.1.1: queued
        publications name no identifiers, and echoes are counted from when a request is sent."""
        return self._is_saving and not self._is_mqtt311

    def resume(self) -> bool:
        """Make the changes that wait for publications in flight, if they need not wait any longer;
        return whether none waits any more."""
        if not self.gate.is_closed():
            self._continue()
        return not self._context.is_change_waiting

    def on_saved(self, succeeded: bool) -> None:
        """The changes are durable, or could not be saved; requests are sent in both cases."""
        self._is_saving = False
        self._send_requests()
        if succeeded:
            self._continue()
        else:
            self._saved.request_rewrite()
            self.retry_at = self._context.now + RETRY_S

    def on_timer(self) -> None:
        """Repeat a failed save if its pause has passed."""
        if self.retry_at is not None and self._context.now >= self.retry_at:
            self.retry_at = None
            self._continue()

    def _send_requests(self) -> None:
        self._in_flight += len(self._requests)
        self._context.effects += self._requests
        self._requests = []

    def _is_change(self, name: str) -> bool:
        """Whether a filter is subscribed or unsubscribed next, not only requested again."""
        is_required, held = name in self._subscriptions, self._subscriptions.is_subscribed(name)
        is_pending = name in self._unconfirmed or self._subscriptions.is_unsubscribing(name)
        return is_required != held and not is_pending

    def _make_requests(self, name: str) -> list[Subscribe | Unsubscribe]:
        """Return the next requests and record their changes."""
        subscriptions = self._subscriptions
        is_required, held = name in subscriptions, subscriptions.is_subscribed(name)
        is_unconfirmed = name in self._unconfirmed
        self._unconfirmed.discard(name)
        if self._is_mqtt311 and is_unconfirmed:
            was_leaving = self._saved.identifiers.get(name) == LEAVING
            if is_required == was_leaving:
                return [self._repeat_request(name, was_leaving)]
        if is_required and held:  # unconfirmed, or required again before its answer
            return [self._make_subscribe(name, subscriptions.identifier_of(name))]
        if is_required and (reason := self._refusal_reason(name)):
            self._context.counters["subscriptions denied"] += 1
            self._context.effects.append(FeedNode(SubscriptionsDenied((name,), reason)))
            return []
        if is_required and not subscriptions.is_unsubscribing(name):
            identifier = subscriptions.assign_identifier(name)
            self._record_change(name, identifier)
            return [self._make_subscribe(name, identifier)]
        if not is_required and (held or is_unconfirmed):
            subscriptions.start_unsubscribe(name)
            self._record_change(name, LEAVING)
            return [Unsubscribe(name)]
        return []

    def _repeat_request(self, name: str, was_leaving: bool) -> Subscribe | Unsubscribe:
        """Return the last request for a filter that is to change: publications in flight were
        counted with it. The change follows."""
        subscriptions = self._subscriptions
        if was_leaving:
            subscriptions.start_unsubscribe(name)  # its confirmation lets it be subscribed again
            return Unsubscribe(name)
        self._to_reconcile.append(name)
        if subscriptions.is_subscribed(name):
            identifier = subscriptions.identifier_of(name)
        else:
            identifier = subscriptions.assign_identifier(name)
        self._record_change(name, identifier)
        return self._make_subscribe(name, identifier)

    def _refusal_reason(self, name: str) -> str:
        """Return why the broker is not asked for a new filter; empty if it is."""
        if has_refusable_characters(name):  # the broker might close the connection
            return f"a broker may refuse the characters of {name!r}"
        if self._subscriptions.last_identifier >= VARIABLE_INTEGER_MAX:
            # Their order tells copies apart, so no identifier is reused within a session.
            return "all subscription identifiers were given; only a new session at the broker helps"
        return ""

    def _record_change(self, name: str, identifier: int) -> None:
        if self._saved.has_session:
            self._saved.record(name, identifier)

    def _make_subscribe(self, name: str, identifier: int) -> Subscribe:
        # Retained values are synchronised separately: a replay must not look like a new
        # publication.
        assert self._limits is not None
        is_old = self._is_mqtt311  # MQTT 3.1.1 has none of these options
        wish = Subscription(
            name,
            qos=2,
            no_local=not is_old,
            retain_as_published=not is_old,
            retain_handling=0 if is_old else 2,
        )
        return Subscribe(wish, identifier if self._limits.subscription_ids_available else None)
