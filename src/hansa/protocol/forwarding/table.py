"""The forwarding table, and the decision for one copy.

A strategy compiles its state into one `GroupEntry` per group. The `TopicPlan` of a topic is made
from them and cached until an entry changes. Nothing here changes protocol state, except that
duplicate windows record each copy.

A copy names its target groups: it travels towards their cores until it reaches a member of their
mesh. Within a mesh it names none: every member finds the groups by the topic.
"""

from collections.abc import Callable, Collection, Iterable

from hansa.protocol.effects import Dropped, Effect, Send
from hansa.protocol.forwarding.dedup import DuplicateFilter, SequenceWindow
from hansa.protocol.interest.shared_subscriptions import TopicInterest
from hansa.protocol.model import (
    HOPS_MAX,
    TARGET_GROUPS_MAX,
    Group,
    GroupId,
    LinkId,
    NodeId,
    Publication,
    group_id,
)
from hansa.protocol.settings import NonMemberForwarding
from hansa.protocol.topics import FilterTrie

STALE_ENTRIES_MAX = 4_096
"""Changed entries that wait until a plan needs them; more are applied at once."""


OriginRoutes = Callable[[NodeId], tuple[LinkId, ...]]
"""Returns the links for a copy of an origin."""


class GroupEntry:
    """How to forward publications of one group at this node."""

    __slots__ = (
        "is_cut_off",
        "group",
        "id",
        "is_member",
        "mesh_links",
        "core_links",
        "origin_routes",
    )

    def __init__(
        self,
        group: Group,
        is_member: bool,
        mesh_links: tuple[LinkId, ...] = (),
        core_links: tuple[LinkId, ...] = (),
        is_cut_off: bool = False,
        origin_routes: OriginRoutes | None = None,
    ) -> None:
        """A member sends to all its mesh links, another node towards the core. `is_cut_off`: a
        member without a route to the rest of its mesh; local publications count as dropped.
        `origin_routes` returns the links for publications of other origins, where they depend on
        the origin."""
        self.group = group
        self.id = group_id(group)
        self.is_member = is_member
        self.mesh_links = mesh_links
        self.core_links = core_links
        self.is_cut_off = is_cut_off
        self.origin_routes = origin_routes

    def is_equivalent(self, other: "GroupEntry | None") -> bool:
        """Whether replacing one by the other would change nothing."""
        return other is not None and self.content() == other.content()

    def content(self) -> tuple[object, ...]:
        return (
            self.group,
            self.is_member,
            self.mesh_links,
            self.core_links,
            self.is_cut_off,
            self.origin_routes,
        )


FrameTemplate = tuple[tuple[LinkId, ...], bytes, bytes]
"""Links, and the bytes before and after the sequence number in a frame for them (see `engine`)."""


class TopicPlan:
    """How to forward one topic: mesh links, target groups with links towards their cores, and
    whether it is delivered locally."""

    __slots__ = (
        "interest",
        "deliver_locally",
        "group_ids",
        "frame_templates",
        "mesh_links",
        "core_links",
        "origin_routes",
        "_refused_links",
    )

    def __init__(
        self,
        entries: list[GroupEntry],
        deliver_locally: bool,
        refused_links: Collection[LinkId] = (),
    ) -> None:
        """Combine the entries of all groups that match the topic. Neighbours behind
        `refused_links` may not get it."""
        self._refused_links = refused_links
        self.deliver_locally = deliver_locally
        self.interest: TopicInterest | None = None
        """The interested nodes, once a publication needed them."""
        self.frame_templates: tuple[FrameTemplate, ...] | None = None
        self.group_ids = tuple(entry.id for entry in entries)
        self.mesh_links = tuple(
            dict.fromkeys(
                link
                for entry in entries
                if entry.is_member
                for link in entry.mesh_links
                if link not in refused_links
            )
        )
        self.core_links = {
            entry.id: entry.core_links
            for entry in entries
            if entry.is_cut_off or not entry.is_member
        }
        self.origin_routes = tuple(
            entry.origin_routes for entry in entries if entry.origin_routes is not None
        )

    def mesh_links_from(self, origin: NodeId) -> tuple[LinkId, ...]:
        """Return the links within the mesh for a copy of another origin."""
        if not self.origin_routes:
            return self.mesh_links
        return tuple(
            dict.fromkeys(
                link
                for routes in self.origin_routes
                for link in routes(origin)
                if link not in self._refused_links
            )
        )


FlowEntry = tuple[str | None, tuple[LinkId, ...], tuple[GroupId, ...]]
"""How to handle a new copy of one topic from one link with certain target groups: the topic if it
is delivered locally, the links, and the target groups that stay: all of them, or none if the mesh
of each is reached (see `engine`)."""


