"""The mesh of one topic at one node: its core, our parents towards it, our children.

The rules are those of Spohn 2020 as `mqtt-fed` implements them. A distance is incremented at both
ends of a link, by the sender and by the receiver. A node that incremented it once would seem nearer
than it is, and its neighbours would have no second parent beside it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hansa.mqttfed.effects import Effect, MessageIgnored, PublishAtNeighbour, TopicCoreChanged
from hansa.mqttfed.messages import (
    SEQUENCE_MODULUS,
    CoreAnnouncementMessage,
    MembershipMessage,
    RoutedMessage,
)
from hansa.mqttfed.settings import FedSettings

DISTANCE_MAX = SEQUENCE_MODULUS // 2
"""Larger distances are ignored; this one plus both increments still fits the wire format."""


@dataclass(frozen=True, slots=True)
class CoreState:
    announce_at: float
    """When the next announcement is due."""


@dataclass(frozen=True, slots=True)
class FollowerState:
    """Another node is the core."""

    core: int
    sequence: int
    distance: int
    expires_at: float
    """When the last announcement expires."""
    parents: tuple[int, ...]
    """The nearest neighbours towards the core, ascending."""
    notified_parents: frozenset[int] = frozenset()
    """Parents that know of our membership."""


@dataclass(slots=True)
class TopicMesh:
    topic: str
    settings: FedSettings
    clock_offset: float
    """`now` plus this is the smallest sequence number of an announcement: above those of earlier
    incarnations."""
    last_sequence: int = 0
    """The sequence number of our own last announcement."""
    state: CoreState | FollowerState | None = None
    child_expiry: dict[int, float] = field(default_factory=dict)
    """Child nodes, and when each expires."""
    beacon_until: float | None = None
    is_subscribed: bool = False
    """Whether an observer reports subscribers of the topic; beacons count separately."""

    # ------------------------------------------------------------ state

    @property
    def has_interest(self) -> bool:
        """Whether clients of our own broker subscribe to the topic."""
        return self.is_subscribed or self.beacon_until is not None

    @property
    def is_idle(self) -> bool:
        """Whether the mesh can be dropped."""
        return self.state is None and not self.has_interest

    @property
    def core(self) -> int | None:
        if isinstance(self.state, FollowerState):
            return self.state.core
        return self.settings.node if self.state else None

    @property
    def parents(self) -> tuple[int, ...]:
        return self.state.parents if isinstance(self.state, FollowerState) else ()

    def live_children(self, now: float) -> tuple[int, ...]:
        """The children that have not expired, ascending."""
        return tuple(sorted(child for child, until in self.child_expiry.items() if now < until))

    def next_hops(self, sender: int | None, now: float) -> list[int]:
        """Return the parents and children that a publication goes to, without its sender."""
        neighbours = {*self.parents, *self.live_children(now)}
        return [next_hop for next_hop in sorted(neighbours) if next_hop != sender]

    # ------------------------------------------------------------ events

    def handle_timer(self, now: float) -> list[Effect]:
        """Expire beacons, announcements and children; send the core's next announcement if due."""
        if self.beacon_until is not None and now >= self.beacon_until:
            self.beacon_until = None
        self.child_expiry = {child: end for child, end in self.child_expiry.items() if now < end}
        before = self.core
        match self.state:
            case CoreState() if not self.has_interest:
                self._set_state(None)
            case FollowerState(expires_at=until) if now >= until:
                self._set_state(None)
            case _:
                pass
        if self.state is None and self.has_interest:
            self._set_state(CoreState(announce_at=now))
        output: list[Effect] = (
            [] if self.core == before else [TopicCoreChanged(self.topic, self.core)]
        )
        if isinstance(self.state, CoreState) and now >= self.state.announce_at:
            output += self._announce(now)
        return output

    def receive_beacon(self, now: float) -> list[Effect]:
        """Extend the interest of a client."""
        self.beacon_until = now + self.settings.beacon_lifetime
        return [*self.handle_timer(now), *self._notify_parents()]

    def set_subscribed(self, is_subscribed: bool, now: float) -> list[Effect]:
        """Set the interest that an observer reports."""
        self.is_subscribed = is_subscribed
        return [*self.handle_timer(now), *(self._notify_parents() if is_subscribed else ())]

    def receive_announcement(
        self, announcement: CoreAnnouncementMessage, now: float
    ) -> list[Effect]:
        """Handle a neighbour's announcement; forward it if it is newer or shorter."""
        if self.settings.node in (announcement.core, announcement.sender):
            return []
        if announcement.distance > DISTANCE_MAX:
            return [MessageIgnored("invalid", f"a distance of {announcement.distance}")]
        distance = announcement.distance + 1
        known = self.core
        match self.state:
            case FollowerState(core=core) as state if core == announcement.core:
                if (announcement.sequence, -distance) < (state.sequence, -state.distance):
                    return []
                if (announcement.sequence, distance) == (state.sequence, state.distance):
                    return self._add_parent(state, announcement.sender)
            case _ if known is not None and known < announcement.core:
                return []
            case _:
                self.child_expiry = {}
        until = now + self.settings.announcement_lifetime
        self._set_state(
            FollowerState(
                announcement.core, announcement.sequence, distance, until, (announcement.sender,)
            )
        )
        output: list[Effect] = (
            [] if known == announcement.core else [TopicCoreChanged(self.topic, announcement.core)]
        )
        if self.has_interest:
            output += self._notify_parents()
        forwarded = replace(announcement, distance=distance + 1, sender=self.settings.node)
        others = [each for each in self.settings.neighbours if each != announcement.sender]
        return [*output, *self._send_to(others, forwarded)]

    def receive_membership(self, membership: MembershipMessage, now: float) -> list[Effect]:
        """Add a neighbour as child if it refers to the current mesh; then our parents need us,
        too."""
        if membership.core != self.core or membership.sender == self.settings.node:
            return []
        if isinstance(self.state, FollowerState) and membership.sequence != self.state.sequence:
            return []
        self.child_expiry[membership.sender] = now + self.settings.announcement_lifetime
        return self._notify_parents()

    def next_deadline(self) -> float | None:
        """Return when `handle_timer` is due."""
        deadlines = [] if self.beacon_until is None else [self.beacon_until]
        match self.state:
            case CoreState(announce_at=due):
                deadlines.append(due)
            case FollowerState(expires_at=until):
                deadlines.append(until)
            case _:
                pass
        return min(deadlines, default=None)

    # ------------------------------------------------------------ internals

    def _set_state(self, state: CoreState | FollowerState | None) -> None:
        if not isinstance(state, FollowerState):
            self.child_expiry = {}
        self.state = state

    def _announce(self, now: float) -> list[Effect]:
        self.state = CoreState(announce_at=now + self.settings.announce_interval)
        self.last_sequence = (
            max(self.last_sequence + 1, int(self.clock_offset + now)) % SEQUENCE_MODULUS
        )
        node = self.settings.node
        announcement = CoreAnnouncementMessage(node, self.last_sequence, distance=0, sender=node)
        return self._send_to(self.settings.neighbours, announcement)

    def _add_parent(self, state: FollowerState, sender: int) -> list[Effect]:
        """Add a parent at the same distance; beyond the redundancy the smallest ids stay."""
        parents = tuple(sorted({*state.parents, sender})[: self.settings.redundancy])
        self.state = replace(
            state, parents=parents, notified_parents=state.notified_parents & {*parents}
        )
        is_member = self.has_interest or bool(state.notified_parents)
        return self._notify_parents() if is_member else []

    def _notify_parents(self) -> list[Effect]:
        """Send our membership to parents that do not know it yet."""
        state = self.state
        if not isinstance(state, FollowerState):
            return []
        not_notified = [parent for parent in state.parents if parent not in state.notified_parents]
        self.state = replace(state, notified_parents=frozenset(state.parents))
        return self._send_to(
            not_notified, MembershipMessage(state.core, state.sequence, self.settings.node)
        )

    def _send_to(
        self,
        neighbours: Iterable[int],
        message: CoreAnnouncementMessage | MembershipMessage | RoutedMessage,
    ) -> list[Effect]:
        return [PublishAtNeighbour(each, self.topic, message) for each in neighbours]
