"""An observer with configured filters: for brokers that cannot be observed, and for tests."""

from collections.abc import Iterable

from hansa.observers.base import FilterCounts, Observer, ObserverOutput
from hansa.protocol.topics import check_filter


class StaticObserver(Observer):
    """A fixed set of filters."""

    is_complete = True
    incomplete_reason = ""

    def __init__(self, filters: Iterable[str]) -> None:
        """Raise InvalidTopic if one of the filters is invalid."""
        self._filter_counts = FilterCounts()
        for topic_filter in dict.fromkeys(filters):
            self._filter_counts.add(check_filter(topic_filter))

    def subscribed_filters(self) -> tuple[str, ...]:
        """Return the filters, sorted."""
        return self._filter_counts.subscribed_filters()

    def on_connected(self, session_lost: bool, now: float) -> ObserverOutput:
        """Report the filters, the first time."""
        return self._filter_counts.drain_changes()
