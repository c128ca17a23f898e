"""The mesh strategy (Spohn 2020): cores, announcements, parents and members of groups.

It connects independent machines: `election` elects cores, `announcer` schedules this node's
announcements as a core, `routes` selects parents towards cores, `announcement_request` asks for
missing announcements, `members` keeps mesh membership. This module passes changes from one to the
next and compiles the entries of the affected groups.
"""

from collections.abc import Callable, Iterable
from typing import ClassVar

from hansa.protocol.deadlines import earliest
from hansa.protocol.effects import Ignored, MeshJoined, MeshLeft, ParentsChanged
from hansa.protocol.forwarding.table import GroupEntry
from hansa.protocol.membership.records import ClaimsRecord, Stamp
from hansa.protocol.model import HOPS_MAX, MANAGEMENT_GROUP, Group, GroupId, NodeId, group_id
from hansa.protocol.routing.base import (
    TOO_SHORT,
    CoreStatus,
    GroupStatus,
    StrategyContext,
    StrategyInvariant,
)
from hansa.protocol.routing.mesh.announcement_request import AnnouncementRequests
from hansa.protocol.routing.mesh.announcer import Announcer
from hansa.protocol.routing.mesh.election import Election
from hansa.protocol.routing.mesh.members import MeshMembers
from hansa.protocol.routing.mesh.routes import CoreRoutes
from hansa.protocol.routing.output import SendToNeighbour, StrategyOutput
from hansa.protocol.wire.bounds import FLAGS_MAX
from hansa.protocol.wire.frames import (
    UNREACHABLE,
    AnnouncementRequest,
    ControlFrame,
    CoreAnnouncement,
    MeshMembership,
)

GROUPS_PER_FRAME_MAX = 200
"""Groups in one membership frame, so that it fits whatever their length."""

EARLY_GROUPS_MAX = 64
"""Groups that a relaying neighbour may join before this node knows the interest in them, the
management group included: a refused membership is not repeated."""


