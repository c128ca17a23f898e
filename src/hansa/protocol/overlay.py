"""The overlay: links, the replicated database and the map made from it, put together.

It answers who is there and tells everybody what changed. What the news means for groups, meshes and
subscriptions is decided above: methods return effects for the shell mixed with changes for `node`,
in the order in which they happened.
"""

from hansa.protocol.changes import CapacityChanged, CostsChanged, NewLife, Outcome, Passed
from hansa.protocol.database import Database, RecordChange, SetChange, Unfit, updates
from hansa.protocol.deadlines import earliest
from hansa.protocol.effects import (
    CloseLink,
    Effect,
    Ignored,
    IncarnationRaised,
    MemberJoined,
    MemberLost,
    NeighbourDown,
    NeighbourUp,
)
from hansa.protocol.events import LinkOpened
from hansa.protocol.frames import (
    PROTOCOL_VERSION,
    Enquire,
    Fetch,
    Goodbye,
    Heartbeat,
    Hello,
    Ordered,
    Summary,
    Update,
)
from hansa.protocol.frames import Any as AnyFrame
from hansa.protocol.graph import Graph
from hansa.protocol.leases import Leases
from hansa.protocol.neighbours import MISMATCHES_MAX, Link, Neighbours
from hansa.protocol.records import KIND_OF, Kind, NodeRecord, Record, begins_a_life, record_of
from hansa.protocol.rivalry import Verdict, give_way, judge, outranks
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.vocabulary import Identity, LinkId, NodeId

INCARNATION_MAX = (1 << 64) - 1