class ForwardingTable:
    """The entries of all groups, and the plans and flows made from them."""

    def __init__(
        self,
        local_filters: FilterTrie[int],
        plans_max: int,
        drain_changes: Callable[[], Iterable[GroupEntry | Group]],
        links_refused: Callable[[str], Collection[LinkId]] = lambda topic: (),
    ) -> None:
        """`local_filters` are the filters of local clients. `drain_changes` returns what the
        strategy compiled: entries, or bare groups to remove; `links_refused` the links to
        neighbours that may not get a topic."""
        self._links_refused = links_refused
        self._local_filters = local_filters
        self._drain_changes = drain_changes
        self._plans_max = plans_max
        self._entries: FilterTrie[GroupEntry] = FilterTrie()
        self.plans: dict[str, TopicPlan] = {}
        self.flow_cache: dict[LinkId, dict[bytes, FlowEntry]] = {}
        self.depends_on_origin = False
        """Whether links, or the right to publish, depend on the origin: then flows do."""

    def __len__(self) -> int:
        """Return the number of known groups."""
        return len(self._entries)

    @property
    def plan_count(self) -> int:
        """Number of cached plans."""
        return len(self.plans)

    def put(self, entry: GroupEntry) -> None:
        """Set a group's entry."""
        if not entry.is_equivalent(self._entries.get(entry.group)):
            self._entries.put(entry.group, entry)
            self.depends_on_origin |= entry.origin_routes is not None
            self.clear_plans()

    def remove(self, group: Group) -> None:
        if self._entries.remove(group):
            self.clear_plans()

    def invalidate_plans(self, waiting: int) -> None:
        """So many entries are stale: drop the plans made from them. Entries are compiled when a
        plan needs them, so a burst of changes costs one compilation."""
        if waiting:
            self.clear_plans()
        if waiting > STALE_ENTRIES_MAX:
            self.apply_changes()

    def apply_changes(self) -> None:
        for change in self._drain_changes():
            if isinstance(change, GroupEntry):
                self.put(change)
            else:
                self.remove(change)

    def key_flows_by_origin(self) -> None:
        """From now on flows depend on the origin: not every node may publish to every topic."""
        self.depends_on_origin = True
        self.clear_plans()

    def clear_plans(self) -> None:
        """The local interest, or the entry of a group, has changed."""
        self.plans.clear()
        self.flow_cache.clear()

    def matching_entries(self, topic: str) -> list[GroupEntry]:
        self.apply_changes()
        return self._entries.match(topic)

    def plan(self, topic: str) -> TopicPlan:
        found = self.plans.get(topic)
        if found is not None:
            return found
        self.apply_changes()
        if len(self.plans) >= self._plans_max:
            self.plans.clear()
        plan = TopicPlan(
            self._entries.match(topic),
            bool(self._local_filters.match(topic)),
            self._links_refused(topic),
        )
        self.plans[topic] = plan
        return plan


Copies = list[tuple[LinkId, tuple[GroupId, ...]]]
"""Links of copies, each with the target groups of its copy."""


def select_core_links(
    non_member_forwarding: NonMemberForwarding, links: tuple[LinkId, ...], number: int
) -> tuple[LinkId, ...]:
    """Select links towards a core; the sequence number replaces a random number."""
    if non_member_forwarding is NonMemberForwarding.ONE:
        return links[:1]
    if non_member_forwarding is NonMemberForwarding.ALL:
        return links
    mixed = (number * 0x9E3779B97F4A7C15) & ((1 << 64) - 1)
    return (links[(mixed >> 32) % len(links)],)


