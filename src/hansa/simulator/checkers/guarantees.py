"""The promise of QoS 1 and 2: nothing lost, nothing twice, nothing out of order.

It holds for what was published while the receiver's interest was in force at the publisher's node,
as long as the disks of both survive, the broker keeps the agent's session, and nobody runs with a
copy of either's identity.
"""

from dataclasses import dataclass

from hansa.protocol.effects import EpochRenewed, Halt, Rekey
from hansa.protocol.records import InterestRecord
from hansa.protocol.topics import matches, split_share
from hansa.protocol.vocabulary import NodeId, Publication
from hansa.simulator.checkers.base import Checker
from hansa.simulator.convergence import Tracker
from hansa.simulator.ledger import Entry
from hansa.simulator.site import Site
from hansa.simulator.world import World


@dataclass(frozen=True, slots=True)
class Promise:
    """A publication that must reach a node."""

    entry: Entry
    origin: NodeId
    receiver: NodeId
    place: int
    lapses: int
    """How often clients at the receiving place had given up its topic when it was published."""


class Guaranteed(Checker):
    """What was promised arrives, once and in the order in which its origin published it."""

    name = "guaranteed"

    def __init__(self, world: World, violations: list[str], tracker: Tracker) -> None:
        """Ask the tracker who can reach whom."""
        super().__init__(world, violations)
        self._tracker = tracker
        self._promises: list[Promise] = []
        self._doubtful: set[NodeId] = set()
        self._newest: dict[tuple[int, NodeId, NodeId], int] = {}
        self.checked = 0

    def told(self, site: Site, news: object) -> None:
        """With two nodes of one id, nothing is promised to or by either."""
        if isinstance(news, Rekey | Halt | EpochRenewed):
            self._doubtful.add(site.memory.id)

    def published(self, entry: Entry) -> None:
        """Note to whom it is promised."""
        site = self.world.sites[entry.place]
        if entry.qos == 0 or self.world.options.disk is None:
            return
        if not site.broker.shows(entry.topic):
            return
        receivers = _promised(site, entry.topic)
        for other in self.world.sites:
            if other.memory.id in receivers and other.broker.wants(entry.topic):
                lapses = other.broker.lapses(entry.topic)
                ids = (site.memory.id, other.memory.id)
                self._promises.append(Promise(entry, *ids, other.place, lapses))

    def delivered(self, site: Site, publication: Publication, entry: Entry | None) -> None:
        """Nothing comes twice, and nothing before what its origin published earlier."""
        if publication.qos == 0 or entry is None or self.world.options.disk is None:
            return
        stream = (site.place, site.memory.id, publication.origin)
        newest = self._newest.get(stream, -1)
        if {site.memory.id, publication.origin} & self._doubtful:
            return
        if entry.number <= newest:
            self.fail(f"n{site.place} delivers publication {entry.number} after {newest}")
        self._newest[stream] = entry.number

    def finished(self) -> None:
        """All that was promised has come, where it still can be wanted."""
        for promise in self._promises:
            if self._holds(promise):
                self.checked += 1
                if promise.place not in promise.entry.arrivals:
                    entry = promise.entry
                    what = f"publication {entry.number} on {entry.topic} at {entry.at:.3f} s"
                    self.fail(f"{what} from n{entry.place} never reached n{promise.place}")

    def _holds(self, promise: Promise) -> bool:
        """Whether what the promise needs was there to the end."""
        origin = self.world.sites[promise.entry.place]
        receiver = self.world.sites[promise.place]
        ids = (origin.memory.id, receiver.memory.id)
        part = self._tracker.truth.component_of(origin)
        return (
            promise.entry.captured
            and ids == (promise.origin, promise.receiver)
            and not self._doubtful.intersection(ids)
            and receiver.broker.lapses(promise.entry.topic) == promise.lapses
            and part is not None
            and receiver in part.sites
        )


def _promised(site: Site, topic: str) -> set[NodeId]:
    """The nodes whose interest is in force where somebody publishes; of an agent that does not run,
    those that it remembers, for its broker keeps what is published."""
    if site.node is not None:
        return set(site.node.remote.promised(topic))
    return {
        node
        for node, records in site.memory.disk.records.items()
        for record in records
        if isinstance(record, InterestRecord)
        if any(matches(split_share(name)[1], topic) for name in record.added)
    }