class Overlay:
    """Who is there, as one node knows it."""

    def __init__(self, identity: Identity, settings: ProtocolSettings) -> None:
        """Start alone."""
        self.identity = identity
        self.incarnation = identity.incarnation
        self._settings = settings
        self.neighbours = Neighbours(settings)
        self.database = Database()
        self.graph = Graph(identity.node, settings.metric)
        self.leases = Leases(settings.interest_lease, settings.nodes_max)
        self._record_due: float | None = None
        self._flush_due: float | None = None
        self._knows_interest = False  # until then, what a former life wanted stands
        self._stale: dict[Kind, None] = {}
        self._write_record()

    # ------------------------------------------------------------ links

    def open(self, event: LinkOpened, now: float) -> Outcome:
        """A connection stands."""
        return [*self.neighbours.open(event, self._hello(), now)]

    def close(self, link_id: LinkId, reason: str, now: float) -> Outcome:
        """A connection is gone."""
        link = self.neighbours.links.get(link_id)
        return self._digest_effects(self.neighbours.closed(link, reason), now) if link else []

    def tell(self, node: NodeId, frame: Ordered, now: float) -> list[Effect]:
        """Send a control frame to a neighbour; to a node that is none any more, nothing."""
        link = self.neighbours.by_node.get(node)
        return self.neighbours.send(link, frame, now) if link else []

    def cost(self, node: NodeId) -> int | None:
        """Return the length of the link to a neighbour, None if it is none (any more)."""
        link = self.neighbours.by_node.get(node)
        return self.neighbours.cost(link) if link else None

    def capacity(self, node: NodeId) -> float:
        """Return a node's capacity as it reported it."""
        record = self.database.nodes.get(node)
        return record.capacity if record else 0.0

    # ------------------------------------------------------------ own rows

    def change_own(
        self, kind: Kind, added: list[str], removed: list[str], now: float
    ) -> list[Record]:
        """Change this node's interest or claims; claims travel with announcements, interest now."""
        records = self.database.change_set(
            kind, self.identity.node, self.incarnation, (added, removed)
        )
        self._flush_soon(now)
        return records

    def know_interest(self, now: float) -> None:
        """What clients want is announced, be it nothing: a former life's interest may go."""
        self._knows_interest = True
        self._correct(now)

    # ------------------------------------------------------------ time

    def fire(self, now: float) -> Outcome:
        """Do what is due."""
        effects, silent = self.neighbours.fire(self.database.digest, now)
        outcome: Outcome = [*effects]
        for link in silent:
            stuck = link.channel is not None and link.channel.overflowed
            reason = link.refused or ("stuck" if stuck else "silent")
            outcome += self._digest_effects(self.neighbours.drop(link, reason), now)
            outcome.append(CloseLink(link.id, reason))
        return outcome

    def flush(self, now: float) -> list[Effect]:
        """Write and send what is due; call it last, after everything else of this input."""
        if self._record_due is not None and now >= self._record_due:
            self._write_record()
            self._flush_soon(now)
        if self._flush_due is None or now < self._flush_due:
            return []
        self._flush_due = None
        links = {link.id: link for link in self.neighbours.by_node.values()}
        return [
            effect
            for link_id, update in self.database.flush(links)
            for effect in self.neighbours.send(links[link_id], update, now)
        ]

    def forget(self, node: NodeId) -> None:
        """Drop everything about a node whose lease has ended."""
        self.leases.forget(node, self.database.stamp(Kind.NODE, node))
        self.database.forget(node)
        self.graph.drop(node)

    def next_deadline(self) -> float | None:
        """When something is next due."""
        return earliest(
            self.neighbours.next_deadline(),
            self.leases.next_deadline(),
            self._record_due,
            self._flush_due,
        )

    def _flush_soon(self, now: float, delay: float = 0.0) -> None:
        due = now + delay
        if self._flush_due is None or due < self._flush_due:
            self._flush_due = due

    # ------------------------------------------------------------ frames

    def take(self, link: Link, frame: AnyFrame, now: float) -> Outcome:
        """Take one frame whose turn has come."""
        if link.refused is not None and not isinstance(frame, Goodbye):
            return [Ignored("frame on a refused link")]
        if link.peer is None and not isinstance(frame, Hello | Goodbye):
            return [Ignored(f"{type(frame).__name__} before hello")]
        match frame:
            case Heartbeat():
                return self._take_heartbeat(link, frame, now)
            case Update():
                return self._take_records(link, frame.records, now)
            case Hello():
                return self._take_hello(link, frame, now)
            case Goodbye():
                return self._take_goodbye(link, frame, now)
            case Summary():
                return self._take_summary(link, frame, now)
            case Fetch():
                wanted = [record for row in frame.rows for record in self.database.whole(row)]
                return self._answer(link, wanted, now)
            case _:
                assert link.peer is not None
                if isinstance(frame, Enquire):
                    self._speak_up(frame, now)
                return [Passed(link.peer.node, frame)]  # type: ignore[arg-type]

    def _answer(self, link: Link, records: list[Record], now: float) -> Outcome:
        return [e for update in updates(records) for e in self.neighbours.send(link, update, now)]

    def _take_hello(self, link: Link, theirs: Hello, now: float) -> Outcome:
        ours = self._hello()
        if link.peer is not None:
            return [Ignored("second hello on a link")]
        if theirs.node == self.identity.node:
            return self._meet_self(link, now)
        holder = self.database.nodes.get(theirs.node)
        if holder and holder.node in self.graph.reachable and outranks(holder, theirs):
            reason = "another key has this id" if holder.key != theirs.key else "an older life"
            return [*self.neighbours.refuse(link, reason, now, rival=holder)]
        outcome = self._digest_effects(self.neighbours.greet(link, theirs, ours, now), now)
        if link.refused is None:
            if theirs.digest != self.database.digest:
                outcome += self._compare(link, now)
            outcome.append(self.neighbours.heartbeat(link, self.database.digest, now))
        return outcome

    def _take_goodbye(self, link: Link, frame: Goodbye, now: float) -> Outcome:
        outcome: Outcome = []
        if frame.rival is not None and frame.rival.node == self.identity.node:
            outcome += self._contest(frame.rival, now, alive=True)
        reason = link.refused or frame.reason
        outcome += self._digest_effects(self.neighbours.drop(link, reason), now)
        return [*outcome, CloseLink(link.id, reason)]

    def _take_heartbeat(self, link: Link, frame: Heartbeat, now: float) -> Outcome:
        outcome: Outcome = [*self.neighbours.heard(link, frame, self.database.digest, now)]
        if self.neighbours.settle_rtt(link):
            outcome += [*self._relink(now), CostsChanged()]
        if link.mismatches >= link.patience:
            link.mismatches, link.patience = 0, min(2 * link.patience, MISMATCHES_MAX)
            outcome += self._compare(link, now)
        return outcome

    def _compare(self, link: Link, now: float) -> list[Effect]:
        link.compared = True
        return self.neighbours.send(link, self.database.summary(), now)

    def _take_summary(self, link: Link, theirs: Summary, now: float) -> Outcome:
        """Send what they lack. A change that crossed the hellos shows to one side only, so the
        other joins in the comparison when it sees that it lacks something itself."""
        outcome = self._answer(link, self.database.missing_from(theirs), now)
        if not link.compared and self.database.lacks(theirs):
            outcome += self._compare(link, now)
        link.compared = False
        return outcome

    def _take_records(self, link: Link, records: tuple[Record, ...], now: float) -> Outcome:
        """Merge records. New lives come first: their links must not meet a former life's claims."""
        me, known = self.identity.node, self.database.nodes
        news = [r for r in records if r.node == me or not self.database.knows(r, link.id)]
        if len(news) > 1:
            news.sort(key=lambda r: not begins_a_life(r, known.get(r.node)))
        return [item for record in news for item in self.take_record(link, record, now)]

    def take_record(
        self, link: Link | None, record: Record, now: float, flood: bool = True
    ) -> Outcome:
        """Merge one record; a row that cannot be changed is fetched whole from its sender. Without
        a link, it comes from this node's own disk."""
        if record.node == self.identity.node:
            return self._take_own(record, now)
        before = self.database.nodes.get(record.node)
        if refusal := self._refusal(record, before):
            return [Ignored(refusal)]
        stamp = (record.incarnation, record.version)
        if before is None and not self.leases.admits(record.node, stamp):
            ask = Enquire(record.node, self.identity.node, 0, *stamp)  # the dead do not answer
            asked = self.neighbours.send(link, ask, now) if link else []
            return [Ignored("record of a node whose lease has ended"), *asked]
        change = self.database.merge(record, link.id if link else None, flood)
        if change is None:
            return []
        if isinstance(change, Unfit):
            return [*self.neighbours.send(link, Fetch((change.row,)), now)] if link else []
        if flood:
            self._flush_soon(now, self._settings.relay_delay)
        if isinstance(change, SetChange):
            return [change]
        return self._note_record(change, before, now)

    def _take_own(self, record: Record, now: float) -> Outcome:
        """A record with our own id came from outside: a rival's, or what a former life said. What
        others still believe of us must give way to a row of this life, empty if need be."""
        if isinstance(record, NodeRecord):
            return self._contest(record, now)
        if record.incarnation < self.incarnation:
            self._stale[KIND_OF[type(record)]] = None
            self._correct(now)
        return []

    def _correct(self, now: float) -> None:
        """Put rows of this life in the place of a former life's, interest once it is known."""
        me = self.identity.node
        for kind in list(self._stale):
            if kind is Kind.INTEREST and not self._knows_interest:
                continue
            del self._stale[kind]
            if self.database.stamp(kind, me)[0] < self.incarnation:
                self.database.raise_set(kind, me, self.incarnation)
                self._flush_soon(now)

    def _refusal(self, record: Record, before: NodeRecord | None) -> str | None:
        if isinstance(record, NodeRecord):
            full = before is None and len(self.database.nodes) >= self._settings.nodes_max
            return "nodes_max" if full else None
        if before is None:
            return "record of an unknown node"
        full = self.database.size_after(record) > self._settings.filters_per_node_max
        return "filters_per_node_max" if full else None

    def _note_record(self, change: RecordChange, before: NodeRecord | None, now: float) -> Outcome:
        record, node = change.record, change.record.node
        outcome: Outcome = []
        if before is not None and before.incarnation < record.incarnation:
            outcome.append(NewLife(node))
        if before is not None and before.capacity != record.capacity:
            outcome.append(CapacityChanged(node))
        joined, lost = self.graph.put(node, dict(record.links))
        if joined or lost:
            outcome += self._moved(joined, lost, now)
        if node in self.neighbours.by_node and begins_a_life(record, before):
            outcome += self._relink(now)  # the link to it counts from now on
        if node not in self.graph.reachable:
            self.leases.begin(node, now)
        return outcome

    def _moved(self, joined: list[NodeId], lost: list[NodeId], now: float) -> Outcome:
        """Nodes came into reach or went out of it."""
        for node in joined:
            self.leases.end(node)
        for node in lost:
            self.leases.begin(node, now)
        return [*(MemberJoined(node) for node in joined), *(MemberLost(node) for node in lost)]

    def _digest_effects(self, effects: list[Effect], now: float) -> Outcome:
        """Let the map follow when neighbours came or went."""
        outcome: Outcome = [*effects]
        if any(isinstance(effect, NeighbourUp | NeighbourDown) for effect in effects):
            outcome += self._relink(now)
        return outcome

    def _relink(self, now: float) -> Outcome:
        """If this node's links changed, take them into the map at once, tell others when due."""
        links = dict(self._links())
        if links == self.graph.links:
            return []
        self._write_soon(now)
        return self._moved(*self.graph.put(self.identity.node, links), now)

    # ------------------------------------------------------------ this node itself

    def _hello(self) -> Hello:
        return Hello(
            version=PROTOCOL_VERSION,
            federation=self._settings.federation,
            node=self.identity.node,
            key=self.identity.key,
            incarnation=self.incarnation,
            name=self.identity.name,
            agreement=self._settings.agreement(),
            digest=self.database.digest,
        )

    def _links(self) -> list[tuple[NodeId, int]]:
        """Return the neighbours whose record of this life is here: until then, what a former life
        said would count as if it were said now."""
        return [
            (node, round((link.reported_rtt or 0.0) * 1e6))
            for node, link in sorted(self.neighbours.by_node.items())
            if (record := self.database.nodes.get(node))
            if link.peer is not None and record.incarnation >= link.peer.incarnation
        ]

    def _speak_up(self, enquiry: Enquire, now: float) -> None:
        """Who has forgotten this node needs a newer record of it than the one that it names."""
        me = self.identity.node
        named = (enquiry.incarnation, enquiry.version)
        if enquiry.to == me and named == self.database.stamp(Kind.NODE, me):
            self._write_soon(now)

    def _write_soon(self, now: float) -> None:
        if self._record_due is None:
            self._record_due = now + self._settings.change_delay

    def _write_record(self) -> None:
        self._record_due = None
        version = self.database.stamp(Kind.NODE, self.identity.node)[1] + 1
        record = record_of(self.identity, self.incarnation, version, self._links())
        self.database.merge(record, None)

    def _meet_self(self, link: Link, now: float) -> Outcome:
        """A neighbour has our own id: a clone, a collision, or a link to ourselves. A hello does
        not tell who was first, so both show their records."""
        ours = self.database.nodes[self.identity.node]
        return [*self.neighbours.refuse(link, "same id", now, rival=ours)]

    def _contest(self, record: NodeRecord, now: float, alive: bool = False) -> Outcome:
        """Somebody's record has our id."""
        verdict = judge(self.identity, self.incarnation, record, alive)
        if verdict is Verdict.GIVE_WAY:
            return [give_way(self.identity, record.key)]
        return self._outrank(record.incarnation, now) if verdict is Verdict.OUTRANK else []

    def _outrank(self, incarnation: int, now: float) -> Outcome:
        """Take up all our rows under an incarnation above the rival's."""
        if incarnation >= INCARNATION_MAX:
            return [Ignored("a rival's incarnation leaves no room above it")]
        me = self.identity.node
        self.incarnation = incarnation + 1
        self._write_record()
        for kind in (Kind.INTEREST, Kind.CLAIMS):
            self.database.raise_set(kind, me, self.incarnation)
        self._flush_soon(now)
        return [IncarnationRaised(self.incarnation)]
