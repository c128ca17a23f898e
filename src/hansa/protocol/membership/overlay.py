"""The overlay: links, the replicated database and the map made from it.

It decides which nodes are reachable and floods changes. Its methods return effects for the shell
and changes for `node`, in the order in which they happened. Frames that cannot be true are refused
and counted.
"""

from collections.abc import Iterable

from msgspec.structs import replace

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
    PeerMisbehaved,
)
from hansa.protocol.events import LinkOpened
from hansa.protocol.links.neighbours import MISMATCHES_MAX, NeighbourLink, Neighbours, name_in
from hansa.protocol.membership.authentication import FORGED, RecordAuthentication
from hansa.protocol.membership.changes import (
    CapacityChanged,
    ControlFrameReceived,
    FetchRequired,
    LinkCostsChanged,
    MapChanged,
    MemberExcluded,
    NodeRestarted,
    OverlayOutput,
    RecordChange,
    RecordForged,
    RightsChanged,
    SetChange,
)
from hansa.protocol.membership.database import Database, is_new_incarnation, pack_updates, sum_bytes
from hansa.protocol.membership.graph import Graph, Links
from hansa.protocol.membership.id_conflict import IdConflict
from hansa.protocol.membership.leases import Leases
from hansa.protocol.membership.quotas import Quotas
from hansa.protocol.membership.record_checks import RecordChecks
from hansa.protocol.membership.records import (
    KIND_OF,
    NodeRecord,
    Record,
    RecordKind,
    make_node_record,
)
from hansa.protocol.membership.rights import Rights
from hansa.protocol.model import Identity, LinkId, NodeId
from hansa.protocol.settings import Metric, ProtocolSettings
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

OTHERS_INTEREST = "interest outside the certificate of its node"
CONTESTED = "record of this node that it did not write"


