"""The overlay: links, the replicated database and the map made from it, put together.

It answers who is there and tells everybody what changed. What the news means for groups, meshes and
subscriptions is decided above: methods return effects for the shell mixed with changes for `node`,
in the order in which they happened.
"""

from collections.abc import Iterable

from hansa.protocol.changes import CapacityChanged, CostsChanged, NewLife, Outcome, Passed
from hansa.protocol.clock import AHEAD, WallClock
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
from hansa.protocol.links.neighbours import MISMATCHES_MAX, Link, Neighbours, name_in
from hansa.protocol.membership.database import Database, RecordChange, SetChange, Unfit, updates
from hansa.protocol.membership.graph import Graph
from hansa.protocol.membership.id_conflict import IdConflict
from hansa.protocol.membership.leases import Leases
from hansa.protocol.membership.quotas import Quotas
from hansa.protocol.membership.records import (
    KIND_OF,
    Kind,
    NodeRecord,
    Record,
    begins_a_life,
    encoded_bytes,
    record_of,
)
from hansa.protocol.model import Identity, LinkId, NodeId, node_id
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.topics import is_local_only
from hansa.protocol.wire.frames import (
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
from hansa.protocol.wire.frames import Any as AnyFrame

WRONG_KEY = "node id that does not follow from its key"
CONTESTED = "record of this node that it did not write"


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
        self.clock = WallClock(identity.incarnation)
        self.conflict = IdConflict()
        self.quotas = Quotas(settings)
        # In simulations ids are chosen; where a node's own id follows from its key, all must.
        self._derives_ids = node_id(identity.key) == identity.node
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
        outcome: Outcome = [*effects, *self._outrank(now)]
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

    def flush_early(self, now: float) -> list[Effect]:
        """Send the records that wait to share a frame: what follows must not overtake them, or it
        would come from nodes that the receiver's map does not have yet."""
        if self._flush_due is None:
            return []
        self._flush_due = now
        return self.flush(now)

    def forget(self, node: NodeId) -> None:
        """Drop everything about a node whose lease has ended."""
        self.leases.forget(node, self.database.stamp(Kind.NODE, node))
        self.database.forget(node)
        self.quotas.forget(node)
        self.graph.drop(node)

    def next_deadline(self) -> float | None:
        """When something is next due."""
        return earliest(
            self.neighbours.next_deadline(),
            self.leases.next_deadline(),
            self._record_due,
            self._flush_due,
            self.conflict.due,
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
        if link.peer is None and link.refused is None and not isinstance(frame, Hello):
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
                rows = dict.fromkeys(frame.rows)
                return self._answer(link, (self.database.whole(row) for row in rows), now)
            case _:
                assert link.peer is not None
                if isinstance(frame, Enquire):
                    self._speak_up(frame, now)
                return [Passed(link.peer.node, frame)]  # type: ignore[arg-type]

    def _answer(self, link: Link, rows: Iterable[list[Record]], now: float) -> Outcome:
        """Send whole rows, as many as the link's allowance permits; the rest is sent when the other
        side asks again (rule 3.3)."""
        records: list[Record] = []
        left_out: list[Effect] = []
        for row in rows:
            if not link.allowance.take(sum(map(encoded_bytes, row)), now):
                left_out.append(Ignored("records asked for beyond the allowance of a link"))
                break
            records += row
        sends = [e for u in updates(records) for e in self.neighbours.send(link, u, now)]
        return [*sends, *left_out]

    def _take_hello(self, link: Link, theirs: Hello, now: float) -> Outcome:
        if link.peer is not None:
            return [Ignored("second hello on a link")]
        if theirs.node == self.identity.node:
            reason = "same node id on both sides: a link to itself, or a copy of this node"
            return [*self.neighbours.refuse(link, reason, now)]
        if refusal := self._identity_refusal(theirs.node, theirs.key, theirs.incarnation):
            if refusal == AHEAD:  # both sides log it
                they, we = name_in(theirs), name_in(self._hello())
                refusal += f": the clock of {they} is far ahead, or that of {we} far behind"
            return [Ignored(refusal), *self.neighbours.refuse(link, refusal, now)]
        outcome: Outcome = []
        holder = self.database.nodes.get(theirs.node)
        if holder is not None and holder.incarnation > theirs.incarnation:
            # It may be refused for a link of that newer one: first let it know what to outrank.
            outcome += self.neighbours.send(link, Update((holder,)), now)
        greeted = self.neighbours.greet(link, theirs, self._hello(), now)
        outcome += self._digest_effects(greeted, now)
        if link.refused is None:
            if theirs.digest != self.database.digest:
                outcome += self._compare(link, now)
            outcome.append(self.neighbours.heartbeat(link, self.database.digest, now))
        return outcome

    def _identity_refusal(self, node: NodeId, key: bytes, incarnation: int) -> str | None:
        if self._derives_ids and node_id(key) != node:
            return WRONG_KEY
        return AHEAD if incarnation > self.clock.limit_ms else None

    def _take_goodbye(self, link: Link, frame: Goodbye, now: float) -> Outcome:
        reason = link.refused or frame.reason
        outcome = self._digest_effects(self.neighbours.drop(link, reason), now)
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
        if refusal := self._stamp_refusal(record):
            return [Ignored(refusal)]
        if record.node == self.identity.node:
            return self._take_own(record, now)
        before = self.database.nodes.get(record.node)
        source = link.peer.node if link is not None and link.peer is not None else None
        if refusal := self._refusal(record, before, source):
            return [Ignored(refusal)]
        stamp = (record.incarnation, record.version)
        if before is None and not self.leases.admits(record.node, stamp):
            ask = Enquire(record.node, self.identity.node, 0, *stamp)  # the dead do not answer
            asked = self.neighbours.send(link, ask, now) if link else []
            return [Ignored("record of a node whose lease has ended"), *asked]
        change = self.database.merge(record, link.id if link else None, flood)
        self._account(record, source)
        if change is None:
            return []
        if isinstance(change, Unfit):
            return [*self.neighbours.send(link, Fetch((change.row,)), now)] if link else []
        if flood:
            self._flush_soon(now, self._settings.relay_delay)
        if isinstance(change, SetChange):
            return [change]
        return self._note_record(change, before, now)

    def _account(self, record: Record, source: NodeId | None) -> None:
        """Note what a record that was merged occupies."""
        if isinstance(record, NodeRecord):
            self.quotas.learn(record.node, source)
        else:
            kind = KIND_OF[type(record)]
            self.quotas.resize(kind, record.node, self.database.size(kind, record.node))

    def _take_own(self, record: Record, now: float) -> Outcome:
        """A record with our own id came from outside. What a former life said must give way to a
        row of this life, empty if need be; a record that is not older than ours is a conflict."""
        kind = KIND_OF[type(record)]
        if record.incarnation < self.incarnation:
            if kind is not Kind.NODE:
                self._stale[kind] = None
                self._correct(now)
            return []
        stamp, own = (record.incarnation, record.version), self.database.stamp(kind, record.node)
        is_same = kind is not Kind.NODE or record == self.database.nodes[record.node]
        if stamp < own or (stamp == own and is_same):
            return []
        started_earlier = None
        if isinstance(record, NodeRecord):
            started_earlier = record.born < self.identity.incarnation
        return self.contest(record.incarnation, started_earlier, now)

    def contest(self, incarnation: int, started_earlier: bool | None, now: float) -> Outcome:
        """Somebody else uses this node's id with an incarnation that is not below ours."""
        self.conflict.note(incarnation, started_earlier, now)
        return [Ignored(CONTESTED), *self._outrank(now)]

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

    def _stamp_refusal(self, record: Record) -> str | None:
        if record.incarnation > self.clock.limit_ms:
            return AHEAD
        too_high = record.version > self.clock.numbers_max(record.incarnation)
        return "version out of bounds" if too_high else None

    def _refusal(
        self, record: Record, before: NodeRecord | None, source: NodeId | None
    ) -> str | None:
        if isinstance(record, NodeRecord):
            is_checked = before is not None and before.key == record.key
            if self._derives_ids and not is_checked and node_id(record.key) != record.node:
                return WRONG_KEY
            oldest = self.neighbours.oldest
            return self.quotas.refuses_node(source, oldest) if before is None else None
        if before is None:
            return "record of an unknown node"
        if any(map(is_local_only, record.added)):
            return "interest in topics of one broker"
        if self.database.size_after(record) > self._settings.filters_per_node_max:
            return "filters_per_node_max"
        kind, growth = KIND_OF[type(record)], self.database.growth(record)
        is_bounded = source is not None and not self.neighbours.is_trusted(source)
        return self.quotas.refuses_names(kind, record.node, growth, is_bounded)

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

    def _outrank(self, now: float) -> Outcome:
        """Take up all our rows under an incarnation above that of a conflicting record, if due."""
        incarnation = self.conflict.take(now)
        if incarnation is None:
            return []
        me = self.identity.node
        self.incarnation = incarnation
        self._write_record()
        for kind in (Kind.INTEREST, Kind.CLAIMS):
            self.database.raise_set(kind, me, self.incarnation)
        self._flush_soon(now)
        return [IncarnationRaised(self.incarnation)]