class Forwarder:
    """Decides for one copy at a time."""

    def __init__(
        self,
        table: ForwardingTable,
        windows: DuplicateFilter,
        non_member_forwarding: NonMemberForwarding,
        may_relay: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may_relay`: whether this node forwards copies of others."""
        self._table = table
        self._windows = windows
        self._may_relay = may_relay
        self._non_member_forwarding = non_member_forwarding

    def copies_of_local(self, publication: Publication) -> tuple[Copies, list[GroupId]]:
        """A local publication; return its copies, and the groups without a route."""
        plan = self._table.plan(publication.topic)
        window = self._windows.window_for(
            publication.origin, publication.epoch, publication.qos > 0
        )
        assert window is not None, "the window of our own newest epoch always exists"
        window.add(publication.sequence)
        return self._make_copies(
            plan, tuple(plan.core_links), plan.mesh_links, None, window, publication
        )

    def copies_of_received(
        self, publication: Publication, sender: LinkId
    ) -> tuple[bool, bool, Copies, list[GroupId]]:
        """A copy arrived; return whether it is new, whether to deliver it locally, its copies, and
        the groups without a route."""
        window = self._windows.window_for(
            publication.origin, publication.epoch, publication.qos > 0
        )
        if window is None:
            return False, False, [], []
        return self._decide_received(publication, sender, window)

    def dry_run(
        self, publication: Publication, sender: LinkId | None, is_new: bool
    ) -> tuple[Copies, list[GroupId]]:
        """Return the copies of a publication, and the groups without a route; `sender` is None for
        a local one. Nothing is recorded."""
        window = SequenceWindow(1)
        if not is_new:
            window.add(publication.sequence)
        if sender is None:
            plan = self._table.plan(publication.topic)
            return self._make_copies(
                plan, tuple(plan.core_links), plan.mesh_links, None, window, publication
            )
        return self._decide_received(publication, sender, window)[2:]

    def _decide_received(
        self, publication: Publication, sender: LinkId, window: SequenceWindow
    ) -> tuple[bool, bool, Copies, list[GroupId]]:
        plan = self._table.plan(publication.topic)
        new = window.add(publication.sequence)
        if not self._may_relay():
            return new, new and plan.deliver_locally, [], []
        if publication.hops >= HOPS_MAX:
            spreads = new and any(
                link != sender for link in plan.mesh_links_from(publication.origin)
            )
            return (
                new,
                new and plan.deliver_locally,
                [],
                list(plan.group_ids if spreads else publication.target_groups),
            )
        spread = plan.mesh_links_from(publication.origin) if new else ()
        copies, unroutable = self._make_copies(
            plan, publication.target_groups, spread, sender, window, publication
        )
        return new, new and plan.deliver_locally, copies, unroutable

    def _make_copies(
        self,
        plan: TopicPlan,
        target_groups: tuple[GroupId, ...],
        spread: tuple[LinkId, ...],
        sender: LinkId | None,
        window: SequenceWindow,
        publication: Publication,
    ) -> tuple[Copies, list[GroupId]]:
        if not target_groups:
            return [(link, ()) for link in spread if link != sender], []
        if len(target_groups) == 1 and not spread:  # most copies on their way to a mesh
            links = self._core_links(plan, target_groups[0], sender, window, publication.sequence)
            return [(link, target_groups) for link in links or ()], list(
                target_groups
            ) if links == () else []
        names: dict[LinkId, list[GroupId]] = {link: [] for link in spread if link != sender}
        unroutable: list[GroupId] = []
        for group in target_groups:
            links = self._core_links(plan, group, sender, window, publication.sequence)
            if links == ():
                unroutable.append(group)
            for link in links or ():
                names.setdefault(link, []).append(group)
        return [(link, tuple(groups)) for link, groups in names.items()], unroutable

    def _core_links(
        self,
        plan: TopicPlan,
        group: GroupId,
        sender: LinkId | None,
        window: SequenceWindow,
        number: int,
    ) -> tuple[LinkId, ...] | None:
        """Return the links towards a group's core: empty without a route, None if this copy need
        not go there."""
        core_links = plan.core_links.get(group)
        if core_links is None:
            return None  # this node is in the mesh, or no node is interested any more
        if not window.mark_sent_towards(number, group):
            return None
        if sender in core_links:
            core_links = tuple(link for link in core_links if link != sender)
        return (
            select_core_links(self._non_member_forwarding, core_links, number) if core_links else ()
        )


def make_flow_entry(
    copy: Publication, plan: TopicPlan, sender: LinkId, non_member_forwarding: NonMemberForwarding
) -> FlowEntry | None:
    """Return what `Forwarder` decides for every new copy with these target groups, and of this
    origin where that matters; None if copies differ, if their target groups change, or if there is
    something to report."""
    delivered = copy.topic if plan.deliver_locally else None
    spread = plan.mesh_links_from(copy.origin)
    if not any(group in plan.core_links for group in copy.target_groups):
        return delivered, tuple(link for link in spread if link != sender), ()
    if spread or non_member_forwarding is NonMemberForwarding.RANDOM:
        return None
    routes = {
        tuple(link for link in plan.core_links.get(group, ()) if link != sender)
        for group in copy.target_groups
    }
    links = routes.pop()
    if routes or not links:
        return None
    return delivered, select_core_links(non_member_forwarding, links, 0), copy.target_groups


def send_effects(publication: Publication, copies: Copies, hops: int) -> list[Effect]:
    """Return one frame per copy; copies with equal target groups share it."""
    frames: dict[tuple[GroupId, ...], Publication] = {}
    sends: list[Effect] = []
    for link, groups in copies:
        # Groups beyond the limit go in further copies; the receiver handles each for its own
        # groups.
        for at in range(0, len(groups) or 1, TARGET_GROUPS_MAX):
            target_groups = groups[at : at + TARGET_GROUPS_MAX]
            frame = frames.get(target_groups)
            if frame is None:
                frame = frames[target_groups] = publication.forwarded_copy(hops, target_groups)
            sends.append(Send(link, frame))
    return sends


def drop_effects(publication: Publication, unroutable: list[GroupId]) -> list[Effect]:
    """Return a `Dropped` for each group without a route."""
    reason = "hop limit" if publication.hops >= HOPS_MAX else "no route to the core"
    return [Dropped(publication.origin, publication.sequence, reason) for _ in unroutable]
