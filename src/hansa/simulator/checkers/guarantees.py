"""The promise of QoS 1 and 2: nothing lost, nothing twice, nothing out of order.

It holds for what is published after the publisher's node has confirmed the receiver's interest, or
should have, as nothing has happened for the time that the protocol may take; for as long as clients
there want it, whatever their filters are meanwhile; as long as the disks of both survive, the
broker keeps the agent's session, and nobody runs with a copy of either's identity.
Each is captured once, at a position of its own. What a bounded journal had to drop is reported, and
what was given up when two had been out of each other's reach for a lease; only that.

Once means: QoS 2 comes a second time only after the broker has lost the agent's session, QoS 1 only
after the two had to connect anew, and not more of them than were under way. Order is that of first
deliveries, at each QoS: a broker holds QoS 2 back until it is released, and may let QoS 1 pass.
What an agent let pass because nobody wanted it, and its broker shows again, comes when it comes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from hansa.protocol.effects import EpochRenewed, Gap, GivenUp, Repaired
from hansa.protocol.membership.records import InterestRecord, Record
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.node import Node
from hansa.protocol.topics import is_local_only, matches, split_share
from hansa.simulator.analysis.convergence import Tracker, allowance
from hansa.simulator.analysis.ledger import Entry, number_in
from hansa.simulator.checkers.base import Checker
from hansa.simulator.checkers.separations import Partings
from hansa.simulator.result import Guarantee
from hansa.simulator.world.site import Site
from hansa.simulator.world.world import World

SUBSCRIBE_S = 1.0
"Seconds that an agent may take to subscribe again, after a start or when its broker lost them."


@dataclass(frozen=True, slots=True)
class Promise:
    """A publication that must reach a node."""

    entry: Entry
    origin: NodeId
    receiver: NodeId
    place: int
    lapses: int
    """How often clients at the receiving place had given up its topic when it was published."""

    @property
    def kept(self) -> bool:
        """Whether it has come."""
        return self.place in self.entry.arrivals


class Guaranteed(Checker):
    """What was promised arrives, once and in the order in which its origin published it."""

    name = "guaranteed"

    def __init__(self, world: World, violations: list[str], tracker: Tracker) -> None:
        """Ask the tracker who can reach whom."""
        super().__init__(world, violations)
        self._tracker = tracker
        self._promises: list[Promise] = []
        self._doubt_until: dict[NodeId, float] = {}
        self._put_back: dict[NodeId, int] = {}
        """Nodes in the place of whose state an older one was put; and how many later publications
        their brokers may take for what they hold of the newer one."""
        self._renewed_at: dict[NodeId, float] = {}
        self._settling = allowance(world.options)
        self._disturbed_at = 0.0
        self._newest: dict[tuple[int, NodeId, NodeId, int], int] = {}
        self._seen: dict[tuple[int, int], tuple[int, float]] = {}
        self._copies: dict[tuple[int, int], int] = {}
        self._counting: dict[tuple[NodeId, NodeId, str], int] = {}  # lapses when it began
        lease_s = world.options.protocol.interest_lease
        self._may_leases_end = world.options.disk and lease_s < world.options.end_s
        self._partings = Partings(world, tracker.truth, lease_s, self._settling)
        self._gaps = 0
        self._excused: dict[tuple[NodeId, NodeId], list[Gap | GivenUp]] = {}
        self._started: dict[int, float] = {}
        self._repaired = 0

    def started(self, site: Site) -> None:
        """It has to subscribe anew; and there may be another with its id."""
        self._started[site.place] = self.world.now
        self._doubt_twins(site)
        if site.memory.put_back_at == self.world.now:
            self._note_old_copy(site)
        self._look_who_is_apart()

    def _note_old_copy(self, site: Site) -> None:
        """What was before is in doubt; and the packet ids of the newer state are used again."""
        node = site.memory.id
        self._doubt_until[node] = max(self.world.now, self._doubt_until.get(node, 0.0))
        self._put_back[node] = self._put_back.get(node, 0) + len(site.broker.held)

    def stopped(self, site: Site) -> None:
        """If it was one of two, the other may have the id for itself now."""
        self._doubt_twins(site)
        self._look_who_is_apart()

    def disturbed(self, what: str, fault: bool, places: tuple[int, ...]) -> None:
        """Others may be in reach now."""
        self._disturbed_at = self.world.now
        if fault:
            self._look_who_is_apart()

    def _look_who_is_apart(self) -> None:
        if self._may_leases_end:
            self._partings.look()

    def _doubt_twins(self, site: Site) -> None:
        """While two nodes have one id, and until all have settled for one of them, nothing is
        promised to or by either: each has taken or published what the other does not know of. In
        two parts that never meet, that is for ever."""
        twins = [each for each in self.world.sites if each.memory.id == site.memory.id]
        if len(twins) > 1:
            running = sum(each.node is not None for each in twins)
            end = self.world.now + self._settling if running < 2 else float("inf")
            self._doubt_until[site.memory.id] = end

    def _in_doubt(self, at: float, *nodes: NodeId) -> bool:
        """Whether what was published then, by or to one of these, may have suffered from that."""
        return any(at <= self._doubt_until.get(node, -1.0) for node in nodes)

    def told(self, site: Site, news: object) -> None:
        """Who finds that its journal was a copy owes nothing of that, and all that comes after. If
        it was put back, that is all that was published since, found or not."""
        if isinstance(news, EpochRenewed):
            self._renewed_at[site.memory.id] = self.world.now
            if site.memory.id not in self._doubt_until:
                self.fail(f"n{site.place} has lost a part of its journal")
            elif site.memory.id not in self._put_back:
                settled = self._doubt_until[site.memory.id]
                self._doubt_until[site.memory.id] = max(settled, self.world.now)
        elif isinstance(news, Repaired):
            self._repaired += news.count
        elif isinstance(news, Gap):
            self._gaps += 1
            self._judge(news, origin=news.origin, receiver=site.memory.id)
        elif isinstance(news, GivenUp):
            self._judge(news, origin=site.memory.id, receiver=news.node)

    def _judge(self, gap: Gap | GivenUp, origin: NodeId, receiver: NodeId) -> None:
        """Only what retention dropped may be missing, or what a lease has ended for, unless
        somebody's past is in doubt."""
        sites = {site.memory.id: site for site in self.world.sites}
        if origin not in sites or receiver not in sites:
            return
        if isinstance(gap, Gap) and gap.reason == "retention":
            is_excused = (gap.epoch, gap.last) <= sites[origin].memory.disk.dropped
        else:
            is_lease = isinstance(gap, GivenUp) or gap.reason == "end of lease"
            is_excused = is_lease and self._partings.outlast_lease(origin, receiver)
        if is_excused:
            self._excused.setdefault((receiver, origin), []).append(gap)
        elif not {origin, receiver} & self._doubt_until.keys():
            what = f"n{sites[receiver].place} misses what n{sites[origin].place} owes it"
            self.fail(f"{what}, for no good reason: {gap}")

    def published(self, entry: Entry) -> None:
        """Note to whom it is promised."""
        site = self.world.sites[entry.place]
        if not entry.qos or self.world.options.disk is None or is_local_only(entry.topic):
            return
        shown = site.broker.shows(entry.topic)
        in_force = _in_force(site, entry.topic) if shown else set()
        for other in self.world.sites:
            if other is site or not other.broker.wants(entry.topic):
                continue
            lapses = other.broker.lapses(entry.topic)
            is_told = self.world.now >= other.told_at
            counts = site.memory.id not in self._put_back and self._counts(
                site, other, entry.topic, lapses, is_told
            )  # an old copy does not know what its node has confirmed since
            counts = counts or self._must_have_settled(site, other)
            if counts and not shown:
                self._judge_subscription(site, other, entry)
            elif counts or (is_told and other.memory.id in in_force):
                ids = (site.memory.id, other.memory.id)
                self._promises.append(Promise(entry, *ids, other.place, lapses))

    def _counts(self, site: Site, other: Site, topic: str, lapses: int, is_told: bool) -> bool:
        """Whether a node can count on another, because that once confirmed its interest and it was
        never given up since. Until an agent is told of what its clients changed, what it has
        confirmed may be for a subscription that is gone."""
        names = (site.memory.id, other.memory.id, topic)
        if self._partings.outlast_lease(*names[:2]):
            self._counting.pop(names, None)
        elif is_told and other.node is not None and _confirmed(other.node, site.memory.id, topic):
            self._counting[names] = lapses
        return self._counting.get(names) == lapses

    def _must_have_settled(self, site: Site, other: Site) -> bool:
        """Whether all interest of these two must be in force, confirmed or not."""
        if self.world.now <= self._disturbed_at + self._settling:
            return False
        part = self._tracker.truth.component_of(site)
        return part is not None and other in part.sites

    def _judge_subscription(self, site: Site, other: Site, entry: Entry) -> None:
        """Complain if an agent is not subscribed to what another node counts on."""
        broker = site.broker
        since = max(broker.lost_at, broker.refuses_until, self._started.get(site.place, 0.0))
        doubtful = self._in_doubt(entry.at, site.memory.id, other.memory.id)
        if site.active and self.world.now > since + SUBSCRIBE_S and not doubtful:
            what = f"what n{other.place} counts on"
            self.fail(f"n{site.place} is not subscribed to {entry.topic}, {what}")

    def delivered(self, site: Site, publication: Publication, entry: Entry | None) -> None:
        """Nothing comes twice, and nothing before what its origin published earlier."""
        if publication.qos == 0 or entry is None or self.world.options.disk is None:
            return
        seen = self._seen.get((site.place, entry.number))
        self._seen[site.place, entry.number] = (site.broker.connections, site.broker.lost_at)
        if self._in_doubt(entry.at, site.memory.id, publication.origin):
            return
        if seen is not None:
            if entry.at > self._renewed_at.get(publication.origin, -1.0):
                self._judge_copy(site, entry, *seen)
            return  # else it may have come in both epochs, if it was not known to have come
        stream = (site.place, site.memory.id, publication.origin, publication.qos)
        newest = self._newest.get(stream, -1)
        if entry.number <= newest and not entry.let_pass:
            self.fail(f"n{site.place} delivers publication {entry.number} after {newest}")
        self._newest[stream] = max(newest, entry.number)

    def _judge_copy(self, site: Site, entry: Entry, connections: int, lost_at: float) -> None:
        """Complain about what comes again without a reason, or too often for its reason."""
        broker, disk = site.broker, self.world.options.disk
        assert disk is not None
        excused = broker.lost_at > lost_at if entry.qos == 2 else broker.connections > connections
        meeting = (site.place, broker.connections)
        self._copies[meeting] = self._copies.get(meeting, 0) + 1
        if not excused:
            self.fail(f"n{site.place} delivers publication {entry.number} again")
        elif self._copies[meeting] > disk.window:
            self.fail(f"n{site.place} delivers more than {disk.window} publications again")

    def finished(self) -> None:
        """All that was promised has come, where it still can be wanted; and a journal has given
        each publication one position, and each position to one."""
        for site in self.world.sites:
            journal = site.memory.disk.journal
            positions = [(item.life, item.number) for item in journal]
            if positions != sorted({*positions}):
                self.fail(f"n{site.place} has given a position twice")
            if len({number_in(item.payload) for item in journal}) < len(journal):
                self.fail(f"n{site.place} has captured a publication twice")
        swallowed = dict(self._put_back)
        for promise in self._promises:
            if self._holds(promise) and not promise.kept and not self._reported(promise):
                entry = promise.entry
                if entry.qos == 2 and swallowed.get(promise.receiver):
                    swallowed[promise.receiver] -= 1
                    continue
                what = f"publication {entry.number} on {entry.topic} at {entry.at:.3f} s"
                self.fail(f"{what} from n{entry.place} never reached n{promise.place}")

    def summary(self) -> Guarantee:
        """Count what was promised, and what became of it."""
        held = [promise for promise in self._promises if self._holds(promise)]
        missing = [promise for promise in held if not promise.kept]
        return Guarantee(
            promised=len(held),
            delivered=len(held) - len(missing),
            reported=sum(self._reported(promise) for promise in missing),
            uncaptured=sum(not promise.entry.captured for promise in self._promises),
            gaps=self._gaps,
            repaired=self._repaired,
        )

    def _holds(self, promise: Promise) -> bool:
        """Whether what the promise needs was there to the end. If a lease has ended before the
        origin's agent was shown what was published, it owes nothing to whom it has forgotten."""
        origin = self.world.sites[promise.entry.place]
        receiver = self.world.sites[promise.place]
        ids = (origin.memory.id, receiver.memory.id)
        part = self._tracker.truth.component_of(origin)
        return (
            promise.entry.captured
            and ids == (promise.origin, promise.receiver)
            and not self._in_doubt(promise.entry.at, *ids)
            and (
                promise.receiver in promise.entry.owed
                or not self._partings.has_outlasted(*ids, promise.entry.at)
            )
            and receiver.broker.lapses(promise.entry.topic) == promise.lapses
            and part is not None
            and receiver in part.sites
        )

    def _reported(self, promise: Promise) -> bool:
        """Whether one of the two has said, with a good reason, that it will never come."""
        epoch, seq = promise.entry.position
        gaps = self._excused.get((promise.receiver, promise.origin), ())
        return any(gap.epoch == epoch and gap.first <= seq <= gap.last for gap in gaps)


def _confirmed(receiver: Node, origin: NodeId, topic: str) -> bool:
    """Whether a node knows that another has its newest interest in force, a topic included."""
    return origin in receiver.confirmations.confirmed and _wanted(
        receiver.records_of(receiver.id), topic
    )


def _in_force(site: Site, topic: str) -> set[NodeId]:
    """The nodes whose interest is in force where somebody publishes; of an agent that does not run,
    those that it remembers, for its broker keeps what is published."""
    if site.node is not None:
        return set(site.node.remote.promised(topic))
    known = site.memory.disk.records.items()
    return {node for node, records in known if _wanted(records, topic)}


def _wanted(records: Iterable[Record], topic: str) -> bool:
    """Whether what is known of a node says that it wants all that is published to a topic."""
    return any(
        split_share(name)[0] is None and matches(name, topic)
        for record in records
        if isinstance(record, InterestRecord)
        for name in record.added
    )