class MeshStrategy:
    """One node's part in the meshes of all groups."""

    invariants: ClassVar[frozenset[StrategyInvariant]] = frozenset(StrategyInvariant) - {
        StrategyInvariant.FOLLOWS_DATABASE,
        StrategyInvariant.SHORTEST_PATHS_FROM_ORIGIN,
    }

    def __init__(self, context: StrategyContext) -> None:
        self._context = context
        self._self = context.node
        self._settings = context.settings
        self._election = Election(
            context.node,
            context.settings,
            context.graph,
            context.index,
            context.capacity,
            context.may_be_core,
        )
        self._routes = CoreRoutes(self._settings.redundancy, context.cost, context.least_distance)
        self._members = MeshMembers(self._settings.linger)
        self.flags: dict[tuple[NodeId, NodeId], frozenset[GroupId]] = {}
        self._announcer = Announcer(self._settings)
        self._announcement_requests = AnnouncementRequests(self._settings)
        # cores that may have lost or found their route
        self._cores_to_check: dict[NodeId, None] = {}
        self._groups_to_update: dict[Group, None] = {MANAGEMENT_GROUP: None}
        self._stale_groups: dict[Group, None] = {}  # groups whose entry may have changed

    # ------------------------------------------------------------ changes

    def neighbour_up(self, node: NodeId, now: float) -> StrategyOutput:
        """Announce every known route to a new neighbour (rule 4.6)."""
        output: StrategyOutput = [
            SendToNeighbour(node, self._make_announcement(core))
            for core in self._routes.routes
            if self._routes.has_route(core)
        ]
        return output + self._finish_input(now)

    def neighbour_down(self, node: NodeId, now: float) -> StrategyOutput:
        """Remaining parents continue; without one, announce that and ask the core (rule 4.7)."""
        output = self._reselect_parents(lambda: self._routes.remove_neighbour(node), now)
        self._schedule_update(self._members.remove_neighbour(node))
        self.flags = {key: flags for key, flags in self.flags.items() if key[1] != node}
        return output + self._finish_input(now)

    def costs_changed(self, now: float) -> StrategyOutput:
        """Select parents again."""
        return self._reselect_parents(self._routes.update_link_costs, now) + self._finish_input(now)

    def map_changed(self, now: float) -> StrategyOutput:
        """Select parents again where the map contradicted an announcement (rule 4.12)."""
        if not self._routes.corrected_cores:
            return []
        return self._reselect_parents(self._routes.update_corrected, now) + self._finish_input(now)

    def incarnation_raised(self, now: float) -> StrategyOutput:
        """Announce this node under its new incarnation, if it is a core."""
        if self._announces_itself:
            self._announcer.schedule_announcement(now)
        return self._finish_input(now)

    def nodes_changed(
        self, joined: Iterable[NodeId], lost: Iterable[NodeId], now: float
    ) -> StrategyOutput:
        """Elect again wherever these nodes are candidates."""
        joined, lost = list(joined), list(lost)
        groups: dict[Group, None] = {}
        for node in (*joined, *lost):
            for names in (self._context.claims_of(node), self._context.groups_of(node)):
                groups.update(dict.fromkeys(names))
        self._announcement_requests.cancel(lost)
        output = self._elect_management_core(joined, now)
        return output + self._evaluate_cores(groups, now) + self._finish_input(now)

    def announcement_missed(self, core: NodeId, now: float) -> None:
        self._announcement_requests.request_once(core, now)

    def interest_changed(self, groups: Iterable[Group], now: float) -> StrategyOutput:
        """Elect again; join or leave meshes."""
        return self._evaluate_cores(groups, now) + self._finish_input(now)

    def claims_changed(
        self, node: NodeId, added: Iterable[Group], removed: Iterable[Group], now: float
    ) -> StrategyOutput:
        """Elect again."""
        groups = dict.fromkeys([*added, *removed])
        self._election.apply_claims(node, added, removed)
        return self._evaluate_cores(groups, now) + self._finish_input(now)

    def expire_node(self, node: NodeId) -> None:
        self._routes.expire_node(node)
        self._announcement_requests.expire_node(node)
        self.flags = {key: flags for key, flags in self.flags.items() if key[0] != node}

    def receive(self, sender: NodeId, frame: ControlFrame, now: float) -> StrategyOutput:
        """Handle an announcement, a membership or an announcement request."""
        output: StrategyOutput = []
        match frame:
            case CoreAnnouncement():
                output = self._receive_announcement(sender, frame, now)
            case MeshMembership():
                output = self._receive_membership(sender, frame)
            case AnnouncementRequest():
                output = self._receive_request(sender, frame, now)
            case _:
                pass  # a frame of another strategy: the hello has ruled that out
        return output + self._finish_input(now)

    # ------------------------------------------------------------ time

    def handle_timer(self, now: float) -> StrategyOutput:
        """Do everything that is due."""
        output: StrategyOutput = []
        if self._announcer.claim_management_if_due(now):
            self._announcer.schedule_announcement(now)
        output += self._evaluate_cores(self._election.due_groups(now), now)
        output += self._notify_former_parents(now)
        for core in self._announcement_requests.pop_due(now):
            output += self._request_announcement(core)
        return output + self._finish_input(now)

    def next_deadline(self) -> float | None:
        """When `handle_timer` is due."""
        return earliest(
            self._announcer.next_deadline(),
            self._election.next_deadline(),
            self._members.next_deadline(),
            self._announcement_requests.next_deadline(),
        )

    # ------------------------------------------------------------ cores

    def _evaluate_cores(self, groups: Iterable[Group], now: float) -> StrategyOutput:
        output: StrategyOutput = []
        for group in groups:
            if group == MANAGEMENT_GROUP:
                continue  # it cannot be claimed
            self._groups_to_update[group] = None
            claimed = group in self._election.own_claims
            cores = [self._election.cores.get(group)]
            if effects := self._election.evaluate(group, now):
                cores.append(self._election.cores.get(group))
                self._schedule_core_check(core for core in cores if core is not None)
                output += effects
            if claimed != (group in self._election.own_claims):
                self._announcer.schedule_announcement(now)
        return output

    def _elect_management_core(self, joined: list[NodeId], now: float) -> StrategyOutput:
        """The best reachable node is core of the management group, after a delay."""
        self._schedule_core_check([self._election.cores[MANAGEMENT_GROUP]])
        output: StrategyOutput = [*self._election.evaluate_management(joined)]
        self._schedule_core_check(self._election.groups_by_core)  # other cores may be reachable now
        self._groups_to_update[MANAGEMENT_GROUP] = None
        self._announcer.update_management_core(self._is_management_core, now)
        return output

    def _announce_own_groups(self, now: float) -> StrategyOutput:
        """Announce this node as core of all its groups, with the changed claims (rule 4.1)."""
        claimed = dict.fromkeys(self._context.claims_of(self._self))
        added = [group for group in self._election.own_claims if group not in claimed]
        removed = [group for group in claimed if group not in self._election.own_claims]
        records: list[ClaimsRecord | None] = [*self._context.claim(added, removed, now)]
        output: StrategyOutput = []
        for record in records or [None]:
            stamp = (self._context.incarnation(), self._announcer.start_announcement(now))
            signature = self._context.sign_announcement(self._self, stamp)
            self._routes.set_own_route(self._self, stamp, signature)
            output += self._announce_to_neighbours(self._self, None, record)
        return output

    # ------------------------------------------------------------ routes to cores

    def _make_announcement(
        self, core: NodeId, claims: ClaimsRecord | None = None
    ) -> CoreAnnouncement:
        route = self._routes.routes[core]
        members = [
            g
            for g in self._election.groups_by_core.get(core, ())
            if g in self._members.member_groups
        ]
        flags = tuple(group_id(group) for group in members[:FLAGS_MAX])
        return CoreAnnouncement(
            core, *route.stamp, route.distance, route.parents, claims, flags, route.signature
        )

    def _announce_to_neighbours(
        self, core: NodeId, source: NodeId | None, claims: ClaimsRecord | None
    ) -> StrategyOutput:
        """Announce a core to all neighbours except the source of the change."""
        frame = self._make_announcement(core, claims)
        return [SendToNeighbour(node, frame) for node in self._context.neighbours if node != source]

    def _receive_announcement(
        self, sender: NodeId, frame: CoreAnnouncement, now: float
    ) -> StrategyOutput:
        if frame.core == self._self:  # our own announcement, back around a loop, or a forgery
            if self._announces_itself and (frame.incarnation, frame.sequence) > self._own_stamp:
                self._announcer.raise_sequence(frame.sequence, now)
            return []
        routes = self._routes.routes
        self._schedule_core_check([frame.core])
        before = self._routes.parents(frame.core)
        pass_on = self._routes.receive_announcement(sender, frame)
        if frame.core in routes:
            self.flags[frame.core, sender] = frozenset(frame.members)
        output = self._apply_parent_change(frame.core, before, now)
        if self._routes.is_too_short(sender, frame.core, frame.distance):
            output.append(Ignored(TOO_SHORT))
        if not self._routes.has_route(frame.core) and frame.core in self._election.groups_by_core:
            self._announcement_requests.request_now(frame.core, now)
        if pass_on:
            route = routes[frame.core]
            source = None if route.distance == UNREACHABLE else sender
            current = route.stamp == (frame.incarnation, frame.sequence)
            output += self._announce_to_neighbours(
                frame.core, source, frame.claims if current else None
            )
        return output

    def _receive_membership(self, child: NodeId, frame: MeshMembership) -> StrategyOutput:
        relayed = len(self._context.index.nodes_by_group) + EARLY_GROUPS_MAX
        most = self._settings.filters_per_node_max + relayed
        joined = frame.joined[: max(0, most - self._members.child_group_count(child))]
        self._schedule_update(self._members.update_child(child, joined, frame.left))
        return [Ignored("filters_per_node_max") for _ in frame.joined[len(joined) :]]

    def _reselect_parents(self, change: Callable[[], list[NodeId]], now: float) -> StrategyOutput:
        """Apply a change of links to the routes, and announce changed ones."""
        before = {core: route.parents for core, route in self._routes.routes.items()}
        moved = change()
        self._schedule_core_check(self._election.groups_by_core)
        output: StrategyOutput = []
        for core, parents in before.items():
            output += self._apply_parent_change(core, parents, now)
        for core in moved:
            output += self._announce_to_neighbours(core, None, None)
        return output

    def _apply_parent_change(
        self, core: NodeId, before: tuple[NodeId, ...], now: float
    ) -> StrategyOutput:
        """Parents may have changed: update the groups of the core; without a route, ask for one."""
        route = self._routes.routes.get(core)
        if route is None or route.parents == before:
            return []
        groups_of_core = self._election.groups_by_core.get(core, ())
        self._schedule_update(
            group for group in groups_of_core if group in self._members.member_groups
        )
        self._stale_groups.update(dict.fromkeys(groups_of_core))
        if not route.parents and core in self._election.groups_by_core:
            self._announcement_requests.request_now(core, now)
        return [ParentsChanged(core, *route.stamp, route.distance, route.parents)]

    def _schedule_core_check(self, cores: Iterable[NodeId]) -> None:
        self._cores_to_check.update(dict.fromkeys(cores))

    def _check_core_routes(self, now: float) -> None:
        """Every reachable core needs a route; the announcement of a new core may be in flight."""
        to_check, self._cores_to_check = self._cores_to_check, {}
        for core in to_check:
            if core not in self._election.groups_by_core or self._routes.has_route(core):
                self._announcement_requests.cancel([core])
            elif core != self._self and core in self._context.graph.reachable:
                self._announcement_requests.request_later(core, now)

    def _request_announcement(self, core: NodeId) -> StrategyOutput:
        """Ask a core for a new announcement."""
        route = self._routes.routes.get(core)
        incarnation, sequence = route.stamp if route else (0, 0)
        hop = self._context.graph.next_hop(core)
        return (
            [SendToNeighbour(hop, AnnouncementRequest(core, incarnation, sequence, 0))]
            if hop is not None
            else []
        )

    def _receive_request(
        self, sender: NodeId, frame: AnnouncementRequest, now: float
    ) -> StrategyOutput:
        stamp = (frame.incarnation, frame.sequence)
        if frame.core == self._self:
            self._answer_request(stamp, now)
            return []
        hop = self._context.graph.next_hop(frame.core)
        if hop is None or hop == sender or frame.hops >= HOPS_MAX:
            return [Ignored("announcement request without a route")]
        request = AnnouncementRequest(frame.core, *stamp, frame.hops + 1)
        return (
            [SendToNeighbour(hop, request)]
            if self._announcement_requests.should_forward(frame.core, stamp, now)
            else []
        )

    @property
    def _announces_itself(self) -> bool:
        """Whether this node is a core that announces itself."""
        return bool(self._election.own_claims) or self._is_management_core

    @property
    def _is_management_core(self) -> bool:
        """Whether this node is core of the management group, and may be."""
        return self._election.cores[MANAGEMENT_GROUP] == self._self and self._context.may_be_core(
            self._self
        )

    @property
    def _own_stamp(self) -> Stamp:
        return self._context.incarnation(), self._announcer.sequence

    def _answer_request(self, stamp: Stamp, now: float) -> None:
        """Announce again, unless a newer announcement than the requested one is still in flight."""
        if not self._announces_itself:
            return
        known = stamp >= self._own_stamp
        if known or self._announcer.is_silent_since(
            now - self._settings.announcement_request_interval_max
        ):
            self._announcer.schedule_announcement(now)

    # ------------------------------------------------------------ meshes

    def _schedule_update(self, groups: Iterable[Group]) -> None:
        self._groups_to_update.update(dict.fromkeys(groups))

    def _finish_input(self, now: float) -> StrategyOutput:
        """Update affected groups; announce if due. Ends every input."""
        output: StrategyOutput = []
        if self._announcer.is_due(now):
            output += self._announce_own_groups(now)
        self._check_core_routes(now)
        joins: dict[tuple[NodeId, NodeId], list[Group]] = {}
        touched, self._groups_to_update = self._groups_to_update, {}
        for group in touched:
            output += self._update_membership(group, joins, now)
        for (parent, core), groups in joins.items():
            output += self._membership_frames(parent, core, groups, [])
        return output

    def _update_membership(
        self, group: Group, joins: dict[tuple[NodeId, NodeId], list[Group]], now: float
    ) -> StrategyOutput:
        core = self._election.cores.get(group)
        is_interested = group == MANAGEMENT_GROUP or self._context.index.is_interested(
            group, self._self
        )
        member = is_interested or core == self._self or bool(self._members.children(group))
        parents = self._routes.parents(core) if core is not None else ()
        parents_to_notify, changed = self._members.update_group(group, member, parents, now)
        for parent in parents_to_notify:
            assert core is not None
            joins.setdefault((parent, core), []).append(group)
        self._stale_groups[group] = None
        return [MeshJoined(group) if member else MeshLeft(group)] if changed else []

    def _compile_entry(self, group: Group) -> GroupEntry | Group:
        reachable = self._context.graph.reachable
        interested = [
            n for n in self._context.index.nodes_by_group.get(group, ()) if n in reachable
        ]
        if not interested:
            return group
        core = self._election.cores.get(group)
        if group in self._members.member_groups:
            notified = self._members.notified_parents.get(group, {})
            mesh = dict.fromkeys([*notified, *self._members.children(group)])
            cut_off = core != self._self and not notified and interested != [self._self]
            return GroupEntry(group, True, mesh_links=self._context.links(mesh), is_cut_off=cut_off)
        # A parent that is a member itself saves hops (rule 5.4); sorting is stable.
        parents = self._routes.parents(core) if core is not None else ()
        nearest = sorted(parents, key=lambda parent: not self._is_member(parent, group, core))
        return GroupEntry(group, False, core_links=self._context.links(nearest))

    def _is_member(self, parent: NodeId, group: Group, core: NodeId | None) -> bool:
        """Whether a parent is known to be in the mesh: it is interested, or announced its
        membership."""
        if core is None or self._context.index.is_interested(group, parent):
            return True
        return group_id(group) in self.flags.get((core, parent), ())

    def _notify_former_parents(self, now: float) -> StrategyOutput:
        """Notify former parents that this node has left, after the linger."""
        left: dict[tuple[NodeId, NodeId], list[Group]] = {}
        for parent, group in self._members.pop_due_leaves(now):
            core = self._election.cores.get(group, self._self)
            left.setdefault((parent, core), []).append(group)
            self._groups_to_update[group] = None
        output: StrategyOutput = []
        for (parent, core), groups in left.items():
            output += self._membership_frames(parent, core, [], groups)
        return output

    def _membership_frames(
        self, parent: NodeId, core: NodeId, joined: list[Group], left: list[Group]
    ) -> StrategyOutput:
        """Membership frames to one parent, as many as their size needs."""
        route = self._routes.routes.get(core)
        sequence = route.stamp[1] if route else 0
        size = GROUPS_PER_FRAME_MAX
        parts = range(0, max(len(joined), len(left)), size)
        pairs = [(tuple(joined[at : at + size]), tuple(left[at : at + size])) for at in parts]
        return [SendToNeighbour(parent, MeshMembership(core, sequence, *pair)) for pair in pairs]

    # ------------------------------------------------------------ entries and status

    def drain_entries(self) -> list[GroupEntry | Group]:
        """Compile the entries that changed since the last call."""
        stale, self._stale_groups = self._stale_groups, {}
        return [self._compile_entry(group) for group in stale if group != MANAGEMENT_GROUP]

    def stale_entry_count(self) -> int:
        """Return how many groups the next `drain_entries` compiles."""
        return len(self._stale_groups)

    def core_statuses(self) -> dict[NodeId, CoreStatus]:
        return {
            core: CoreStatus(*route.stamp, route.distance, route.feasible_distance, route.parents)
            for core, route in sorted(self._routes.routes.items())
        }

    def group_status(self, group: Group) -> GroupStatus:
        reachable = self._context.graph.reachable
        interested = self._context.index.nodes_by_group.get(group, {})
        if group == MANAGEMENT_GROUP:
            interested = dict.fromkeys(reachable, 1)
        return GroupStatus(
            core=self._election.cores.get(group),
            interested_nodes=tuple(sorted(node for node in interested if node in reachable)),
            is_member=group in self._members.member_groups,
            parents=tuple(sorted(self._members.notified_parents.get(group, ()))),
            children=tuple(sorted(self._members.children(group))),
        )

    def groups(self) -> list[Group]:
        known = (MANAGEMENT_GROUP, *self._context.index.nodes_by_group, *self._election.cores)
        return list(dict.fromkeys(known))
