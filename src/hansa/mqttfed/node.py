"""One node of `mqtt-fed`: a mesh per topic, and publications on their way.

`handle(event, now)` returns what must be done, `next_deadline()` says when TimerFired is due.
Nothing here knows brokers or clocks, and nothing that a neighbour sends makes it raise.
"""

from collections import OrderedDict
from dataclasses import dataclass

from hansa.errors import InvalidFrame
from hansa.mqttfed.effects import Deliver, Effect, LeftAside, Send
from hansa.mqttfed.mesh import TopicMesh
from hansa.mqttfed.messages import (
    NUMBERS,
    Beacon,
    CoreAnnouncement,
    Membership,
    Message,
    Published,
    Routed,
    read,
)
from hansa.mqttfed.settings import FedSettings

NUMBERS_PER_SECOND = 1_000
"""A node may publish so often without meeting, after a restart, the numbers of its earlier life."""


@dataclass(frozen=True, slots=True)
class Received:
    """Our own broker has something for us."""

    topic: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class InterestChanged:
    """Clients want other topics than before, as far as somebody else than a beacon says so."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The deadline has come, or may have."""


Event = Received | InterestChanged | TimerFired


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic, as an operator sees it."""

    core: int | None
    parents: tuple[int, ...]
    children: tuple[int, ...]
    wanted: bool


class FedNode:
    """A core, a member, a publisher from outside or a node in between, topic by topic."""

    def __init__(self, settings: FedSettings, birth: int, now: float) -> None:
        """`birth` grows by a second per second, also from life to life: the format has no field for
        an incarnation, so numbers that grow with it must do."""
        self._settings = settings
        self._epoch = birth - now
        self._next_number = birth * NUMBERS_PER_SECOND % NUMBERS
        self._meshes: dict[str, TopicMesh] = {}
        self._seen: OrderedDict[tuple[str, int, int], None] = OrderedDict()
        self._deadline: float | None = None
        self._is_stale = False

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Apply one input and return what must now be done, in order."""
        match event:
            case Received(name, payload):
                try:
                    topic, message = read(name, payload)
                except InvalidFrame as error:
                    return [LeftAside("invalid", str(error))]
                return self._take(topic, message, now)
            case InterestChanged(added, removed):
                told = [each for topic in removed for each in self._want(topic, False, now)]
                told += [each for topic in added for each in self._want(topic, True, now)]
                return told
            case TimerFired():
                return [each for mesh in [*self._meshes.values()] for each in self._wake(mesh, now)]

    def next_deadline(self) -> float | None:
        """When TimerFired is next due. Read it again after every input."""
        if self._is_stale:
            deadlines = [mesh.next_deadline() for mesh in self._meshes.values()]
            self._deadline = min((each for each in deadlines if each is not None), default=None)
            self._is_stale = False
        return self._deadline

    def view(self, now: float) -> dict[str, TopicView]:
        """Return what is known of every topic."""
        return {
            topic: TopicView(mesh.core, mesh.parents, mesh.children_now(now), mesh.has_interest)
            for topic, mesh in sorted(self._meshes.items())
        }

    # ------------------------------------------------------------ messages

    def _take(self, topic: str, message: Message, now: float) -> list[Effect]:
        sender = getattr(message, "sender", None)
        if sender is not None and sender not in self._settings.neighbours:
            return [LeftAside("from no neighbour", str(sender))]
        mesh = self._meshes.get(topic)
        told = self._wake(mesh, now) if mesh else []
        match message:
            case Beacon() | CoreAnnouncement() | Membership():
                return told + self._control(topic, message, now)
            case Routed() if mesh and mesh.core is not None:
                return told + self._pass_on(mesh, message, now)
            case Published(payload) if mesh and mesh.core is not None:
                return told + self._publish(mesh, payload, now)
        return [*told, LeftAside("no core is known")]

    def _control(
        self, topic: str, message: Beacon | CoreAnnouncement | Membership, now: float
    ) -> list[Effect]:
        mesh = self._meshes.get(topic) if isinstance(message, Membership) else self._mesh(topic)
        if mesh is None:
            return [LeftAside("no mesh, or no room for one")]
        match message:
            case Beacon():
                told = mesh.beacon(now)
            case CoreAnnouncement():
                told = mesh.hear(message, now)
            case Membership():
                told = mesh.join(message, now)
        self._changed(mesh)
        return told

    def _publish(self, mesh: TopicMesh, payload: bytes, now: float) -> list[Effect]:
        node, number = self._settings.node, self._next_number
        self._next_number = (number + 1) % NUMBERS
        self._note(mesh.topic, node, number)
        said = Routed(node, number, node, payload)
        return [Send(way, mesh.topic, said) for way in mesh.ways(None, now)]

    def _pass_on(self, mesh: TopicMesh, routed: Routed, now: float) -> list[Effect]:
        if not self._note(mesh.topic, routed.origin, routed.number):
            return [LeftAside("duplicate")]
        told: list[Effect] = []
        if mesh.has_interest:
            told.append(Deliver(mesh.topic, routed.payload))
        onward = Routed(routed.origin, routed.number, self._settings.node, routed.payload)
        return told + [Send(way, mesh.topic, onward) for way in mesh.ways(routed.sender, now)]

    def _note(self, topic: str, origin: int, number: int) -> bool:
        """Remember a publication; say whether it is new."""
        key = (topic, origin, number)
        if key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > self._settings.seen_max:
            self._seen.popitem(last=False)
        return True

    # ------------------------------------------------------------ topics

    def _mesh(self, topic: str) -> TopicMesh | None:
        """Return the mesh of a topic, a new one if there is room."""
        if topic not in self._meshes and len(self._meshes) < self._settings.topics_max:
            self._meshes[topic] = TopicMesh(topic, self._settings, self._epoch)
        return self._meshes.get(topic)

    def _want(self, topic: str, is_wanted: bool, now: float) -> list[Effect]:
        mesh = self._mesh(topic) if is_wanted else self._meshes.get(topic)
        if mesh is None:
            return [LeftAside("no mesh, or no room for one")]
        told = mesh.want(is_wanted, now)
        self._changed(mesh)
        return told

    def _wake(self, mesh: TopicMesh, now: float) -> list[Effect]:
        due = mesh.next_deadline()
        if due is None or now < due:
            return []
        told = mesh.wake(now)
        self._changed(mesh)
        return told

    def _changed(self, mesh: TopicMesh) -> None:
        """Forget a mesh that has nothing left to know; ask for deadlines anew."""
        self._is_stale = True
        if mesh.is_idle:
            self._meshes.pop(mesh.topic, None)
