"""Counts publications per topic while an operator looks at the topics."""

from collections.abc import Iterable

from hansa.protocol.effects import Gap
from hansa.protocol.forwarding.numbering import LocalPublication
from hansa.protocol.model import PlainMessage, Publication

TOPICS_MAX = 2_000
"""Topics that are counted one by one; all others together have the name OTHER_TOPICS."""

OTHER_TOPICS = ""


class TopicCounter:
    """Publications captured from the broker and injected into it, per topic."""

    def __init__(self) -> None:
        self.counts: dict[str, list[int]] = {}
        """Captured and injected."""

    def add_captured(self, publications: Iterable[LocalPublication]) -> None:
        for each in publications:
            self._count_of(each.topic)[0] += 1

    def add_injected(self, publications: Iterable[PlainMessage | Publication | Gap]) -> None:
        for each in publications:
            if isinstance(each, tuple):
                self._count_of(each[0])[1] += 1
            elif isinstance(each, Publication):
                self._count_of(each.topic)[1] += 1

    def _count_of(self, topic: str) -> list[int]:
        found = self.counts.get(topic)
        if found is None:
            if len(self.counts) >= TOPICS_MAX:
                topic = OTHER_TOPICS
            found = self.counts.setdefault(topic, [0, 0])
        return found
