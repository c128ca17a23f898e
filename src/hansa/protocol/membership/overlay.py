"""The overlay: links, the replicated database and the map made from it.

It decides which nodes are reachable and floods changes. Its methods return effects for the shell
and changes for `node`, in the order in which they happened. Frames that cannot be true are refused
and counted.
"""

from collections.abc import Iterable

from hansa.protocol.clock import AHEAD, WallClock
from hansa.protocol.deadlines import earliest
from hansa.protocol.effects import (
    CloseLink,
    Effect,
    Ignored,
    IncarnationRaised,
    NeighbourDown,
    NeighbourUp,
    NodeReachable,
    NodeUnreachable,
)
from hansa.protocol.events import LinkOpened
from hansa.protocol.links.neighbours import MISMATCHES_MAX, NeighbourLink, Neighbours, name_in
from hansa.protocol.membership.changes import (
    CapacityChanged,
    ControlFrameReceived,
    LinkCostsChanged,
    NodeRestarted,
    OverlayOutput,
)
from hansa.protocol.membership.database import (
    Database,
    FetchRequired,
    RecordChange,
    SetChange,
    pack_updates,
)
from hansa.protocol.membership.graph import Graph
from hansa.protocol.membership.id_conflict import IdConflict
from hansa.protocol.membership.leases import Leases
from hansa.protocol.membership.quotas import Quotas
from hansa.protocol.membership.records import (
    KIND_OF,
    NodeRecord,
    Record,
    RecordKind,
    encoded_bytes,
    is_new_incarnation,
    make_node_record,
)
from hansa.protocol.model import Identity, LinkId, NodeId, node_id
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.topics import is_local_only
from hansa.protocol.wire.frames import (
    PROTOCOL_VERSION,
    AnyFrame,
    Fetch,
    Goodbye,
    Heartbeat,
    Hello,
    InterestAckRequest,
    OrderedFrame,
    Summary,
    Update,
)

WRONG_KEY = "node id does not match its key"
CONTESTED = "record of this node that it did not write"


