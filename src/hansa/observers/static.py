"""Wants what the configuration says: for brokers that cannot be observed, and for tests."""

from collections.abc import Iterable

from hansa.observers.contract import Change, Interest, Observer
from hansa.protocol.topics import check_filter


class StaticObserver(Observer):
    """A fixed set of filters; nothing that happens at the broker changes it."""

    complete = True
    reason = ""

    def __init__(self, filters: Iterable[str]) -> None:
        """Take the filters; raise InvalidTopic if one of them is none."""
        self._interest = Interest()
        for topic_filter in dict.fromkeys(filters):
            self._interest.hold(check_filter(topic_filter))

    def wanted(self) -> tuple[str, ...]:
        """Return the filters, sorted."""
        return self._interest.wanted()

    def reconnected(self, session_lost: bool, now: float) -> Change:
        """Tell the filters, the first time."""
        return self._interest.change()
