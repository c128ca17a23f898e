"""The mesh of one topic at one node: who is core, which way it is, who is behind us.

The rules are those of Spohn 2020 as `mqtt-fed` has them. A distance is counted at both ends of a
link, once by the sender and once by the receiver: a node that counted once would look nearer than
it is, and its neighbours would have no second parent beside it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hansa.mqttfed.effects import CoreChanged, Effect, LeftAside, Send
from hansa.mqttfed.messages import NUMBERS, CoreAnnouncement, Membership, Routed
from hansa.mqttfed.settings import FedSettings

DISTANCE_MAX = NUMBERS // 2
"""No federation is so large, and what comes after it still fits the format."""


@dataclass(frozen=True, slots=True)
class Leading:
    """We are core."""

    due: float
    """When the next announcement is."""


@dataclass(frozen=True, slots=True)
class Following:
    """Another node is core."""

    core: int
    number: int
    distance: int
    until: float
    """When the last announcement is forgotten."""
    parents: tuple[int, ...]
    """Nearest neighbours towards the core, ascending."""
    answered: frozenset[int] = frozenset()
    """Parents that know that we are in the mesh."""


@dataclass(slots=True)
class TopicMesh:
    """One topic."""

    topic: str
    settings: FedSettings
    epoch: float
    """Added to `now` it is the least number of an announcement: above those of earlier lives."""
    last: int = 0
    """The number of our own last announcement."""
    state: Leading | Following | None = None
    children: dict[int, float] = field(default_factory=dict)
    """Members behind us, and until when."""
    beacon_until: float | None = None
    is_wanted: bool = False
    """Whether clients want the topic, as somebody else than a beacon says."""

    # ------------------------------------------------------------ what is so

    @property
    def has_interest(self) -> bool:
        """Whether clients of our own broker want the topic."""
        return self.is_wanted or self.beacon_until is not None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to know."""
        return self.state is None and not self.has_interest

    @property
    def core(self) -> int | None:
        """Who is core."""
        if isinstance(self.state, Following):
            return self.state.core
        return self.settings.node if self.state else None

    @property
    def parents(self) -> tuple[int, ...]:
        """The ways to the core."""
        return self.state.parents if isinstance(self.state, Following) else ()

    def children_now(self, now: float) -> tuple[int, ...]:
        """The members behind us, ascending."""
        return tuple(sorted(child for child, until in self.children.items() if now < until))

    def ways(self, sender: int | None, now: float) -> list[int]:
        """Where a publication goes from here: to all parents and children but its sender."""
        ways = {*self.parents, *self.children_now(now)}
        return [way for way in sorted(ways) if way != sender]

    # ------------------------------------------------------------ what happens

    def wake(self, now: float) -> list[Effect]:
        """Look at the clock: beacons and announcements end, a core's next one is due."""
        if self.beacon_until is not None and now >= self.beacon_until:
            self.beacon_until = None
        self.children = {child: end for child, end in self.children.items() if now < end}
        before = self.core
        match self.state:
            case Leading() if not self.has_interest:
                self._become(None)
            case Following(until=until) if now >= until:
                self._become(None)
            case _:
                pass
        if self.state is None and self.has_interest:
            self._become(Leading(due=now))
        told: list[Effect] = [] if self.core == before else [CoreChanged(self.topic, self.core)]
        if isinstance(self.state, Leading) and now >= self.state.due:
            told += self._announce(now)
        return told

    def beacon(self, now: float) -> list[Effect]:
        """A client wants the topic, for a while."""
        self.beacon_until = now + self.settings.beacon_life
        return [*self.wake(now), *self._answer_parents()]

    def want(self, is_wanted: bool, now: float) -> list[Effect]:
        """Clients want the topic, or no more."""
        self.is_wanted = is_wanted
        return [*self.wake(now), *(self._answer_parents() if is_wanted else ())]

    def hear(self, said: CoreAnnouncement, now: float) -> list[Effect]:
        """Take a neighbour's announcement; pass it on if it is newer or shorter."""
        if self.settings.node in (said.core, said.sender):
            return []
        if said.distance > DISTANCE_MAX:
            return [LeftAside("invalid", f"a distance of {said.distance}")]
        distance = said.distance + 1
        known = self.core
        match self.state:
            case Following(core=core) as state if core == said.core:
                if (said.number, -distance) < (state.number, -state.distance):
                    return []
                if (said.number, distance) == (state.number, state.distance):
                    return self._add_parent(state, said.sender)
            case _ if known is not None and known < said.core:
                return []
            case _:
                self.children = {}
        until = now + self.settings.announcement_life
        self._become(Following(said.core, said.number, distance, until, (said.sender,)))
        told: list[Effect] = [] if known == said.core else [CoreChanged(self.topic, said.core)]
        if self.has_interest:
            told += self._answer_parents()
        onward = replace(said, distance=distance + 1, sender=self.settings.node)
        others = [each for each in self.settings.neighbours if each != said.sender]
        return [*told, *self._to(others, onward)]

    def join(self, said: Membership, now: float) -> list[Effect]:
        """Take a neighbour as child, if it means the mesh of now; our parents then need us too."""
        if said.core != self.core or said.sender == self.settings.node:
            return []
        if isinstance(self.state, Following) and said.number != self.state.number:
            return []
        self.children[said.sender] = now + self.settings.announcement_life
        return self._answer_parents()

    def next_deadline(self) -> float | None:
        """When `wake` is due."""
        ends = [] if self.beacon_until is None else [self.beacon_until]
        match self.state:
            case Leading(due=due):
                ends.append(due)
            case Following(until=until):
                ends.append(until)
            case _:
                pass
        return min(ends, default=None)

    # ------------------------------------------------------------ how it is done

    def _become(self, state: Leading | Following | None) -> None:
        if not isinstance(state, Following):
            self.children = {}
        self.state = state

    def _announce(self, now: float) -> list[Effect]:
        self.state = Leading(due=now + self.settings.announce_interval)
        self.last = max(self.last + 1, int(self.epoch + now)) % NUMBERS
        node = self.settings.node
        said = CoreAnnouncement(node, self.last, distance=0, sender=node)
        return self._to(self.settings.neighbours, said)

    def _add_parent(self, state: Following, sender: int) -> list[Effect]:
        """One more way of the same length: of too many, those with the smallest ids stay."""
        parents = tuple(sorted({*state.parents, sender})[: self.settings.redundancy])
        self.state = replace(state, parents=parents, answered=state.answered & {*parents})
        is_member = self.has_interest or bool(state.answered)
        return self._answer_parents() if is_member else []

    def _answer_parents(self) -> list[Effect]:
        """Tell those parents that do not know it yet that we are in the mesh."""
        state = self.state
        if not isinstance(state, Following):
            return []
        waiting = [parent for parent in state.parents if parent not in state.answered]
        self.state = replace(state, answered=frozenset(state.parents))
        return self._to(waiting, Membership(state.core, state.number, self.settings.node))

    def _to(
        self, neighbours: Iterable[int], message: CoreAnnouncement | Membership | Routed
    ) -> list[Effect]:
        return [Send(each, self.topic, message) for each in neighbours]
