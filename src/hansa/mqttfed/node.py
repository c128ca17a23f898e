"""One node of `mqtt-fed`: a mesh per topic, and forwarding of publications.

`handle(event, now)` returns the effects, `next_deadline()` says when FedTimerFired is due. The node
has no clock and no broker, and no message of a neighbour makes it raise.
"""

from collections import OrderedDict
from dataclasses import dataclass

from hansa.errors import InvalidFrame
from hansa.mqttfed.effects import Effect, MessageIgnored, PublishAtNeighbour, PublishToClients
from hansa.mqttfed.events import (
    BrokerMessageReceived,
    FedEvent,
    FedTimerFired,
    TopicInterestChanged,
)
from hansa.mqttfed.mesh import TopicMesh
from hansa.mqttfed.messages import (
    SEQUENCE_MODULUS,
    BeaconMessage,
    ClientMessage,
    CoreAnnouncementMessage,
    FedMessage,
    MembershipMessage,
    RoutedMessage,
    decode_message,
)
from hansa.mqttfed.settings import FedSettings

SEQUENCES_PER_SECOND = 1_000
"""Publication rate below which a restarted node does not reuse sequence numbers."""


@dataclass(frozen=True, slots=True)
class TopicStatus:
    core: int | None
    parents: tuple[int, ...]
    children: tuple[int, ...]
    has_interest: bool


class FedNode:
    """Core, member, outside publisher or intermediate node, per topic."""

    def __init__(self, settings: FedSettings, wall_clock_s: int, now: float) -> None:
        """`wall_clock_s` grows by a second per second, also across incarnations: the format has no
        field for an incarnation, so sequence numbers grow with it instead."""
        self._settings = settings
        self._clock_offset = wall_clock_s - now
        self._next_sequence = wall_clock_s * SEQUENCES_PER_SECOND % SEQUENCE_MODULUS
        self._meshes: dict[str, TopicMesh] = {}
        self._seen: OrderedDict[tuple[str, int, int], None] = OrderedDict()
        self._deadline: float | None = None
        self._is_deadline_stale = False

    def handle(self, event: FedEvent, now: float) -> list[Effect]:
        """Apply one event and return the effects, in order."""
        match event:
            case BrokerMessageReceived(name, payload):
                try:
                    topic, message = decode_message(name, payload)
                except InvalidFrame as error:
                    return [MessageIgnored("invalid", str(error))]
                return self._receive_message(topic, message, now)
            case TopicInterestChanged(added, removed):
                output = [
                    each for topic in removed for each in self._set_subscribed(topic, False, now)
                ]
                output += [
                    each for topic in added for each in self._set_subscribed(topic, True, now)
                ]
                return output
            case FedTimerFired():
                return [
                    each
                    for mesh in [*self._meshes.values()]
                    for each in self._handle_mesh_timer(mesh, now)
                ]

    def next_deadline(self) -> float | None:
        """Return when FedTimerFired is due. Read it again after every event."""
        if self._is_deadline_stale:
            deadlines = [mesh.next_deadline() for mesh in self._meshes.values()]
            self._deadline = min((each for each in deadlines if each is not None), default=None)
            self._is_deadline_stale = False
        return self._deadline

    def status(self, now: float) -> dict[str, TopicStatus]:
        return {
            topic: TopicStatus(mesh.core, mesh.parents, mesh.live_children(now), mesh.has_interest)
            for topic, mesh in sorted(self._meshes.items())
        }

    # ------------------------------------------------------------ messages

    def _receive_message(self, topic: str, message: FedMessage, now: float) -> list[Effect]:
        sender = getattr(message, "sender", None)
        if sender is not None and sender not in self._settings.neighbours:
            return [MessageIgnored("sender is not a neighbour", str(sender))]
        mesh = self._meshes.get(topic)
        output = self._handle_mesh_timer(mesh, now) if mesh else []
        match message:
            case BeaconMessage() | CoreAnnouncementMessage() | MembershipMessage():
                return output + self._receive_control(topic, message, now)
            case RoutedMessage() if mesh and mesh.core is not None:
                return output + self._forward(mesh, message, now)
            case ClientMessage(payload) if mesh and mesh.core is not None:
                return output + self._publish(mesh, payload, now)
        return [*output, MessageIgnored("no core known")]

    def _receive_control(
        self,
        topic: str,
        message: BeaconMessage | CoreAnnouncementMessage | MembershipMessage,
        now: float,
    ) -> list[Effect]:
        mesh = (
            self._meshes.get(topic)
            if isinstance(message, MembershipMessage)
            else self._find_or_make_mesh(topic)
        )
        if mesh is None:
            return [MessageIgnored("no mesh (or topics_max reached)")]
        match message:
            case BeaconMessage():
                output = mesh.receive_beacon(now)
            case CoreAnnouncementMessage():
                output = mesh.receive_announcement(message, now)
            case MembershipMessage():
                output = mesh.receive_membership(message, now)
        self._on_mesh_changed(mesh)
        return output

    def _publish(self, mesh: TopicMesh, payload: bytes, now: float) -> list[Effect]:
        node, number = self._settings.node, self._next_sequence
        self._next_sequence = (number + 1) % SEQUENCE_MODULUS
        self._mark_seen(mesh.topic, node, number)
        message = RoutedMessage(node, number, node, payload)
        return [
            PublishAtNeighbour(next_hop, mesh.topic, message)
            for next_hop in mesh.next_hops(None, now)
        ]

    def _forward(self, mesh: TopicMesh, routed: RoutedMessage, now: float) -> list[Effect]:
        if not self._mark_seen(mesh.topic, routed.origin, routed.sequence):
            return [MessageIgnored("duplicate")]
        output: list[Effect] = []
        if mesh.has_interest:
            output.append(PublishToClients(mesh.topic, routed.payload))
        forwarded = RoutedMessage(
            routed.origin, routed.sequence, self._settings.node, routed.payload
        )
        return output + [
            PublishAtNeighbour(next_hop, mesh.topic, forwarded)
            for next_hop in mesh.next_hops(routed.sender, now)
        ]

    def _mark_seen(self, topic: str, origin: int, sequence: int) -> bool:
        """Remember a publication; return whether it is new."""
        key = (topic, origin, sequence)
        if key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > self._settings.seen_max:
            self._seen.popitem(last=False)
        return True

    # ------------------------------------------------------------ topics

    def _find_or_make_mesh(self, topic: str) -> TopicMesh | None:
        """Return the mesh of a topic, a new one unless `topics_max` is reached."""
        if topic not in self._meshes and len(self._meshes) < self._settings.topics_max:
            self._meshes[topic] = TopicMesh(topic, self._settings, self._clock_offset)
        return self._meshes.get(topic)

    def _set_subscribed(self, topic: str, is_subscribed: bool, now: float) -> list[Effect]:
        mesh = self._find_or_make_mesh(topic) if is_subscribed else self._meshes.get(topic)
        if mesh is None:
            return [MessageIgnored("no mesh (or topics_max reached)")]
        output = mesh.set_subscribed(is_subscribed, now)
        self._on_mesh_changed(mesh)
        return output

    def _handle_mesh_timer(self, mesh: TopicMesh, now: float) -> list[Effect]:
        due = mesh.next_deadline()
        if due is None or now < due:
            return []
        output = mesh.handle_timer(now)
        self._on_mesh_changed(mesh)
        return output

    def _on_mesh_changed(self, mesh: TopicMesh) -> None:
        """Drop a mesh that is idle; update the deadlines."""
        self._is_deadline_stale = True
        if mesh.is_idle:
            self._meshes.pop(mesh.topic, None)
