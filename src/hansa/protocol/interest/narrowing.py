"""Narrows the filters of local clients to the topics that this node may receive (rule 12.7).

A client may subscribe to `#` at the broker of a node that may only receive `plant/a/#`: the node
announces `plant/a/#` for it. Several filters of clients may be narrowed to the same one.
"""

from collections import Counter
from collections.abc import Iterable

from hansa.protocol.membership.rights import Rights
from hansa.protocol.topics import is_filter


class InterestNarrowing:
    """Filters of clients, and what they were narrowed to."""

    def __init__(self, rights: Rights) -> None:
        self._rights = rights
        self._narrowed: dict[str, tuple[str, ...]] = {}
        self._counts: Counter[str] = Counter()

    def apply_change(
        self, added: Iterable[str], removed: Iterable[str]
    ) -> tuple[list[str], list[str], list[str]]:
        """Apply a change of the clients' filters; return the narrowed filters that were added and
        removed, and the filters of clients of which nothing remains."""
        more: list[str] = []
        fewer: list[str] = []
        refused: list[str] = []
        for name in added:
            if name not in self._narrowed:
                narrowed = tuple(filter(is_filter, self._rights.narrow(name)))
                self._narrowed[name] = narrowed
                more += [each for each in narrowed if not self._counts[each]]
                self._counts.update(narrowed)
                refused += [name] if not narrowed else []
        for name in removed:
            for each in self._narrowed.pop(name, ()):
                self._counts[each] -= 1
                if not self._counts[each]:
                    del self._counts[each]
                    fewer.append(each)
        return more, fewer, refused

    def set_rights(self, rights: Rights) -> tuple[list[str], list[str], list[str]]:
        """Narrow all filters to other rights; return the same as `apply_change`."""
        before, subscribed = self._counts, list(self._narrowed)
        self._rights, self._narrowed, self._counts = rights, {}, Counter()
        _, _, refused = self.apply_change(subscribed, ())
        added = [name for name in self._counts if name not in before]
        return added, [name for name in before if name not in self._counts], refused
