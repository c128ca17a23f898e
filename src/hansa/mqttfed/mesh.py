"""The mesh of one topic at one node: who is core, which way it is, who is behind us.

The rules are those of Spohn 2020 as `mqtt-fed` has them. A distance is counted at both ends of a
link, once by the sender and once by the receiver: a node that counted once would look nearer than
it is, and its neighbours would have no second parent beside it.
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
"""No federation is so large, and what comes after it still fits the format."""


@dataclass(frozen=True, slots=True)
class CoreState:
    """We are core."""

    announce_at: float
    """When the next announcement is."""


@dataclass(frozen=True, slots=True)
class FollowerState:
    """Another node is core."""

    core: int
    sequence: int
    distance: int
    expires_at: float
    """When the last announcement is forgotten."""
    parents: tuple[int, ...]
    """Nearest neighbours towards the core, ascending."""
    notified_parents: frozenset[int] = frozenset()
    """Parents that know that we are in the mesh."""


@dataclass(slots=True)
class TopicMesh:
    """One topic."""

    topic: str
    settings: FedSettings
    clock_offset: float
    """Added to `now` it is the least number of an announcement: above those of earlier lives."""
    last_sequence: int = 0
    """The number of our own last announcement."""
    state: CoreState | FollowerState | None = None
    child_expiry: dict[int, float] = field(default_factory=dict)
    """Members behind us, and until when."""
    beacon_until: float | None = None
    is_subscribed: bool = False
    """Whether clients want the topic, as somebody else than a beacon says."""

    # ------------------------------------------------------------ what is so

    @property
    def has_interest(self) -> bool:
        """Whether clients of our own broker want the topic."""
        return self.is_subscribed or self.beacon_until is not None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to know."""
        return self.state is None and not self.has_interest

    @property
    def core(self) -> int | None:
        """Who is core."""
        if isinstance(self.state, FollowerState):
            return self.state.core
        return self.settings.node if self.state else None

    @property
    def parents(self) -> tuple[int, ...]:
        """The ways to the core."""
        return self.state.parents if isinstance(self.state, FollowerState) else ()

    def live_children(self, now: float) -> tuple[int, ...]:
        """The members behind us, ascending."""
        return tuple(sorted(child for child, until in self.child_expiry.items() if now < until))

    def next_hops(self, sender: int | None, now: float) -> list[int]:
        """Where a publication goes from here: to all parents and children but its sender."""
        neighbours = {*self.parents, *self.live_children(now)}
        return [way for way in sorted(neighbours) if way != sender]

    # ------------------------------------------------------------ what happens

    def handle_timer(self, now: float) -> list[Effect]:
        """Look at the clock: beacons and announcements end, a core's next one is due."""
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
        """A client wants the topic, for a while."""
        self.beacon_until = now + self.settings.beacon_lifetime
        return [*self.handle_timer(now), *self._notify_parents()]

    def set_subscribed(self, is_subscribed: bool, now: float) -> list[Effect]:
        """Clients want the topic, or no more."""
        self.is_subscribed = is_subscribed
        return [*self.handle_timer(now), *(self._notify_parents() if is_subscribed else ())]

    def receive_announcement(
        self, announcement: CoreAnnouncementMessage, now: float
    ) -> list[Effect]:
        """Take a neighbour's announcement; pass it on if it is newer or shorter."""
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
        """Take a neighbour as child, if it means the mesh of now; our parents then need us too."""
        if membership.core != self.core or membership.sender == self.settings.node:
            return []
        if isinstance(self.state, FollowerState) and membership.sequence != self.state.sequence:
            return []
        self.child_expiry[membership.sender] = now + self.settings.announcement_lifetime
        return self._notify_parents()

    def next_deadline(self) -> float | None:
        """When `wake` is due."""
        deadlines = [] if self.beacon_until is None else [self.beacon_until]
        match self.state:
            case CoreState(announce_at=due):
                deadlines.append(due)
            case FollowerState(expires_at=until):
                deadlines.append(until)
            case _:
                pass
        return min(deadlines, default=None)

    # ------------------------------------------------------------ how it is done

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
        """One more way of the same length: of too many, those with the smallest ids stay."""
        parents = tuple(sorted({*state.parents, sender})[: self.settings.redundancy])
        self.state = replace(
            state, parents=parents, notified_parents=state.notified_parents & {*parents}
        )
        is_member = self.has_interest or bool(state.notified_parents)
        return self._notify_parents() if is_member else []

    def _notify_parents(self) -> list[Effect]:
        """Tell those parents that do not know it yet that we are in the mesh."""
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
