"""The topics that are recorded."""

from collections.abc import Sequence

from hansa.protocol.topics import FilterTrie

TOPICS_MAX = 65_536
"""Topics whose result is cached; when full, the cache is cleared."""


class RecordedTopics:
    """The topics that some filters match."""

    def __init__(self, filters: Sequence[str] = ()) -> None:
        self.filters = tuple(filters)
        self._trie: FilterTrie[None] = FilterTrie()
        for name in filters:
            self._trie.put(name, None)
        self._matches: dict[str, bool] = {}

    def __bool__(self) -> bool:
        """Whether any topic is recorded."""
        return bool(self.filters)

    def __contains__(self, topic: str) -> bool:
        """Whether publications to a topic are recorded."""
        known = self._matches.get(topic)
        if known is None:
            if len(self._matches) >= TOPICS_MAX:
                self._matches.clear()
            known = self._matches[topic] = bool(self._trie.match(topic))
        return known