class Overlay:
    """Links, database and map of one node."""

    def __init__(self, identity: Identity, settings: ProtocolSettings) -> None:
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
        # In simulations ids are chosen. If this node's id is the digest of its key, all ids must
        # be.
        self._derives_ids = node_id(identity.key) == identity.node
        self._record_due: float | None = None
        self._flush_due: float | None = None
        self._is_interest_known = False  # until then, the interest of the earlier incarnation stays
        self._superseded_kinds: dict[RecordKind, None] = {}
        self._write_own_record()

    # ------------------------------------------------------------ links

    def open_link(self, event: LinkOpened, now: float) -> OverlayOutput:
        """A connection is open."""
        return [*self.neighbours.open_link(event, self._hello(), now)]

    def on_link_closed(self, link_id: LinkId, reason: str, now: float) -> OverlayOutput:
        """A connection is closed."""
        link = self.neighbours.links.get(link_id)
        return (
            self._follow_neighbour_changes(self.neighbours.on_link_closed(link, reason), now)
            if link
            else []
        )

    def send_to(self, node: NodeId, frame: OrderedFrame, now: float) -> list[Effect]:
        """Send a control frame to a neighbour; do nothing if the node is not a neighbour any
        more."""
        link = self.neighbours.by_node.get(node)
        return self.neighbours.send(link, frame, now) if link else []

    def link_cost(self, node: NodeId) -> int | None:
        """Return the cost of the link to a neighbour, None if the node is not a neighbour."""
        link = self.neighbours.by_node.get(node)
        return self.neighbours.link_cost(link) if link else None

    def capacity(self, node: NodeId) -> float:
        """Return the capacity that a node reported."""
        record = self.database.nodes.get(node)
        return record.capacity if record else 0.0

    # ------------------------------------------------------------ own rows

    def change_own_set(
        self, kind: RecordKind, added: list[str], removed: list[str], now: float
    ) -> list[Record]:
        """Change this node's interest or claims. Claims travel with announcements, interest floods
        now."""
        records = self.database.change_set(
            kind, self.identity.node, self.incarnation, (added, removed)
        )
        self._schedule_flush(now)
        return records

    def mark_interest_known(self, now: float) -> None:
        """The clients' interest is announced, even if empty: that of an earlier incarnation may
        go."""
        self._is_interest_known = True
        self._replace_former_rows(now)

    # ------------------------------------------------------------ time

    def handle_timer(self, now: float) -> OverlayOutput:
        """Do everything that is due."""
        effects, silent = self.neighbours.handle_timer(self.database.digest, now)
        output: OverlayOutput = [*effects, *self._raise_incarnation(now)]
        for link in silent:
            stuck = link.channel is not None and link.channel.has_overflowed
            reason = link.refusal_reason or ("stuck" if stuck else "silent")
            output += self._follow_neighbour_changes(self.neighbours.remove_link(link, reason), now)
            output.append(CloseLink(link.id, reason))
        return output

    def flush(self, now: float) -> list[Effect]:
        """Write and send everything that is due; called at the end of every input."""
        if self._record_due is not None and now >= self._record_due:
            self._write_own_record()
            self._schedule_flush(now)
        if self._flush_due is None or now < self._flush_due:
            return []
        self._flush_due = None
        links = {link.id: link for link in self.neighbours.by_node.values()}
        return [
            effect
            for link_id, update in self.database.drain_updates(links)
            for effect in self.neighbours.send(links[link_id], update, now)
        ]

    def flush_early(self, now: float) -> list[Effect]:
        """Send the records that wait to share a frame. A unicast frame must not overtake them: the
        receiver's map would not contain its source yet."""
        if self._flush_due is None:
            return []
        self._flush_due = now
        return self.flush(now)

    def expire_node(self, node: NodeId) -> None:
        """Drop all state of a node whose lease has ended."""
        self.leases.add_tombstone(node, self.database.stamp(RecordKind.NODE, node))
        self.database.expire_node(node)
        self.quotas.remove_node(node)
        self.graph.remove_node(node)

    def next_deadline(self) -> float | None:
        """When `handle_timer` or `flush` is due."""
        return earliest(
            self.neighbours.next_deadline(),
            self.leases.next_deadline(),
            self._record_due,
            self._flush_due,
            self.conflict.due,
        )

    def _schedule_flush(self, now: float, delay: float = 0.0) -> None:
        due = now + delay
        if self._flush_due is None or due < self._flush_due:
            self._flush_due = due

    # ------------------------------------------------------------ frames

    def receive_frame(self, link: NeighbourLink, frame: AnyFrame, now: float) -> OverlayOutput:
        """Handle one frame, in order."""
        if link.refusal_reason is not None and not isinstance(frame, Goodbye):
            return [Ignored("frame on a refused link")]
        if link.peer is None and link.refusal_reason is None and not isinstance(frame, Hello):
            return [Ignored(f"{type(frame).__name__} before hello")]
        match frame:
            case Heartbeat():
                return self._receive_heartbeat(link, frame, now)
            case Update():
                return self._receive_records(link, frame.records, now)
            case Hello():
                return self._receive_hello(link, frame, now)
            case Goodbye():
                return self._receive_goodbye(link, frame, now)
            case Summary():
                return self._receive_summary(link, frame, now)
            case Fetch():
                rows = dict.fromkeys(frame.rows)
                return self._send_records(
                    link, (self.database.row_records(row) for row in rows), now
                )
            case _:
                assert link.peer is not None
                if isinstance(frame, InterestAckRequest):
                    self._refresh_own_record(frame, now)
                return [ControlFrameReceived(link.peer.node, frame)]  # type: ignore[arg-type]

    def _send_records(
        self, link: NeighbourLink, rows: Iterable[list[Record]], now: float
    ) -> OverlayOutput:
        """Send whole rows, as many as the link's allowance permits; the other side will ask again
        for the rest (rule 3.3)."""
        records: list[Record] = []
        left_out: list[Effect] = []
        for row in rows:
            if not link.allowance.take(sum(map(encoded_bytes, row)), now):
                left_out.append(Ignored("records requested beyond the allowance of a link"))
                break
            records += row
        sends = [e for u in pack_updates(records) for e in self.neighbours.send(link, u, now)]
        return [*sends, *left_out]

    def _receive_hello(self, link: NeighbourLink, theirs: Hello, now: float) -> OverlayOutput:
        if link.peer is not None:
            return [Ignored("second hello on a link")]
        if theirs.node == self.identity.node:
            reason = "same node id on both sides: a link to itself, or a copy of this node"
            return [*self.neighbours.refuse_link(link, reason, now)]
        if refusal := self._identity_refusal(theirs.node, theirs.key, theirs.incarnation):
            if refusal == AHEAD:  # both sides log it
                they, we = name_in(theirs), name_in(self._hello())
                refusal += f": the clock of {they} is far ahead, or that of {we} far behind"
            return [Ignored(refusal), *self.neighbours.refuse_link(link, refusal, now)]
        output: OverlayOutput = []
        holder = self.database.nodes.get(theirs.node)
        if holder is not None and holder.incarnation > theirs.incarnation:
            # It may be refused for a link of the newer incarnation: first send the record to
            # outrank.
            output += self.neighbours.send(link, Update((holder,)), now)
        effects = self.neighbours.receive_hello(link, theirs, self._hello(), now)
        output += self._follow_neighbour_changes(effects, now)
        if link.refusal_reason is None:
            if theirs.digest != self.database.digest:
                output += self._send_summary(link, now)
            output.append(self.neighbours.make_heartbeat(link, self.database.digest, now))
        return output

    def _identity_refusal(self, node: NodeId, key: bytes, incarnation: int) -> str | None:
        if self._derives_ids and node_id(key) != node:
            return WRONG_KEY
        return AHEAD if incarnation > self.clock.limit_ms else None

    def _receive_goodbye(self, link: NeighbourLink, frame: Goodbye, now: float) -> OverlayOutput:
        reason = link.refusal_reason or frame.reason
        output = self._follow_neighbour_changes(self.neighbours.remove_link(link, reason), now)
        return [*output, CloseLink(link.id, reason)]

    def _receive_heartbeat(
        self, link: NeighbourLink, frame: Heartbeat, now: float
    ) -> OverlayOutput:
        output: OverlayOutput = [
            *self.neighbours.receive_heartbeat(link, frame, self.database.digest, now)
        ]
        if self.neighbours.update_reported_rtt(link):
            output += [*self._update_own_links(now), LinkCostsChanged()]
        if link.mismatches >= link.mismatches_allowed:
            link.mismatches, link.mismatches_allowed = (
                0,
                min(2 * link.mismatches_allowed, MISMATCHES_MAX),
            )
            output += self._send_summary(link, now)
        return output

    def _send_summary(self, link: NeighbourLink, now: float) -> list[Effect]:
        link.awaits_summary = True
        return self.neighbours.send(link, self.database.summary(), now)

    def _receive_summary(self, link: NeighbourLink, theirs: Summary, now: float) -> OverlayOutput:
        """Send the rows that the other side lacks. A change that crossed the hellos is visible to
        one side only, so the other starts a comparison as well if it lacks something."""
        output = self._send_records(link, self.database.missing_from(theirs), now)
        if not link.awaits_summary and self.database.is_behind(theirs):
            output += self._send_summary(link, now)
        link.awaits_summary = False
        return output

    def _receive_records(
        self, link: NeighbourLink, records: tuple[Record, ...], now: float
    ) -> OverlayOutput:
        """Merge records. New incarnations come first: their links must not meet stale claims."""
        me, known = self.identity.node, self.database.nodes
        unknown_records = [
            r for r in records if r.node == me or not self.database.is_known(r, link.id)
        ]
        if len(unknown_records) > 1:
            unknown_records.sort(key=lambda r: not is_new_incarnation(r, known.get(r.node)))
        return [item for record in unknown_records for item in self.merge_record(link, record, now)]

    def merge_record(
        self, link: NeighbourLink | None, record: Record, now: float, flood: bool = True
    ) -> OverlayOutput:
        """Merge one record; fetch a row whole from its sender if a change does not fit. Without a
        link, the record comes from this node's own disk."""
        if refusal := self._stamp_refusal(record):
            return [Ignored(refusal)]
        if record.node == self.identity.node:
            return self._merge_own_record(record, now)
        before = self.database.nodes.get(record.node)
        source = link.peer.node if link is not None and link.peer is not None else None
        if refusal := self._exceeded_bound(record, before, source):
            return [Ignored(refusal)]
        stamp = (record.incarnation, record.version)
        if before is None and not self.leases.admit_record(record.node, stamp):
            request = InterestAckRequest(
                record.node, self.identity.node, 0, *stamp
            )  # lost nodes do not answer
            requests = self.neighbours.send(link, request, now) if link else []
            return [Ignored("record of a node whose lease has ended"), *requests]
        change = self.database.merge(record, link.id if link else None, flood)
        self._account(record, source)
        if change is None:
            return []
        if isinstance(change, FetchRequired):
            return [*self.neighbours.send(link, Fetch((change.row,)), now)] if link else []
        if flood:
            self._schedule_flush(now, self._settings.relay_delay)
        if isinstance(change, SetChange):
            return [change]
        return self._apply_node_record(change, before, now)

    def _account(self, record: Record, source: NodeId | None) -> None:
        """Update the quotas for a merged record."""
        if isinstance(record, NodeRecord):
            self.quotas.add_node(record.node, source)
        else:
            kind = KIND_OF[type(record)]
            self.quotas.resize(kind, record.node, self.database.size(kind, record.node))

    def _merge_own_record(self, record: Record, now: float) -> OverlayOutput:
        """A record with our own id arrived. Rows of an earlier incarnation are replaced by rows of
        this one, even empty ones; a record that is not older than ours is a conflict."""
        kind = KIND_OF[type(record)]
        if record.incarnation < self.incarnation:
            if kind is not RecordKind.NODE:
                self._superseded_kinds[kind] = None
                self._replace_former_rows(now)
            return []
        stamp, own = (record.incarnation, record.version), self.database.stamp(kind, record.node)
        is_same = kind is not RecordKind.NODE or record == self.database.nodes[record.node]
        if stamp < own or (stamp == own and is_same):
            return []
        started_earlier = None
        if isinstance(record, NodeRecord):
            started_earlier = record.first_incarnation < self.identity.incarnation
        return self.on_id_conflict(record.incarnation, started_earlier, now)

    def on_id_conflict(
        self, incarnation: int, started_earlier: bool | None, now: float
    ) -> OverlayOutput:
        """Another node uses this node's id with an incarnation that is not below ours."""
        self.conflict.add_foreign_record(incarnation, started_earlier, now)
        return [Ignored(CONTESTED), *self._raise_incarnation(now)]

    def _replace_former_rows(self, now: float) -> None:
        """Replace rows of an earlier incarnation by rows of this one; interest once it is known."""
        me = self.identity.node
        for kind in list(self._superseded_kinds):
            if kind is RecordKind.INTEREST and not self._is_interest_known:
                continue
            del self._superseded_kinds[kind]
            if self.database.stamp(kind, me)[0] < self.incarnation:
                self.database.restamp_own_set(kind, me, self.incarnation)
                self._schedule_flush(now)

    def _stamp_refusal(self, record: Record) -> str | None:
        return self.clock.refusal(record.incarnation, record.version, "version")

    def _exceeded_bound(
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

    def _apply_node_record(
        self, change: RecordChange, before: NodeRecord | None, now: float
    ) -> OverlayOutput:
        record, node = change.record, change.record.node
        output: OverlayOutput = []
        if before is not None and before.incarnation < record.incarnation:
            output.append(NodeRestarted(node))
        if before is not None and before.capacity != record.capacity:
            output.append(CapacityChanged(node))
        joined, lost = self.graph.set_links(node, dict(record.links))
        if joined or lost:
            output += self._report_reachability(joined, lost, now)
        if node in self.neighbours.by_node and is_new_incarnation(record, before):
            output += self._update_own_links(now)  # the link to it counts from now on
        if node not in self.graph.reachable:
            self.leases.start_lease(node, now)
        return output

    def _report_reachability(
        self, joined: list[NodeId], lost: list[NodeId], now: float
    ) -> OverlayOutput:
        """Start and end leases, and report which nodes became reachable or unreachable."""
        for node in joined:
            self.leases.cancel_lease(node)
        for node in lost:
            self.leases.start_lease(node, now)
        return [
            *(NodeReachable(node) for node in joined),
            *(NodeUnreachable(node) for node in lost),
        ]

    def _follow_neighbour_changes(self, effects: list[Effect], now: float) -> OverlayOutput:
        """Update the map if neighbours were added or lost."""
        output: OverlayOutput = [*effects]
        if any(isinstance(effect, NeighbourUp | NeighbourDown) for effect in effects):
            output += self._update_own_links(now)
        return output

    def _update_own_links(self, now: float) -> OverlayOutput:
        """If this node's links changed, update the map at once and the own record when due."""
        links = dict(self._links())
        if links == self.graph.links:
            return []
        self._schedule_own_record(now)
        return self._report_reachability(*self.graph.set_links(self.identity.node, links), now)

    # ------------------------------------------------------------ this node itself

    def _hello(self) -> Hello:
        return Hello(
            version=PROTOCOL_VERSION,
            federation=self._settings.federation,
            node=self.identity.node,
            key=self.identity.key,
            incarnation=self.incarnation,
            name=self.identity.name,
            agreement=self._settings.shared_settings_text(),
            digest=self.database.digest,
        )

    def _links(self) -> list[tuple[NodeId, int]]:
        """Return the neighbours whose record of their present incarnation is here; links of an
        earlier one must not count."""
        return [
            (node, round((link.reported_rtt or 0.0) * 1e6))
            for node, link in sorted(self.neighbours.by_node.items())
            if (record := self.database.nodes.get(node))
            if link.peer is not None and record.incarnation >= link.peer.incarnation
        ]

    def _refresh_own_record(self, request: InterestAckRequest, now: float) -> None:
        """A node that has forgotten this one needs a newer record than the one it names."""
        me = self.identity.node
        stamp = (request.incarnation, request.version)
        if request.destination == me and stamp == self.database.stamp(RecordKind.NODE, me):
            self._schedule_own_record(now)

    def _schedule_own_record(self, now: float) -> None:
        if self._record_due is None:
            self._record_due = now + self._settings.change_delay

    def _write_own_record(self) -> None:
        self._record_due = None
        version = self.database.stamp(RecordKind.NODE, self.identity.node)[1] + 1
        record = make_node_record(self.identity, self.incarnation, version, self._links())
        self.database.merge(record, None)

    def _raise_incarnation(self, now: float) -> OverlayOutput:
        """If due, give all our rows an incarnation above that of a conflicting record."""
        incarnation = self.conflict.pop_due_incarnation(now)
        if incarnation is None:
            return []
        me = self.identity.node
        self.incarnation = incarnation
        self._write_own_record()
        for kind in (RecordKind.INTEREST, RecordKind.CLAIMS):
            self.database.restamp_own_set(kind, me, self.incarnation)
        self._schedule_flush(now)
        return [IncarnationRaised(self.incarnation)]
