"""Which federated topics clients want: several filters may name one topic."""

import logging
from collections import Counter
from collections.abc import Iterable

from hansa.mqttfed.messages import FEDERATED
from hansa.protocol.topics import split_share

log = logging.getLogger("hansa.agent")

TOLD_MAX = 1_024
"""Filters that are remembered as told; when full, all are told anew."""


class Wishes:
    """Turns filters that come and go into topics that come and go."""

    def __init__(self) -> None:
        """Start with none."""
        self._filters: Counter[str] = Counter()
        self.left_out: set[str] = set()
        """Filters that are wanted and cannot be had: mqtt-fed has no wildcards."""
        self._told: set[str] = set()

    def change(
        self, added: Iterable[str], removed: Iterable[str]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the topics that are wanted from now on, and those that no longer are."""
        before = set(self._filters)
        for topic_filter in added:
            topic = topic_of(topic_filter)
            if "#" in topic or "+" in topic:
                self._leave_out(topic_filter)
            elif topic:
                self._filters[topic] += 1
        for topic_filter in removed:
            self.left_out.discard(topic_filter)
            if (topic := topic_of(topic_filter)) in self._filters:
                self._filters[topic] -= 1
        self._filters = +self._filters
        now = set(self._filters)
        return tuple(sorted(now - before)), tuple(sorted(before - now))

    def _leave_out(self, topic_filter: str) -> None:
        """Say so once: clients come and go with the same filters."""
        self.left_out.add(topic_filter)
        if topic_filter in self._told:
            return
        if len(self._told) >= TOLD_MAX:
            self._told.clear()
        self._told.add(topic_filter)
        log.warning("filter left out filter=%r reason='mqtt-fed has no wildcards'", topic_filter)


def topic_of(topic_filter: str) -> str:
    """Return the federated topic that a filter names; empty if it names none."""
    plain = split_share(topic_filter)[1]
    return plain.removeprefix(FEDERATED) if plain.startswith(FEDERATED) else ""
