"""Which nodes have this node's interest in force, and how they say so.

A node that has granted all filters of another tells that node, hop by hop, from which position of
its journal on that interest counts. When every node in reach has done so, the interest is
*installed*: nothing published anywhere in reach from then on is missed for want of a subscription.
Who stays silent is asked.
"""

from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from hansa.protocol.deadlines import earliest
from hansa.protocol.delivery.outbox import Outbox
from hansa.protocol.effects import Effect, Ignored
from hansa.protocol.membership.origins import WRONG_SIDE
from hansa.protocol.membership.records import Stamp
from hansa.protocol.model import HOPS_MAX, NodeId
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import Confirm, Confirmation, Enquire

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
        self.confirmed: dict[NodeId, None] = {}
        self.ask_due: float | None = None
        """When `ask` is next due."""
        self._ask_after = self._patience

    def renew(self, stamp: Stamp, now: float) -> None:
        """There is a newer interest: everybody has to confirm again."""
        self.stamp = stamp
        self.complete = False
        self.confirmed.clear()
        self.ask_due, self._ask_after = now + self._patience, self._patience

    def confirm(self, node: NodeId, stamp: Stamp) -> None:
        """A node has this version in force."""
        if stamp == self.stamp:
            self.confirmed[node] = None

    def doubt(self, node: NodeId) -> None:
        """A node has started anew: what it confirmed counts no more."""
        self.confirmed.pop(node, None)

    def check(self, reachable: dict[NodeId, None], now: float) -> bool:
        """Look again; return whether the installation has just become complete."""
        was = self.complete
        self.complete = self.stamp == (0, 0) or (
            len(self.confirmed) >= len(reachable) - 1 and not self._missing(reachable)
        )
        if self.complete:
            self.ask_due = None
        elif self.ask_due is None:
            self.ask_due, self._ask_after = now + self._patience, self._patience
        return self.complete and not was

    def ask(self, reachable: dict[NodeId, None], now: float) -> list[NodeId]:
        """Return whom to ask now, less and less often."""
        if self.ask_due is None or now < self.ask_due:
            return []
        self._ask_after *= 2
        self.ask_due = now + self._ask_after
        return self._missing(reachable)

    def _missing(self, reachable: Iterable[NodeId]) -> list[NodeId]:
        return [n for n in reachable if n != self._self and n not in self.confirmed]


class Post:
    """Confirmations and enquiries on their way through this node, gathered for a moment."""

    def __init__(self, delay: float) -> None:
        """Start empty; letters wait so long to share a frame."""
        self._delay = delay
        self._confirmations: dict[tuple[NodeId, NodeId], Confirmation] = {}
        self._enquiries: dict[tuple[NodeId, NodeId], Enquire] = {}
        self._dropped: list[Effect] = []
        self.due: float | None = None
        """When `flush` is next due."""

    def put(self, letter: Confirmation | Enquire, now: float) -> None:
        """Take a letter; of two confirmations from one node to one other, the newer replaces."""
        if letter.hops >= HOPS_MAX:
            self._dropped.append(Ignored("letter past the hop limit"))
        elif isinstance(letter, Enquire):
            self._enquiries[letter.to, letter.node] = letter
        else:
            self._confirmations[letter.to, letter.node] = letter
        if self.due is None:
            self.due = now + self._delay

    def flush(
        self, next_hop: Callable[[NodeId], NodeId | None], now: float
    ) -> tuple[Letters, list[Effect]]:
        """Return what leaves now, and the news of what cannot: it will be asked for."""
        if self.due is None or now < self.due:
            return [], []
        self.due = None
        letters: Letters = []
        bundles: dict[NodeId, list[Confirmation]] = {}
        waiting: list[Confirmation | Enquire] = [
            *self._confirmations.values(),
            *self._enquiries.values(),
        ]
        for letter in waiting:
            hop = next_hop(letter.to)
            if hop is None:
                if letter.hops:  # what this node wrote itself, it writes again
                    self._dropped.append(Ignored("letter without a way"))
            elif isinstance(letter, Enquire):
                letters.append((hop, letter))
            else:
                bundles.setdefault(hop, []).append(letter)
        for hop, bundle in bundles.items():
            for at in range(0, len(bundle), ENTRIES_PER_FRAME_MAX):
                letters.append((hop, Confirm(tuple(bundle[at : at + ENTRIES_PER_FRAME_MAX]))))
        self._confirmations, self._enquiries = {}, {}
        dropped, self._dropped = self._dropped, []
        return letters, dropped


class Confirmations:
    """Both sides of it: what this node waits for, and what it tells others."""

    def __init__(
        self,
        node: NodeId,
        settings: ProtocolSettings,
        in_force: Mapping[NodeId, Stamp],
        journal: Outbox,
    ) -> None:
        """Read from `in_force` whose interest is, and from the journal where it stands."""
        self._node = node
        self._in_force = in_force
        self._journal = journal
        self._installation = Installation(node, settings)
        self._post = Post(settings.relay_delay)
        self.renew = self._installation.renew
        self.doubt = self._installation.doubt
        self.flush = self._post.flush

    @property
    def complete(self) -> bool:
        """Whether this node's interest is installed."""
        return self._installation.complete

    @property
    def confirmed(self) -> Mapping[NodeId, None]:
        """The nodes that have this node's newest interest in force, and said so."""
        return self._installation.confirmed

    def check(self, reachable: dict[NodeId, None], now: float) -> int | None:
        """Look again; return the version of the interest that has just been installed."""
        done = self._installation.check(reachable, now)
        return self._installation.stamp[1] if done else None

    def ask(self, reachable: dict[NodeId, None], now: float) -> None:
        """Ask those that have been silent for long."""
        for node in self._installation.ask(reachable, now):
            self._post.put(Enquire(node, self._node, 0), now)

    def confirm(self, node: NodeId, now: float) -> None:
        """Tell a node that its interest is in force here, if it is."""
        stamp = self._in_force.get(node)
        if stamp is not None:
            letter = Confirmation(node, *stamp, self._node, *self._journal.position, 0)
            self._post.put(letter, now)

    def take(
        self, entries: Iterable[Confirmation], is_from: Callable[[NodeId], bool], now: float
    ) -> tuple[bool, list[Effect]]:
        """Note what others confirm to this node and pass on the rest; return whether any did, and
        what was refused. `is_from` says whether an entry can come from a node."""
        ours = False
        refused: list[Effect] = []
        for entry in entries:
            if not is_from(entry.node):
                refused.append(Ignored(WRONG_SIDE))
            elif entry.to == self._node:
                ours = True
                self._installation.confirm(entry.node, (entry.incarnation, entry.version))
            else:
                self._post.put(replace(entry, hops=entry.hops + 1), now)
        return ours, refused

    def answer(self, enquiry: Enquire, now: float) -> None:
        """Somebody asks, this node or another."""
        if enquiry.to == self._node:
            self.confirm(enquiry.node, now)
        else:
            self._post.put(replace(enquiry, hops=enquiry.hops + 1), now)

    def next_deadline(self) -> float | None:
        """When `ask` or `flush` is next due."""
        return earliest(self._installation.ask_due, self._post.due)
