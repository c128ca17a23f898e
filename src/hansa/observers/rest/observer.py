"""The filters of the last good poll of a broker's HTTP API.

A poll is one request, or several: pages, or parts of the list. The list may change between two
requests of a poll, and then a subscription can be missing in it. So after a poll of several
requests a known filter stays until a second poll lacks it, too; and the first such poll does not
make the observer complete, only the next one does.

A user without rights may get an empty list instead of an error, and a list of another virtual host
lacks the clients here. So a list must contain the agent's own subscriptions, and until one has done
so, the agent is not complete unless the broker refuses it a subscription.

The observer is complete while the last poll was good and recent. A poll fails if the broker
answers late, with an error, or not as described; then everything known stays. A client that has
just subscribed is known after the next poll, or the one after it.
"""

from collections.abc import Iterable

from hansa.errors import InvalidTopic, UsageError
from hansa.observers.base import (
    FilterCounts,
    FilterNotAnnounced,
    Observer,
    ObserverFinding,
    ObserverOutput,
    ObserverSnapshot,
)
from hansa.observers.rest.answer import ListedSubscription
from hansa.protocol.topics import check_filter, is_local_only

FILTERS_MAX = 1 << 17
"""Different filters; with more the observer is not complete."""

REFUSED_REPORTED_MAX = 1_024
"""Filters that cannot be announced and are reported once each."""

NOT_POLLED = "the broker's HTTP API has not answered yet"
OWN_MISSING = (
    "the broker's HTTP API does not list the agent's own subscriptions: check the rights of the"
    " user in [rest], and whether url and kind mean the broker and virtual host of the clients"
)
NOT_CONFIRMED = "the broker's HTTP API has listed its subscriptions in several parts only once"
OWN_AWAITED = "the broker's HTTP API has not listed the agent's own subscription yet"
_SNAPSHOT_FORMAT = "rest 1"
_SHOWN_CHARS_MAX = 64


class RestObserver(Observer):
    """Subscriptions that a broker lists."""

    def __init__(
        self, own_prefix: str, stale_after_s: float, own_hashes: Iterable[str] = ()
    ) -> None:
        """Clients whose id starts with the prefix, or that have one of the hashes, are the agent's
        own. A poll that began more than `stale_after_s` seconds ago proves nothing any more."""
        if not own_prefix:
            raise ValueError("an empty prefix would make every client the agent's own")
        self._own_prefix = own_prefix
        self._own_hashes = frozenset(own_hashes)
        self._stale_after_s = stale_after_s
        self._filters = FilterCounts()
        self._missing: dict[str, None] = {}
        """Known filters that the last poll lacks."""
        self._problem = NOT_POLLED
        self._has_polled = False
        """Whether the last poll was good."""
        self._has_listed_own = False
        """Whether a list has contained a subscription of the agent."""
        self._stale_at: float | None = None
        self._findings: list[ObserverFinding] = []
        self._refused: dict[str, None] = {}

    @property
    def is_complete(self) -> bool:
        """Whether the last poll was good and recent."""
        return not self._problem

    @property
    def incomplete_reason(self) -> str:
        """Why it is not complete; empty if it is."""
        return self._problem

    @property
    def is_confirmation_pending(self) -> bool:
        """Whether the first polls have not ended yet."""
        return self._problem in (NOT_POLLED, NOT_CONFIRMED, OWN_AWAITED)

    def subscribed_filters(self) -> tuple[str, ...]:
        """Return the known filters, sorted."""
        return self._filters.subscribed_filters()

    def on_connected(self, session_lost: bool, now: float) -> ObserverOutput:
        """Report what an earlier run saved."""
        return self._make_output()

    def on_polled(
        self,
        listed: Iterable[ListedSubscription],
        request_count: int,
        began_at: float,
        expects_own: bool = False,
        awaits_own: bool = False,
    ) -> ObserverOutput:
        """Replace the known filters by those of a good poll. `expects_own`: the list must contain
        subscriptions of the agent. `awaits_own`: this list or an earlier one must."""
        found: dict[str, None] = {}
        lists_own = False
        for each in listed:
            is_own = each.client.startswith(self._own_prefix) or each.client in self._own_hashes
            lists_own = lists_own or is_own
            if each.topic_filter not in found and not is_own and self._is_announced(each):
                found[each.topic_filter] = None
        if expects_own and not lists_own:
            return self.on_poll_failed(OWN_MISSING)
        self._has_listed_own |= lists_own
        is_confirmed, self._has_polled = self._has_polled or request_count == 1, True
        self._problem = "" if is_confirmed else NOT_CONFIRMED
        if awaits_own and not self._has_listed_own:
            self._problem = OWN_AWAITED
        self._stale_at = began_at + self._stale_after_s
        if len(found) > FILTERS_MAX:
            self._problem = f"the broker lists more than {FILTERS_MAX} filters"
            return self._make_output()
        missing = [name for name in self._filters.subscribed_filters() if name not in found]
        for name in missing:
            if request_count == 1 or name in self._missing:
                self._filters.remove(name)
        self._missing = {name: None for name in missing if name in self._filters}
        for name in found:
            if name not in self._filters:
                self._filters.add(name)
        return self._make_output()

    def on_poll_failed(self, reason: str) -> ObserverOutput:
        """Keep everything known; subscriptions may be missing."""
        self._problem, self._stale_at, self._has_polled = reason, None, False
        return self._make_output()

    def handle_timer(self, now: float) -> ObserverOutput:
        """Doubt a poll that is too old."""
        if self._stale_at is not None and now >= self._stale_at:
            self._stale_at, self._has_polled = None, False
            self._problem = "the broker's HTTP API has not listed its subscriptions for too long"
        return self._make_output()

    def next_deadline(self) -> float | None:
        """When the last poll becomes too old."""
        return self._stale_at

    def snapshot(self) -> ObserverSnapshot:
        """Return the known filters."""
        return {"format": _SNAPSHOT_FORMAT, "filters": list(self._filters.subscribed_filters())}

    def restore(self, saved: ObserverSnapshot, now: float) -> ObserverOutput:
        """Restore the filters; the first poll confirms or removes them."""
        filters = saved.get("filters")
        if saved.get("format") != _SNAPSHOT_FORMAT or not isinstance(filters, list):
            raise UsageError(f"not a snapshot of the observer {_SNAPSHOT_FORMAT}")
        for name in dict.fromkeys(map(str, filters[:FILTERS_MAX])):
            if self._is_announced(ListedSubscription("", name)):
                self._filters.add(name)
        return self._make_output()

    def _is_announced(self, listed: ListedSubscription) -> bool:
        topic_filter = listed.topic_filter
        if is_local_only(topic_filter):
            return False
        try:
            check_filter(topic_filter)
        except InvalidTopic as error:
            shown = topic_filter[:_SHOWN_CHARS_MAX]
            if shown not in self._refused and len(self._refused) < REFUSED_REPORTED_MAX:
                self._refused[shown] = None
                self._findings.append(FilterNotAnnounced(shown, str(error)))
            return False
        return True

    def _make_output(self) -> ObserverOutput:
        findings, self._findings = self._findings, []
        return self._filters.drain_output(self, findings)
