"""The filters of recorded topics, with a cache of matches."""

from collections.abc import Sequence

from hansa.protocol.topics import FilterTrie

TOPICS_MAX = 65_536
"""Topics in the cache; when it is full, it is cleared."""


class RecordedTopics:
    def __init__(self, filters: Sequence[str] = ()) -> None:
        self.filters = tuple(filters)
        self._trie: FilterTrie[None] = FilterTrie()
        for name in filters:
            self._trie.put(name, None)
        self._matches: dict[str, bool] = {}

    def __bool__(self) -> bool:
        return bool(self.filters)

    def __contains__(self, topic: str) -> bool:
        known = self._matches.get(topic)
        if known is None:
            if len(self._matches) >= TOPICS_MAX:
                self._matches.clear()
            known = self._matches[topic] = bool(self._trie.match(topic))
        return known
