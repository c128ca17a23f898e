"""Unicast frames at one node: sending, forwarding and receiving them.

In a federation with certificates the source seals its frames, relays forward them without reading
them, and only their destination opens them (`pair_authentication`). Without certificates they are
not sealed.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from hansa.errors import InvalidFrame
from hansa.protocol.effects import Effect, Ignored, PeerMisbehaved
from hansa.protocol.interest.acks import AckFrame
from hansa.protocol.membership.origins import WRONG_SIDE, Origins
from hansa.protocol.membership.overlay import Overlay
from hansa.protocol.membership.unicast_routes import UnicastRoutes
from hansa.protocol.model import HOPS_MAX, NodeId
from hansa.protocol.pair_authentication import FORGED_UNICAST, KeyExchange, PairAuthenticator
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import (
    UNICASTS,
    InterestAck,
    RetainedVersions,
    SealedUnicast,
    Unicast,
)

AnyUnicast = Unicast | SealedUnicast
ANY_UNICASTS = (*UNICASTS, SealedUnicast)
"""For `isinstance`, which is slow with a union."""


class UnicastTransport:
    """Passes unicast frames between this node and all others."""

    def __init__(
        self, overlay: Overlay, settings: ProtocolSettings, keys: KeyExchange | None
    ) -> None:
        self._overlay = overlay
        self._node = overlay.identity.node
        nodes = overlay.database.nodes
        self._pair_authenticator: PairAuthenticator | None = None
        if keys is not None:
            self._pair_authenticator = PairAuthenticator(
                self._node, settings.federation, keys, nodes, settings.nodes_max
            )
        self.origins = Origins(
            overlay.graph,
            overlay.neighbours.links,
            nodes,
            self._pair_authenticator,
            admits_unknown=not overlay.authentication.is_enforced,
        )
        self.routes = UnicastRoutes(self._node, overlay.graph)

    @property
    def is_sealed(self) -> bool:
        """Whether the federation has certificates."""
        return self._pair_authenticator is not None

    def send(self, output: Iterable[Effect | AnyUnicast], now: float) -> list[Effect]:
        """Send unicast frames to their next hop. A frame without one is dropped; its sender will
        retry. Return these and all other effects."""
        effects: list[Effect] = []
        for item in output:
            if not isinstance(item, ANY_UNICASTS):
                effects.append(item)
                continue
            frame, hop = self.routes.route(item, now)
            if hop is not None:
                sealed = self._seal(frame)
                effects += self._overlay.flush_early(now)
                effects += self._overlay.send_to(hop, sealed, now) if sealed else []
            elif frame.hops:  # not an own frame: those may address nodes known to be unreachable
                effects.append(Ignored("unicast without a route"))
        return effects

    def _seal(self, frame: AnyUnicast) -> AnyUnicast | None:
        """Return a frame as it leaves; None while the destination's exchange key is unknown: the
        protocol sends the frame again."""
        if self._pair_authenticator is None or isinstance(frame, SealedUnicast):
            return frame
        return self._pair_authenticator.seal(frame)

    def route_ack(self, frame: AckFrame, now: float) -> tuple[AckFrame, NodeId | None]:
        """Return an acknowledgement or request as it leaves, and its next hop."""
        frame, hop = self.routes.route(frame, now)
        if isinstance(frame, InterestAck) and not frame.hops and self._pair_authenticator:
            frame = self._pair_authenticator.sign_ack(frame)
        return frame, hop

    def receive(
        self, sender: NodeId, frame: AnyUnicast, now: float
    ) -> tuple[Unicast | None, list[Effect]]:
        """A neighbour sent a frame: return it, opened, if it is for this node; forward others."""
        if isinstance(frame, SealedUnicast) != self.is_sealed:
            return None, [self._misbehaviour(sender, "unicast that is not sealed as agreed")]
        # RetainedVersions may come from any node: the one that knows a newer value informs the
        # former owner, in the name of the new owner.
        may_speak = isinstance(frame, RetainedVersions) or self.origins.speaks_for(
            sender, frame.source
        )
        if not may_speak:
            return None, [Ignored(WRONG_SIDE)]
        if frame.destination != self._node:
            if frame.hops >= HOPS_MAX:
                return None, [Ignored("unicast past the hop limit")]
            return None, self.send([replace(frame, hops=frame.hops + 1)], now)
        if not isinstance(frame, SealedUnicast):
            return frame, []
        assert self._pair_authenticator is not None
        try:
            return self._pair_authenticator.open(frame), []
        except InvalidFrame as error:
            reason = str(error)
        if reason == FORGED_UNICAST and sender == frame.source:  # no relay could have altered it
            return None, [self._misbehaviour(sender, reason)]
        return None, [Ignored(reason)]

    def ack_refusal(self, sender: NodeId, ack: InterestAck) -> str | None:
        """Return why an acknowledgement is refused, None if it is not. Only its destination checks
        the proof."""
        if not self.origins.speaks_for(sender, ack.source):
            return WRONG_SIDE
        if self._pair_authenticator is None or ack.destination != self._node:
            return None
        return self._pair_authenticator.ack_refusal(ack)

    def _misbehaviour(self, sender: NodeId, reason: str) -> Effect:
        return PeerMisbehaved(self._overlay.neighbours.by_node[sender].id, reason)
