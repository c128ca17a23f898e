"""The forwarding plane: what happens to every publication.

It only reads. A strategy compiles its state into one `Entry` per group; a topic's way (`Plan`) is
looked up once and remembered until an entry changes. Windows cut duplicates. No protocol logic.

A copy names the groups that it still has to reach: it travels towards their cores until it meets
their mesh. Within a mesh it needs no name: every member knows by the topic where it belongs.
"""

from collections.abc import Callable, Iterable

from hansa.protocol.effects import Dropped, Effect, Send
from hansa.protocol.forwarding.dedup import Window, Windows
from hansa.protocol.interest.shared_subscriptions import Audience
from hansa.protocol.model import (
    HOPS_MAX,
    NAMED_MAX,
    Group,
    GroupId,
    LinkId,
    NodeId,
    Publication,
    group_id,
)
from hansa.protocol.settings import Outside
from hansa.protocol.topics import FilterTrie

WAITING_MAX = 4_096
"""Changed entries that wait until a plan needs them; more are taken at once."""


Ways = Callable[[NodeId], tuple[LinkId, ...]]
"""From the origin of a copy to the links it goes to."""


class Entry:
    """What to do with publications of one group at this node."""

    __slots__ = ("cut_off", "group", "id", "member", "neighbours", "towards", "ways")

    def __init__(
        self,
        group: Group,
        member: bool,
        neighbours: tuple[LinkId, ...] = (),
        towards: tuple[LinkId, ...] = (),
        cut_off: bool = False,
        ways: Ways | None = None,
    ) -> None:
        """Spread to all mesh neighbours if a member, else pass on towards the core. A member that
        is cut off has no way to the rest of its mesh: what starts here is counted as dropped.
        Where the origin matters, `ways` tells the neighbours for what started elsewhere."""
        self.group = group
        self.id = group_id(group)
        self.member = member
        self.neighbours = neighbours
        self.towards = towards
        self.cut_off = cut_off
        self.ways = ways

    def same_as(self, other: "Entry | None") -> bool:
        """Whether replacing one by the other would change nothing."""
        return other is not None and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )


Mould = tuple[tuple[LinkId, ...], bytes, bytes]
"""Links, and what stands before and after the number in a frame that goes there (see `plane`)."""


class Plan:
    """The way of one topic: where it spreads, which groups need a name, whether it stays here."""

    __slots__ = ("audience", "deliver", "groups", "moulds", "spread", "towards", "ways")

    def __init__(self, entries: list[Entry], deliver: bool) -> None:
        """Join the entries of all groups that match the topic."""
        self.deliver = deliver
        self.audience: Audience | None = None
        """The nodes that want it, once a publication asked for them."""
        self.moulds: tuple[Mould, ...] | None = None
        self.groups = tuple(entry.id for entry in entries)
        self.spread = tuple(
            dict.fromkeys(link for entry in entries if entry.member for link in entry.neighbours)
        )
        self.towards = {
            entry.id: entry.towards for entry in entries if entry.cut_off or not entry.member
        }
        self.ways = tuple(entry.ways for entry in entries if entry.ways is not None)

    def spread_from(self, origin: NodeId) -> tuple[LinkId, ...]:
        """Return where a copy spreads that started elsewhere."""
        if not self.ways:
            return self.spread
        return tuple(dict.fromkeys(link for ways in self.ways for link in ways(origin)))


Shortcut = tuple[str | None, tuple[LinkId, ...], tuple[GroupId, ...]]
"""What becomes of a new copy of one topic that comes from one link and names certain groups: the
topic if it is delivered here, the links it goes to, and the groups that it goes on towards: all
that it names, or none, for it has met the mesh of each (see `plane`)."""


class Table:
    """The entries of all groups, and the plans and shortcuts made from them."""

    def __init__(
        self,
        wanted: FilterTrie[int],
        plans_max: int,
        changes: Callable[[], Iterable[Entry | Group]],
    ) -> None:
        """Start empty; `wanted` are the filters of this node's own clients, `changes` returns what
        a strategy has compiled anew: an entry is set, a bare group forgotten."""
        self._wanted = wanted
        self._changes = changes
        self._plans_max = plans_max
        self._entries: FilterTrie[Entry] = FilterTrie()
        self.plans: dict[str, Plan] = {}
        self.shortcuts: dict[LinkId, dict[bytes, Shortcut]] = {}
        self.by_origin = False
        """Whether ways depend on the origin: then shortcuts do."""

    def __len__(self) -> int:
        """Return how many groups are known."""
        return len(self._entries)

    @property
    def plan_count(self) -> int:
        """How many topics are remembered."""
        return len(self.plans)

    def put(self, entry: Entry) -> None:
        """Set a group's entry."""
        if not entry.same_as(self._entries.get(entry.group)):
            self._entries.put(entry.group, entry)
            self.by_origin |= entry.ways is not None
            self.forget_plans()

    def remove(self, group: Group) -> None:
        """Forget a group."""
        if self._entries.remove(group):
            self.forget_plans()

    def outdate(self, waiting: int) -> None:
        """So many entries have changed: plans made from the old ones are void. They are compiled
        when a plan is needed, so that a burst of news costs no more than its last word."""
        if waiting:
            self.forget_plans()
        if waiting > WAITING_MAX:
            self.refresh()

    def refresh(self) -> None:
        """Take all changes."""
        for change in self._changes():
            if isinstance(change, Entry):
                self.put(change)
            else:
                self.remove(change)

    def forget_plans(self) -> None:
        """What is wanted here has changed, or where a group leads."""
        self.plans.clear()
        self.shortcuts.clear()

    def plan(self, topic: str) -> Plan:
        """Return the way of a topic."""
        found = self.plans.get(topic)
        if found is not None:
            return found
        self.refresh()
        if len(self.plans) >= self._plans_max:
            self.plans.clear()
        plan = Plan(self._entries.match(topic), bool(self._wanted.match(topic)))
        self.plans[topic] = plan
        return plan

    def delivers(self, topic: str) -> bool:
        """Whether a client here wants a topic."""
        return self.plan(topic).deliver


