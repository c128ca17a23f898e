"""Checks of what neighbours send, before it has any effect: bounds, clock, identity, rights.

Cheap checks only, except that of an announcement: signatures of records are checked by
`Overlay.merge_record` and by `Database`, when everything else is in order.
"""

from hansa.protocol.clock import AHEAD, WallClock
from hansa.protocol.effects import Effect, Ignored, PeerMisbehaved
from hansa.protocol.links.neighbours import Neighbours
from hansa.protocol.membership.authentication import FORGED_ANNOUNCEMENT
from hansa.protocol.membership.database import Database
from hansa.protocol.membership.quotas import Quotas
from hansa.protocol.membership.records import (
    KIND_OF,
    ClaimsRecord,
    NodeRecord,
    Record,
    RecordKind,
)
from hansa.protocol.model import Identity, LinkId, NodeId, node_id
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.topics import is_local_only
from hansa.protocol.wire.frames import CoreAnnouncement

WRONG_KEY = "node id does not match its key"
MAY_NOT_BE_CORE = "claims of a node that may not be core"


class RecordChecks:
    """Returns why something is refused, None if it is not."""

    def __init__(
        self,
        identity: Identity,
        settings: ProtocolSettings,
        database: Database,
        neighbours: Neighbours,
        quotas: Quotas,
        clock: WallClock,
    ) -> None:
        # In simulations ids are chosen. If this node's id is the digest of its key, all ids must
        # be.
        self._derives_ids = node_id(identity.key) == identity.node
        self._node = identity.node
        self._settings = settings
        self._database = database
        self._neighbours = neighbours
        self._quotas = quotas
        self._clock = clock

    def identity_refusal(self, node: NodeId, key: bytes, incarnation: int) -> str | None:
        if self._derives_ids and node_id(key) != node:
            return WRONG_KEY
        return AHEAD if incarnation > self._clock.limit_ms else None

    def stamp_refusal(self, record: Record) -> str | None:
        return self._clock.number_refusal(record.incarnation, record.version, "version")

    def exceeded_bound(
        self, record: Record, source: NodeId | None, link: LinkId | None
    ) -> str | None:
        before = self._database.nodes.get(record.node)
        if isinstance(record, NodeRecord):
            is_checked = before is not None and before.key == record.key
            if self._derives_ids and not is_checked and node_id(record.key) != record.node:
                return WRONG_KEY
            if before is not None:
                return None
            return self._quotas.refuses_node(source, self._neighbours.oldest)
        if before is None:
            return "record of an unknown node"
        if any(map(is_local_only, record.added)):
            return "interest in topics of one broker"
        if isinstance(record, ClaimsRecord) and record.added and not self._may_be_core(record.node):
            return MAY_NOT_BE_CORE
        kind, growth = KIND_OF[type(record)], self._database.growth(record)
        if self._database.size_after(record, link) > self._names_max(kind):
            return "filters_per_node_max"
        is_bounded = source is not None and not self._neighbours.is_trusted(source)
        return self._quotas.refuses_names(kind, record.node, growth, is_bounded)

    def _names_max(self, kind: RecordKind) -> int:
        """Return how many names a node may have. A core may claim every group in which some node
        is interested: it keeps a group that it was interested in (rule 4.9), and claims groups of
        nodes that may not be core (rule 12.4)."""
        most = self._settings.filters_per_node_max
        if kind is RecordKind.INTEREST:
            return most
        own = self._database.size(RecordKind.INTEREST, self._node)
        return most + own + self._quotas.names[RecordKind.INTEREST]

    def announcement_refusal(self, sender: NodeId, frame: CoreAnnouncement) -> Effect | None:
        """Return why an announcement is refused. That of an unknown core is checked when its record
        has arrived."""
        stamp = (frame.incarnation, frame.sequence)
        if refusal := self._clock.number_refusal(*stamp, "announcement number"):
            return Ignored(refusal)
        core = self._database.nodes.get(frame.core)
        if core is None:
            return None
        if not self._may_be_core(frame.core):
            return Ignored(MAY_NOT_BE_CORE)
        proof = (core.key, frame.signature)
        if self._database.authentication.is_genuine_announcement(frame.core, stamp, proof):
            return None
        return PeerMisbehaved(self._neighbours.by_node[sender].id, FORGED_ANNOUNCEMENT)

    def _may_be_core(self, node: NodeId) -> bool:
        return self._database.authentication.rights_of(node).may_be_core
