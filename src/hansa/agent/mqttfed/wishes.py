"""Which federated topics clients want: several filters may name one topic."""

import logging
from collections import Counter
from collections.abc import Iterable

from hansa.mqttfed.messages import FEDERATED
from hansa.protocol.topics import split_share

log = logging.getLogger("hansa.agent")


class Wishes:
    """Turns filters that come and go into topics that come and go."""

    def __init__(self) -> None:
        """Start with none."""
        self._filters: Counter[str] = Counter()
        self.wildcards = 0
        """Filters that were left out: mqtt-fed has no wildcards."""

    def change(
        self, added: Iterable[str], removed: Iterable[str]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the topics that are wanted from now on, and those that no longer are."""
        before = set(self._filters)
        for topic_filter in added:
            if topic := self._topic_of(topic_filter):
                self._filters[topic] += 1
        for topic_filter in removed:
            if (topic := topic_of(topic_filter)) in self._filters:
                self._filters[topic] -= 1
        self._filters = +self._filters
        now = set(self._filters)
        return tuple(sorted(now - before)), tuple(sorted(before - now))

    def _topic_of(self, topic_filter: str) -> str:
        topic = topic_of(topic_filter)
        if "#" not in topic and "+" not in topic:
            return topic
        self.wildcards += 1
        log.warning("filter left out filter=%r reason='mqtt-fed has no wildcards'", topic_filter)
        return ""


def topic_of(topic_filter: str) -> str:
    """Return the federated topic that a filter names; empty if it names none."""
    plain = split_share(topic_filter)[1]
    return plain.removeprefix(FEDERATED) if plain.startswith(FEDERATED) else ""
