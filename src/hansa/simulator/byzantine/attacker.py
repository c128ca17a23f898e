"""The compromised member itself: what it reads, drops, alters and sends."""

import random
from collections.abc import Iterable

from msgspec.structs import replace

from hansa.errors import InvalidFrame
from hansa.protocol.membership.records import RecordKind
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.node import Node
from hansa.protocol.unicast import ANY_UNICASTS
from hansa.protocol.wire import codec
from hansa.protocol.wire.frames import (
    AnyFrame,
    FrameAck,
    Heartbeat,
    InterestAcks,
    SequencedFrame,
)
from hansa.simulator.byzantine.corpus import Corpus
from hansa.simulator.byzantine.forgery import Forgery
from hansa.simulator.world.ledger import LEDGER_NUMBER_BYTES
from hansa.simulator.world.network import LinkEnd
from hansa.simulator.world.site import Site
from hansa.simulator.world.world import World

UNORDERED = (Heartbeat, FrameAck, Publication)
"""Frames without a sequence number on datagram links."""

_PAYLOADS = (1 << 8 * LEDGER_NUMBER_BYTES) - 1


class Attacker:
    """Controls the node of one site, from the start of a run to its end."""

    def __init__(self, world: World, site: Site) -> None:
        self._world = world
        self._site = site
        self.corpus = Corpus()
        self.rng = random.Random(f"{world.options.seed} byzantine {site.place}")
        self.dropped_share = 0.0
        """Fraction of publications and unicast frames of others that it drops."""
        self.is_altering = False
        """Whether it changes the payloads of publications of QoS 1 and 2 of others."""
        self.ids: set[NodeId] = {site.state.id}
        """Ids that it had, and those that it invented."""
        self.misled_origins: set[NodeId] = set()
        """Origins that it sent receipts with false positions and genuine proofs."""
        self._payload_count = 0

    @property
    def id(self) -> NodeId:
        return self._site.state.id

    @property
    def node(self) -> Node | None:
        """Its node, while it runs."""
        return None if self._site.is_frozen else self._site.node

    @property
    def wall_ms(self) -> int:
        """The time that incarnations and epochs are compared with."""
        return round(self._world.now * 1000)

    def owns(self, node: NodeId) -> bool:
        """Whether frames in this node's name are its own."""
        return node == self.id or node in self.ids

    def victims(self) -> list[NodeId]:
        """The other nodes that its own node believes in, in a fixed order."""
        known = self.node
        return sorted(
            node
            for node in self.corpus.nodes
            if known is not None and known.membership.records_of(node) and not self.owns(node)
        )

    def new_payload(self, size: int = 24) -> bytes:
        """Return a payload that no client published."""
        self._payload_count += 1
        number = _PAYLOADS - 1_000_000 * self._site.place - self._payload_count
        return number.to_bytes(LEDGER_NUMBER_BYTES, "big").ljust(size, b"!")

    # ------------------------------------------------------------ its own key

    @property
    def forgery(self) -> Forgery:
        """The keys of its node, which must run."""
        assert self._site.node is not None
        return Forgery(self._site.node)

    # ------------------------------------------------------------ interception

    def incoming(self, frame: object) -> None:
        """Read a frame that a neighbour sent."""
        self.ids.add(self.id)
        self.corpus.add(frame)

    def outgoing(self, frame: AnyFrame | Publication) -> AnyFrame | Publication | None:
        """Return what to send in place of a frame of the node; None to drop it."""
        self.ids.add(self.id)
        self.corpus.add(frame)
        inner = frame.frame if isinstance(frame, SequencedFrame) else frame
        if not self._is_relayed(inner):
            return frame
        if self.dropped_share and self.rng.random() < self.dropped_share:
            return None if inner is frame else self._emptied(frame)
        if self.is_altering and isinstance(frame, Publication) and frame.qos:
            return replace(frame, payload=frame.payload[:-1] + b"!")
        return frame

    def _is_relayed(self, frame: object) -> bool:
        if isinstance(frame, Publication):
            return frame.origin != self.id
        if isinstance(frame, InterestAcks):
            return any(entry.source != self.id for entry in frame.entries)
        return isinstance(frame, ANY_UNICASTS) and frame.source != self.id

    def _emptied(self, frame: AnyFrame | Publication) -> AnyFrame:
        """On datagram links drop only the content: a missing number would be noticed."""
        assert isinstance(frame, SequencedFrame)
        return replace(frame, frame=InterestAcks(()))

    # ------------------------------------------------------------ sending

    def ends(self) -> list[LinkEnd]:
        return list(self._site.link_ends.values())

    def neighbour(self, end: LinkEnd) -> NodeId:
        """Return the node at the other side of a link."""
        return self._world.sites[end.peer.host.place].state.id

    def send(self, frames: Iterable[AnyFrame | Publication], ends: Iterable[LinkEnd] = ()) -> None:
        """Send frames to all neighbours, or over some links. A frame that the codec of a neighbour
        would refuse is not sent: it would only close the link."""
        targets = list(ends) or self.ends()
        for frame in frames:
            try:
                received = codec.decode(codec.encode(frame))
            except (InvalidFrame, ValueError):
                continue
            self._world.transcript.add_line(self._world.now, self._site.place, f"sends {frame}")
            for end in targets:
                if end.is_open:
                    self._transmit(end, received)

    def _transmit(self, end: LinkEnd, frame: AnyFrame | Publication) -> None:
        node = self.node
        if node is None:
            return
        if self._world.options.links.is_ordered or isinstance(frame, UNORDERED):
            self._world.transmit(end, frame)
            return
        # A compromised process uses the numbers of its own links.
        neighbours = node._overlay.neighbours  # noqa: SLF001
        link = neighbours.links.get(end.id)
        if link is not None and link.peer is not None:
            for effect in neighbours.send(link, frame, self._world.now):  # type: ignore[arg-type]
                self._world.transmit(end, effect.frame)  # type: ignore[union-attr]

    def own_stamp(self, kind: RecordKind) -> tuple[int, int]:
        """The newest stamp of one of its own records."""
        known = self.corpus.newest.get((kind, self.id))
        return (known.incarnation, known.version) if known else (self._site.state.incarnation, 0)
