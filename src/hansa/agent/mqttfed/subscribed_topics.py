"""Federated topics that clients are subscribed to: several filters may name one topic."""

import logging
from collections import Counter
from collections.abc import Iterable

from hansa.mqttfed.messages import FEDERATED_PREFIX
from hansa.protocol.topics import split_share

log = logging.getLogger("hansa.agent")

LOGGED_MAX = 1_024
"""Filters remembered as logged; when full, all are logged again."""


class SubscribedTopics:
    """Derives changes of topics from changes of filters."""

    def __init__(self) -> None:
        self._topic_counts: Counter[str] = Counter()
        self.unsupported_filters: set[str] = set()
        """Subscribed filters with wildcards, which mqtt-fed does not support."""
        self._logged: set[str] = set()

    def apply_change(
        self, added: Iterable[str], removed: Iterable[str]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the topics that are newly subscribed, and those that no longer are."""
        before = set(self._topic_counts)
        for topic_filter in added:
            topic = federated_topic(topic_filter)
            if "#" in topic or "+" in topic:
                self._reject_filter(topic_filter)
            elif topic:
                self._topic_counts[topic] += 1
        for topic_filter in removed:
            self.unsupported_filters.discard(topic_filter)
            if (topic := federated_topic(topic_filter)) in self._topic_counts:
                self._topic_counts[topic] -= 1
        self._topic_counts = +self._topic_counts
        now = set(self._topic_counts)
        return tuple(sorted(now - before)), tuple(sorted(before - now))

    def _reject_filter(self, topic_filter: str) -> None:
        """Log once: clients subscribe to the same filters again and again."""
        self.unsupported_filters.add(topic_filter)
        if topic_filter in self._logged:
            return
        if len(self._logged) >= LOGGED_MAX:
            self._logged.clear()
        self._logged.add(topic_filter)
        log.warning(
            "filter not announced filter=%r reason='mqtt-fed has no wildcards'", topic_filter
        )


def federated_topic(topic_filter: str) -> str:
    """Return the federated topic that a filter names; empty if none."""
    plain = split_share(topic_filter)[1]
    return plain.removeprefix(FEDERATED_PREFIX) if plain.startswith(FEDERATED_PREFIX) else ""
