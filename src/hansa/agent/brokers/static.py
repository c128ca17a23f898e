"""Wants what the configuration says: for brokers that cannot be observed, and for tests."""

from collections.abc import Iterable

from hansa.agent.brokers.observer import Observer
from hansa.protocol.topics import check_filter


class StaticObserver(Observer):
    """A fixed set of filters; nothing that happens at the broker changes it."""

    complete = True
    reason = ""

    def __init__(self, filters: Iterable[str]) -> None:
        """Take the filters; raise InvalidTopic if one of them is none."""
        self._filters = tuple(sorted({check_filter(text) for text in filters}))

    def wanted(self) -> tuple[str, ...]:
        """Return the filters, sorted."""
        return self._filters
