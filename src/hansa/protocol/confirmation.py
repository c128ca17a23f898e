"""Which nodes have this node's interest in force, and how they say so.

A node that has granted all filters of another tells that node, hop by hop, from which position of
its journal on that interest counts. When every node in reach has done so, the interest is
*installed*: nothing published anywhere in reach from then on is missed for want of a subscription.
Who stays silent is asked.
"""

from collections.abc import Callable, Iterable

from hansa.protocol.frames import Confirm, Confirmation, Enquire
from hansa.protocol.records import Stamp
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.vocabulary import HOPS_MAX, NodeId

ENTRIES_PER_FRAME_MAX = 1_024

Letters = list[tuple[NodeId, Confirm | Enquire]]
"""Frames, each with the neighbour to whom it goes."""


class Installation:
    """Who has confirmed this node's newest interest, and whether that is everybody in reach."""

    def __init__(self, node: NodeId, settings: ProtocolSettings) -> None:
        """Start with no interest, which needs no confirmation."""
        self._self = node
        self._patience = settings.confirm_patience
        self.stamp: Stamp = (0, 0)
        self.complete = True
        self._confirmed: dict[NodeId, None] = {}
        self._ask_due: float | None = None
        self._ask_after = self._patience

    def renew(self, stamp: Stamp, now: float) -> None:
        """There is a newer interest: everybody has to confirm again."""
        self.stamp = stamp
        self.complete = False
        self._confirmed.clear()
        self._ask_due, self._ask_after = now + self._patience, self._patience

    def confirm(self, node: NodeId, stamp: Stamp) -> None:
        """A node has this version in force."""
        if stamp == self.stamp:
            self._confirmed[node] = None

    def doubt(self, node: NodeId) -> None:
        """A node has started anew: what it confirmed counts no more."""
        self._confirmed.pop(node, None)

    def check(self, reachable: dict[NodeId, None], now: float) -> bool:
        """Look again; return whether the installation has just become complete."""
        was = self.complete
        self.complete = self.stamp == (0, 0) or (
            len(self._confirmed) >= len(reachable) - 1 and not self._missing(reachable)
        )
        if self.complete:
            self._ask_due = None
        elif self._ask_due is None:
            self._ask_due, self._ask_after = now + self._patience, self._patience
        return self.complete and not was

    def ask(self, reachable: dict[NodeId, None], now: float) -> list[NodeId]:
        """Return whom to ask now, less and less often."""
        if self._ask_due is None or now < self._ask_due:
            return []
        self._ask_after *= 2
        self._ask_due = now + self._ask_after
        return self._missing(reachable)

    def next_deadline(self) -> float | None:
        """When `ask` is next due."""
        return self._ask_due

    def _missing(self, reachable: Iterable[NodeId]) -> list[NodeId]:
        return [n for n in reachable if n != self._self and n not in self._confirmed]


class Post:
    """Confirmations and enquiries on their way through this node, gathered for a moment."""

    def __init__(self, delay: float) -> None:
        """Start empty; letters wait so long to share a frame."""
        self._delay = delay
        self._confirmations: dict[tuple[NodeId, NodeId], Confirmation] = {}
        self._enquiries: dict[tuple[NodeId, NodeId], Enquire] = {}
        self._due: float | None = None

    def put(self, letter: Confirmation | Enquire, now: float) -> None:
        """Take a letter; of two confirmations from one node to one other, the newer replaces."""
        if letter.hops >= HOPS_MAX:
            return
        if isinstance(letter, Enquire):
            self._enquiries[letter.to, letter.node] = letter
        else:
            self._confirmations[letter.to, letter.node] = letter
        if self._due is None:
            self._due = now + self._delay

    def flush(self, next_hop: Callable[[NodeId], NodeId | None], now: float) -> Letters:
        """Return what leaves now; what cannot leave is dropped, and will be asked for."""
        if self._due is None or now < self._due:
            return []
        self._due = None
        letters: Letters = []
        bundles: dict[NodeId, list[Confirmation]] = {}
        for entry in self._confirmations.values():
            if (hop := next_hop(entry.to)) is not None:
                bundles.setdefault(hop, []).append(entry)
        for hop, bundle in bundles.items():
            for at in range(0, len(bundle), ENTRIES_PER_FRAME_MAX):
                letters.append((hop, Confirm(tuple(bundle[at : at + ENTRIES_PER_FRAME_MAX]))))
        for enquiry in self._enquiries.values():
            if (hop := next_hop(enquiry.to)) is not None:
                letters.append((hop, enquiry))
        self._confirmations, self._enquiries = {}, {}
        return letters

    def next_deadline(self) -> float | None:
        """When `flush` is next due."""
        return self._due
