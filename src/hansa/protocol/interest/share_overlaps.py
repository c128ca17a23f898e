"""Which filters overlap a shared subscription of this node.

Every input asks this about every filter that is about to be withdrawn. A client can have thousands
of shares and withdrawals, so answers are kept until a share that changes them comes or goes.
"""

from hansa.protocol.topics import FilterTrie, intersect


class ShareOverlaps:
    """The filters of shares, and the answers about other filters."""

    def __init__(self) -> None:
        self._filters: FilterTrie[int] = FilterTrie()
        """Without `$share/…/`, with the number of shares that have it."""
        self.known: dict[str, bool] = {}
        """By filter that was asked about: whether it overlaps one of a share."""

    def add(self, plain: str) -> None:
        """A share has this filter, given without `$share/…/`."""
        self._filters.put(plain, (self._filters.get(plain) or 0) + 1)
        self._forget_changed(plain, has_share=True)

    def remove(self, plain: str) -> None:
        """A share with this filter is gone."""
        count = (self._filters.get(plain) or 0) - 1
        if count:
            self._filters.put(plain, count)
        else:
            self._filters.remove(plain)
            self._forget_changed(plain, has_share=False)

    def overlaps(self, name: str) -> bool:
        """Whether some topic matches this filter and one of a share. The answer is kept until
        `forget`."""
        answer = self.known.get(name)
        if answer is None:
            answer = self.known[name] = self._filters.overlaps(name)
        return answer

    def forget(self, name: str) -> None:
        """Drop the answer about a filter that is not about to be withdrawn any more."""
        self.known.pop(name, None)

    def _forget_changed(self, plain: str, *, has_share: bool) -> None:
        for name, overlaps in list(self.known.items()):
            if overlaps is not has_share and intersect(name, plain) is not None:
                del self.known[name]