Copies = list[tuple[LinkId, tuple[GroupId, ...]]]
"""Where copies go, each with the groups it still has to reach."""


def pick(outside: Outside, links: tuple[LinkId, ...], number: int) -> tuple[LinkId, ...]:
    """Choose among the links towards a core; the publication's number serves as the dice."""
    if outside is Outside.ONE:
        return links[:1]
    if outside is Outside.ALL:
        return links
    mixed = (number * 0x9E3779B97F4A7C15) & ((1 << 64) - 1)
    return (links[(mixed >> 32) % len(links)],)


class Forwarder:
    """Decides for one copy at a time."""

    def __init__(self, table: Table, windows: Windows, outside: Outside) -> None:
        """Read from a table, remember in windows."""
        self._table = table
        self._windows = windows
        self._outside = outside

    def first(self, publication: Publication) -> tuple[Copies, list[GroupId]]:
        """A publication starts here; return its copies, and the groups it could not be sent to."""
        plan = self._table.plan(publication.topic)
        window = self._windows.get(publication.origin, publication.life, publication.qos > 0)
        assert window is not None, "our own life is the newest"
        window.add(publication.number)
        return self._copies(plan, tuple(plan.towards), plan.spread, None, window, publication)

    def next(
        self, publication: Publication, sender: LinkId
    ) -> tuple[bool, bool, Copies, list[GroupId]]:
        """A copy arrived; return whether it is new, whether to deliver it here, its copies, and
        the groups that it could not be sent to."""
        window = self._windows.get(publication.origin, publication.life, publication.qos > 0)
        if window is None:
            return False, False, [], []
        plan = self._table.plan(publication.topic)
        new = window.add(publication.number)
        if publication.hops >= HOPS_MAX:
            spreads = new and any(link != sender for link in plan.spread_from(publication.origin))
            return (
                new,
                new and plan.deliver,
                [],
                list(plan.groups if spreads else publication.named),
            )
        spread = plan.spread_from(publication.origin) if new else ()
        copies, stuck = self._copies(plan, publication.named, spread, sender, window, publication)
        return new, new and plan.deliver, copies, stuck

    def _copies(  # the fast path: one call, no objects
        self,
        plan: Plan,
        named: tuple[GroupId, ...],
        spread: tuple[LinkId, ...],
        sender: LinkId | None,
        window: Window,
        publication: Publication,
    ) -> tuple[Copies, list[GroupId]]:
        if not named:
            return [(link, ()) for link in spread if link != sender], []
        if len(named) == 1 and not spread:  # most copies on their way to a mesh
            links = self._towards(plan, named[0], sender, window, publication.number)
            return [(link, named) for link in links or ()], list(named) if links == () else []
        names: dict[LinkId, list[GroupId]] = {link: [] for link in spread if link != sender}
        stuck: list[GroupId] = []
        for group in named:
            links = self._towards(plan, group, sender, window, publication.number)
            if links == ():
                stuck.append(group)
            for link in links or ():
                names.setdefault(link, []).append(group)
        return [(link, tuple(groups)) for link, groups in names.items()], stuck

    def _towards(
        self, plan: Plan, group: GroupId, sender: LinkId | None, window: Window, number: int
    ) -> tuple[LinkId, ...] | None:
        """Return the links towards a group's core; none of them if there is no way, None if this
        copy need not go there."""
        towards = plan.towards.get(group)
        if towards is None:
            return None  # this node is in the mesh, or nobody wants the group any more
        if not window.new_towards(number, group):
            return None
        if sender in towards:
            towards = tuple(link for link in towards if link != sender)
        return pick(self._outside, towards, number) if towards else ()


def shortcut(copy: Publication, plan: Plan, sender: LinkId, outside: Outside) -> Shortcut | None:
    """Return what `Forwarder.next` decides for every new copy with these names, and of this origin
    where that matters; None if copies differ, if their names change on the way, or if there is
    something to tell."""
    delivered = copy.topic if plan.deliver else None
    spread = plan.spread_from(copy.origin)
    if not any(group in plan.towards for group in copy.named):
        return delivered, tuple(link for link in spread if link != sender), ()
    if spread or outside is Outside.RANDOM:
        return None
    ways = {
        tuple(link for link in plan.towards.get(group, ()) if link != sender)
        for group in copy.named
    }
    links = ways.pop()
    if ways or not links:
        return None
    return delivered, pick(outside, links, 0), copy.named


def as_sends(publication: Publication, copies: Copies, hops: int) -> list[Effect]:
    """Return one frame per copy; copies with the same names share it."""
    frames: dict[tuple[GroupId, ...], Publication] = {}
    sends: list[Effect] = []
    for link, groups in copies:
        # More names than fit go in further copies; the receiver serves each for its names only.
        for at in range(0, len(groups) or 1, NAMED_MAX):
            named = groups[at : at + NAMED_MAX]
            frame = frames.get(named)
            if frame is None:
                frame = frames[named] = publication.onward(hops, named)
            sends.append(Send(link, frame))
    return sends


def as_drops(publication: Publication, stuck: list[GroupId]) -> list[Effect]:
    """Return the news of groups that a copy could not be sent to."""
    reason = "hop limit" if publication.hops >= HOPS_MAX else "no way to the core"
    return [Dropped(publication.origin, publication.number, reason) for _ in stuck]