class Overlay:
    """Links, database and map of one node."""

    def __init__(
        self,
        identity: Identity,
        settings: ProtocolSettings,
        authentication: RecordAuthentication,
    ) -> None:
        self.identity = identity
        self.incarnation = identity.incarnation
        self._settings = settings
        self.neighbours = Neighbours(settings)
        self.database = Database(authentication)
        self.graph = Graph(identity.node, settings.metric, authentication.leaves)
        self.leases = Leases(settings.interest_lease, settings.nodes_max)
        self.clock = WallClock(identity.incarnation)
        self.conflict = IdConflict()
        self.quotas = Quotas(settings)
        self.checks = RecordChecks(
            identity, settings, self.database, self.neighbours, self.quotas, self.clock
        )
        self._record_due: float | None = None
        self._flush_due: float | None = None
        self._is_interest_known = False  # until then, the interest of the earlier incarnation stays
        self._superseded_kinds: dict[RecordKind, None] = {}
        self._write_own_record()
        self.renew_own_rights()

    @property
    def authentication(self) -> RecordAuthentication:
        return self.database.authentication

    # ------------------------------------------------------------ links

    def open_link(self, event: LinkOpened, now: float) -> OverlayOutput:
        return [*self.neighbours.open_link(event, self._hello(), now)]

    def on_link_closed(self, link_id: LinkId, reason: str, now: float) -> OverlayOutput:
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

    def parent_cost(self, node: NodeId) -> int | None:
        """Return the cost of a path through a neighbour, None if it may not relay."""
        return self.link_cost(node) if self.authentication.may_relay(node) else None

    def least_distance(self, node: NodeId, other: NodeId) -> int:
        """Return the shortest distance between two nodes that the map allows, 0 if unknown. Two
        ends of a link measure different round-trip times, so only hops are compared."""
        if self._settings.metric is not Metric.HOPS:
            return 0
        return self.graph.hops_between(node, other)

    def interest_of(self, node: NodeId) -> list[str]:
        """Return the filters of a node that its certificate allows."""
        return self.allowed_interest(node, self.database.names(RecordKind.INTEREST, node))

    def allowed_interest(self, node: NodeId, filters: Iterable[str]) -> list[str]:
        rights = self.authentication.rights_of(node)
        return [name for name in filters if rights.allows_interest(name)]

    def links_refused(self, topic: str) -> list[LinkId]:
        """Return the links to neighbours that may not get a topic."""
        refused = self.authentication.leaves_refused(topic)
        by_node = self.neighbours.by_node
        return [by_node[node].id for node in refused if node in by_node]

    def capacity(self, node: NodeId) -> float:
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
        self.authentication.remove_node(node)
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
                output: OverlayOutput = [ControlFrameReceived(link.peer.node, frame)]  # type: ignore[arg-type]
                if isinstance(frame, InterestAckRequest):
                    output += self._refresh_own_record(frame, now)
                return output

    def _send_records(
        self, link: NeighbourLink, rows: Iterable[list[Record]], now: float
    ) -> OverlayOutput:
        """Send whole rows, as many as the link's allowance permits; the other side will ask again
        for the rest (rule 3.3)."""
        records: list[Record] = []
        left_out: list[Effect] = []
        for row in rows:
            if not link.allowance.take(sum_bytes(row), now):
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
        if refusal := self.checks.identity_refusal(theirs.node, theirs.key, theirs.incarnation):
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
        if refusal := self.checks.stamp_refusal(record):
            return [Ignored(refusal)]
        if record.node == self.identity.node:
            return self._merge_own_record(link, record, now)
        link_id = link.id if link else None
        if self.database.is_known(record, link_id):
            return []
        before = self.database.nodes.get(record.node)
        source = link.peer.node if link is not None and link.peer is not None else None
        if refusal := self.checks.exceeded_bound(record, source, link_id):
            return [Ignored(refusal)]
        rights = self._check_record(link, record, now)
        if not isinstance(rights, Rights):
            return rights
        change = self.database.merge_unknown(record, link_id, flood)
        self._account(record, source)
        if isinstance(change, RecordForged):
            return [_forged(link)]
        if isinstance(change, FetchRequired):
            return [*self.neighbours.send(link, Fetch((change.row,)), now)] if link else []
        if flood and change is not None:
            self._schedule_flush(now, self._settings.relay_delay)
        if isinstance(change, RecordChange):
            return self._apply_node_record(change, before, rights, now)
        return self._allowed_change(change) if change is not None else []

    def _allowed_change(self, change: SetChange) -> OverlayOutput:
        """Leave out interest that the certificate of its node does not allow. The database keeps
        it, because the signature covers the whole set."""
        if change.kind is not RecordKind.INTEREST:
            return [change]
        added = self.allowed_interest(change.node, change.added)
        removed = self.allowed_interest(change.node, change.removed)
        refused: OverlayOutput = [Ignored(OTHERS_INTEREST)] * (len(change.added) - len(added))
        return [*refused, replace(change, added=tuple(added), removed=tuple(removed))]

    def _set_rights(self, node: NodeId, rights: Rights) -> OverlayOutput:
        known = self.authentication.rights_of(node)
        if rights is known or rights == known:
            return []
        before = dict.fromkeys(self.interest_of(node))  # there may be thousands
        self.authentication.set_rights(node, rights)
        after = dict.fromkeys(self.interest_of(node))
        if before == after:
            return [RightsChanged(node)]
        added = tuple(name for name in after if name not in before)
        removed = tuple(name for name in before if name not in after)
        stamp = self.database.stamp(RecordKind.INTEREST, node)
        change = SetChange(RecordKind.INTEREST, node, stamp, added, removed)
        return [RightsChanged(node, change)]

    def _check_record(
        self, link: NeighbourLink | None, record: Record, now: float
    ) -> Rights | OverlayOutput:
        """Do the checks that cost a signature, and the one that changes state; return the rights
        of the node, or the refusal. The signature of a set is checked when it is merged."""
        rights = self.authentication.rights_of(record.node)
        if isinstance(record, NodeRecord):
            if not self.authentication.is_genuine(record):
                return [_forged(link)]
            found = self.authentication.check_certificates(record)
            if not isinstance(found, Rights):  # the neighbour may not know of a revocation yet
                return [Ignored(found)]
            rights = found
        stamp = (record.incarnation, record.version)
        is_known = record.node in self.database.nodes
        tombstone = None if is_known else self.leases.tombstone_against(record.node, stamp)
        if tombstone is not None:  # lost nodes do not answer
            request = InterestAckRequest(record.node, self.identity.node, 0, *tombstone)
            requests = self.neighbours.send(link, request, now) if link else []
            return [Ignored("record of a node whose lease has ended"), *requests]
        return rights

    def _account(self, record: Record, source: NodeId | None) -> None:
        """Update the quotas for a merged record."""
        if isinstance(record, NodeRecord):
            self.quotas.add_node(record.node, source)
        else:
            kind = KIND_OF[type(record)]
            self.quotas.resize(kind, record.node, self.database.size(kind, record.node))

    def _merge_own_record(
        self, link: NeighbourLink | None, record: Record, now: float
    ) -> OverlayOutput:
        """A record with our own id arrived. Rows of an earlier incarnation are replaced by rows of
        this one, even empty ones; a record that is not older than ours is a conflict, if it is
        genuine."""
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
            if not self.authentication.is_genuine(record):
                return [_forged(link)]
            started_earlier = record.first_incarnation < self.identity.incarnation
        elif self.authentication.is_enforced:
            return [Ignored(CONTESTED)]  # if it is of a copy, the copy's node record shows it
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

    def _apply_node_record(
        self, change: RecordChange, before: NodeRecord | None, rights: Rights, now: float
    ) -> OverlayOutput:
        record, node = change.record, change.record.node
        output: OverlayOutput = []
        output += self._set_rights(node, rights)
        if before is not None and before.incarnation < record.incarnation:
            output.append(NodeRestarted(node))
        if before is not None and before.capacity != record.capacity:
            output.append(CapacityChanged(node))
        output += self._set_links(node, dict(record.links), now)
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
        return self._set_links(self.identity.node, links, now)

    def _set_links(self, node: NodeId, links: Links, now: float) -> OverlayOutput:
        """Change the map; report nodes that became reachable or unreachable, and the change."""
        version = self.graph.version
        joined, lost = self.graph.set_links(node, links)
        output: OverlayOutput = []
        if joined or lost:
            output += self._report_reachability(joined, lost, now)
        if self.graph.version != version:
            output.append(MapChanged())
        return output

    # ------------------------------------------------------------ this node itself

    def _hello(self) -> Hello:
        return Hello(
            version=PROTOCOL_VERSION,
            federation=self._settings.federation,
            node=self.identity.node,
            key=self.identity.key,
            incarnation=self.incarnation,
            name=self.identity.name,
            shared_settings=self._settings.shared_settings_text(),
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

    def _refresh_own_record(self, request: InterestAckRequest, now: float) -> OverlayOutput:
        """A node that has forgotten this one needs a newer record than the one it names. That one
        may be of a copy of this node that started later."""
        stamp = (request.incarnation, request.version)
        own = self.database.stamp(RecordKind.NODE, self.identity.node)
        is_for_us = request.destination == self.identity.node
        if is_for_us and stamp == own:
            self._schedule_own_record(now)
        if stamp <= own or not is_for_us:
            return []
        refusal = self.clock.number_refusal(*stamp, "version")
        return [Ignored(refusal)] if refusal else self._raise_incarnation(now, stamp[0])

    def _schedule_own_record(self, now: float) -> None:
        if self._record_due is None:
            self._record_due = now + self._settings.change_delay

    def _write_own_record(self) -> None:
        self._record_due = None
        version = self.database.stamp(RecordKind.NODE, self.identity.node)[1] + 1
        record = make_node_record(
            self.identity,
            self.incarnation,
            version,
            self._links(),
            self.authentication.certificates,
        )
        self.database.merge(self.authentication.sign_node_record(record), None)

    def recheck_certificates(self, now: float) -> OverlayOutput:
        """Send this node's own certificate if it is a new one; exclude nodes whose certificates are
        not valid any more."""
        me = self.identity.node
        output: OverlayOutput = []
        if self.authentication.certificates != self.database.nodes[me].certificates:
            self._write_own_record()
            self._schedule_flush(now)
            if self.renew_own_rights():
                output.append(RightsChanged(me))
        for node, record in list(self.database.nodes.items()):
            refusal = self.authentication.check_certificates(record)
            if node != me and isinstance(refusal, str):
                output.append(Ignored(refusal))
                output += self._set_links(node, {}, now)
                output.append(MemberExcluded(node))
                self.leases.cancel_lease(node)
        return output

    def renew_own_rights(self) -> bool:
        """Read this node's own rights from its certificates; return whether they changed."""
        me = self.identity.node
        rights = self.authentication.check_certificates(self.database.nodes[me])
        if not isinstance(rights, Rights) or rights == self.authentication.rights_of(me):
            return False
        self.authentication.set_rights(me, rights)
        return True

    def _raise_incarnation(self, now: float, forgotten: int | None = None) -> OverlayOutput:
        """If due, give all our rows an incarnation above that of a conflicting or forgotten record;
        interest once it is known."""
        incarnation = self.conflict.pop_due_incarnation(now, forgotten)
        if incarnation is None:
            return []
        self.incarnation = incarnation
        self._write_own_record()
        self._superseded_kinds |= dict.fromkeys((RecordKind.INTEREST, RecordKind.CLAIMS))
        self._replace_former_rows(now)
        self._schedule_flush(now)
        return [IncarnationRaised(self.incarnation)]


def _forged(link: NeighbourLink | None) -> Effect:
    """Return that a record is forged; an honest neighbour would not have sent it."""
    return PeerMisbehaved(link.id, FORGED) if link else Ignored(FORGED)
