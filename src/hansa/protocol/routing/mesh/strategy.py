"""The mesh strategy (Spohn 2020): a core per group, announcements, parents, members.

It joins machines that do not know one another: `election` says who is core, `pulpit` when this node
speaks as one, `routes` which neighbours lead to the others, `solicitation` asks when none does,
`membership` says who belongs to a mesh. What one changes, this module carries to the next, and then
compiles the groups that were touched.
"""

from collections.abc import Callable, Iterable
from typing import ClassVar

from hansa.protocol.deadlines import earliest
from hansa.protocol.effects import Ignored, MeshJoined, MeshLeft, ParentsChanged
from hansa.protocol.forwarding.table import Entry
from hansa.protocol.membership.records import ClaimsRecord, Stamp
from hansa.protocol.model import HOPS_MAX, MANAGEMENT, Group, GroupId, NodeId, group_id
from hansa.protocol.routing.base import Fact, Outcome, Surroundings, Tell
from hansa.protocol.routing.mesh.announcement_request import Solicitation
from hansa.protocol.routing.mesh.announcer import Pulpit
from hansa.protocol.routing.mesh.election import Election
from hansa.protocol.routing.mesh.members import Membership
from hansa.protocol.routing.mesh.routes import CoreRoutes
from hansa.protocol.status import CoreView, GroupView
from hansa.protocol.wire.bounds import FLAGS_MAX
from hansa.protocol.wire.frames import UNREACHABLE, Announce, Control, Solicit
from hansa.protocol.wire.frames import Membership as MembershipFrame

GROUPS_PER_FRAME_MAX = 200
"""Groups that one membership frame names at most, so that it fits a frame whatever their length."""


class Mesh:
    """One node's part in the meshes of all groups."""

    facts: ClassVar[frozenset[Fact]] = frozenset(Fact) - {Fact.FOLLOWS_DATABASE, Fact.OWN_WAYS}

    def __init__(self, around: Surroundings) -> None:
        """Start alone."""
        self._around = around
        self._self = around.node
        self._settings = around.settings
        self._election = Election(
            around.node, around.settings, around.graph, around.index, around.capacity
        )
        self._routes = CoreRoutes(self._settings.redundancy, around.cost)
        self._membership = Membership(self._settings.linger)
        self.flags: dict[tuple[NodeId, NodeId], frozenset[GroupId]] = {}
        self._pulpit = Pulpit(self._settings)
        self._solicitation = Solicitation(self._settings)
        self._doubtful: dict[NodeId, None] = {}  # cores that may have lost or found their way
        self._touched: dict[Group, None] = {MANAGEMENT: None}
        self._stale: dict[Group, None] = {}  # groups whose entry may be another now

    # ------------------------------------------------------------ what happens

    def neighbour_up(self, node: NodeId, now: float) -> Outcome:
        """Tell a new neighbour every way that we know (rule 4.6)."""
        outcome: Outcome = [
            Tell(node, self._announcement(core))
            for core in self._routes.routes
            if self._routes.has_way(core)
        ]
        return outcome + self._finish(now)

    def neighbour_down(self, node: NodeId, now: float) -> Outcome:
        """Surviving parents carry on; where none is left, say so and ask the core (rule 4.7)."""
        outcome = self._rechoose(lambda: self._routes.lose_neighbour(node), now)
        self._touch(self._membership.lose_neighbour(node))
        self.flags = {key: flags for key, flags in self.flags.items() if key[1] != node}
        return outcome + self._finish(now)

    def costs_changed(self, now: float) -> Outcome:
        """Choose anew where the length of links matters."""
        return self._rechoose(self._routes.remeasure, now) + self._finish(now)

    def incarnation_raised(self, now: float) -> Outcome:
        """Announce this node under its new incarnation, if it is a core."""
        if self._speaks:
            self._pulpit.announce_soon(now)
        return self._finish(now)

    def nodes_changed(
        self, joined: Iterable[NodeId], lost: Iterable[NodeId], now: float
    ) -> Outcome:
        """Elect anew wherever these nodes have a say."""
        joined, lost = list(joined), list(lost)
        groups: dict[Group, None] = {}
        for node in (*joined, *lost):
            for names in (self._around.claims_of(node), self._around.groups_of(node)):
                groups.update(dict.fromkeys(names))
        self._solicitation.settle(lost)
        outcome = self._elect_manager(joined, now)
        return outcome + self._evaluate(groups, now) + self._finish(now)

    def interest_changed(self, groups: Iterable[Group], now: float) -> Outcome:
        """Elect anew, join or leave."""
        return self._evaluate(groups, now) + self._finish(now)

    def claims_changed(
        self, node: NodeId, added: Iterable[Group], removed: Iterable[Group], now: float
    ) -> Outcome:
        """Elect anew."""
        groups = dict.fromkeys([*added, *removed])
        self._election.note_claims(node, added, removed)
        return self._evaluate(groups, now) + self._finish(now)

    def forget(self, node: NodeId) -> None:
        """A node's lease has ended."""
        self._routes.forget(node)
        self._solicitation.forget(node)
        self.flags = {key: flags for key, flags in self.flags.items() if key[0] != node}

    def receive(self, sender: NodeId, frame: Control, now: float) -> Outcome:
        """Take an announcement, a membership or a request for an announcement."""
        outcome: Outcome = []
        match frame:
            case Announce():
                outcome = self._take_announcement(sender, frame, now)
            case MembershipFrame():
                outcome = self._take_membership(sender, frame)
            case Solicit():
                outcome = self._take_request(sender, frame, now)
            case _:
                pass  # another strategy's frame; hello made sure that there is none
        return outcome + self._finish(now)

    # ------------------------------------------------------------ time

    def fire(self, now: float) -> Outcome:
        """Do what is due."""
        outcome: Outcome = []
        if self._pulpit.take_lead(now):
            self._pulpit.announce_soon(now)
        outcome += self._evaluate(self._election.waiting(now), now)
        outcome += self._leave(now)
        for core in self._solicitation.due(now):
            outcome += self._request(core)
        return outcome + self._finish(now)

    def next_deadline(self) -> float | None:
        """When something is next due."""
        return earliest(
            self._pulpit.next_deadline(),
            self._election.next_deadline(),
            self._membership.next_deadline(),
            self._solicitation.next_deadline(),
        )

    # ------------------------------------------------------------ cores

    def _evaluate(self, groups: Iterable[Group], now: float) -> Outcome:
        outcome: Outcome = []
        for group in groups:
            if group == MANAGEMENT:
                continue  # nobody can claim it, whatever a peer says
            self._touched[group] = None
            claimed = group in self._election.claims
            cores = [self._election.cores.get(group)]
            if news := self._election.evaluate(group, now):
                cores.append(self._election.cores.get(group))
                self._doubt(core for core in cores if core is not None)
                outcome += news
            if claimed != (group in self._election.claims):
                self._pulpit.announce_soon(now)
        return outcome

    def _elect_manager(self, joined: list[NodeId], now: float) -> Outcome:
        """The best node in reach leads the management group, once news has settled."""
        self._doubt([self._election.cores[MANAGEMENT]])
        outcome: Outcome = [*self._election.evaluate_management(joined)]
        self._doubt(self._election.led)  # others may be in reach now
        self._touched[MANAGEMENT] = None
        self._pulpit.note_manager(self._election.cores[MANAGEMENT] == self._self, now)
        return outcome

    def _announce(self, now: float) -> Outcome:
        """Announce this node as core of all its groups, naming those that changed (rule 4.1)."""
        claimed = dict.fromkeys(self._around.claims_of(self._self))
        added = [group for group in self._election.claims if group not in claimed]
        removed = [group for group in claimed if group not in self._election.claims]
        records: list[ClaimsRecord | None] = [*self._around.claim(added, removed, now)]
        outcome: Outcome = []
        for record in records or [None]:
            self._routes.lead(self._self, (self._around.incarnation(), self._pulpit.speak(now)))
            outcome += self._spread(self._self, None, record)
        return outcome

    # ------------------------------------------------------------ ways to cores

    def _announcement(self, core: NodeId, claims: ClaimsRecord | None = None) -> Announce:
        route = self._routes.routes[core]
        members = [g for g in self._election.led.get(core, ()) if g in self._membership.members]
        flags = tuple(group_id(group) for group in members[:FLAGS_MAX])
        return Announce(core, *route.stamp, route.distance, route.parents, claims, flags)

    def _spread(self, core: NodeId, source: NodeId | None, claims: ClaimsRecord | None) -> Outcome:
        """Announce a core to all neighbours but the one that the news came from."""
        frame = self._announcement(core, claims)
        return [Tell(node, frame) for node in self._around.neighbours if node != source]

    def _take_announcement(self, sender: NodeId, frame: Announce, now: float) -> Outcome:
        if frame.core == self._self:  # our own, back around a loop, or somebody made it up
            if self._speaks and (frame.incarnation, frame.seq) > self._own_stamp:
                self._pulpit.outrun(frame.seq, now)
            return []
        routes = self._routes.routes
        self._doubt([frame.core])
        before = self._routes.parents(frame.core)
        pass_on = self._routes.hear(sender, frame)
        if frame.core in routes:
            self.flags[frame.core, sender] = frozenset(frame.members)
        outcome = self._note_parents(frame.core, before, now)
        if not self._routes.has_way(frame.core) and frame.core in self._election.led:
            self._solicitation.lost(frame.core, now)
        if pass_on:
            route = routes[frame.core]
            source = None if route.distance == UNREACHABLE else sender
            current = route.stamp == (frame.incarnation, frame.seq)
            outcome += self._spread(frame.core, source, frame.claims if current else None)
        return outcome

    def _take_membership(self, child: NodeId, frame: MembershipFrame) -> Outcome:
        most = self._settings.filters_per_node_max + len(self._around.index.wanters)  # as relay
        joined = frame.joined[: max(0, most - self._membership.held_by(child))]
        self._touch(self._membership.note_child(child, joined, frame.left))
        return [Ignored("filters_per_node_max") for _ in frame.joined[len(joined) :]]

    def _rechoose(self, change: Callable[[], list[NodeId]], now: float) -> Outcome:
        """Let a change of links change the routes, and tell who must know."""
        before = {core: route.parents for core, route in self._routes.routes.items()}
        moved = change()
        self._doubt(self._election.led)
        outcome: Outcome = []
        for core, parents in before.items():
            outcome += self._note_parents(core, parents, now)
        for core in moved:
            outcome += self._spread(core, None, None)
        return outcome

    def _note_parents(self, core: NodeId, before: tuple[NodeId, ...], now: float) -> Outcome:
        """Parents may have changed: its groups must follow, and a lost way must be asked for."""
        route = self._routes.routes.get(core)
        if route is None or route.parents == before:
            return []
        led = self._election.led.get(core, ())
        self._touch(group for group in led if group in self._membership.members)
        self._stale.update(dict.fromkeys(led))
        if not route.parents and core in self._election.led:
            self._solicitation.lost(core, now)
        return [ParentsChanged(core, *route.stamp, route.distance, route.parents)]

    def _doubt(self, cores: Iterable[NodeId]) -> None:
        self._doubtful.update(dict.fromkeys(cores))

    def _check_ways(self, now: float) -> None:
        """Every core in reach must have a way; one that never had may just be on its way."""
        doubtful, self._doubtful = self._doubtful, {}
        for core in doubtful:
            if core not in self._election.led or self._routes.has_way(core):
                self._solicitation.settle([core])
            elif core != self._self and core in self._around.graph.reachable:
                self._solicitation.expect(core, now)

    def _request(self, core: NodeId) -> Outcome:
        """Ask a core for a fresh announcement."""
        route = self._routes.routes.get(core)
        incarnation, seq = route.stamp if route else (0, 0)
        hop = self._around.graph.next_hop(core)
        return [Tell(hop, Solicit(core, incarnation, seq, 0))] if hop is not None else []

    def _take_request(self, sender: NodeId, frame: Solicit, now: float) -> Outcome:
        stamp = (frame.incarnation, frame.seq)
        if frame.core == self._self:
            self._answer_request(stamp, now)
            return []
        hop = self._around.graph.next_hop(frame.core)
        if hop is None or hop == sender or frame.hops >= HOPS_MAX:
            return [Ignored("request without a way")]
        onward = Solicit(frame.core, *stamp, frame.hops + 1)
        return [Tell(hop, onward)] if self._solicitation.pass_on(frame.core, stamp, now) else []

    @property
    def _speaks(self) -> bool:
        """Whether this node is a core that announces itself."""
        return bool(self._election.claims) or self._election.cores[MANAGEMENT] == self._self

    @property
    def _own_stamp(self) -> Stamp:
        return self._around.incarnation(), self._pulpit.seq

    def _answer_request(self, stamp: Stamp, now: float) -> None:
        """Announce anew, unless a newer announcement than the asker knows is still under way."""
        if not self._speaks:
            return
        known = stamp >= self._own_stamp
        if known or self._pulpit.silent_since(now - self._settings.solicit_interval):
            self._pulpit.announce_soon(now)

    # ------------------------------------------------------------ meshes

    def _touch(self, groups: Iterable[Group]) -> None:
        self._touched.update(dict.fromkeys(groups))

    def _finish(self, now: float) -> Outcome:
        """Settle the groups that were touched; announce if due. Ends every input."""
        outcome: Outcome = []
        if self._pulpit.is_due(now):
            outcome += self._announce(now)
        self._check_ways(now)
        joins: dict[tuple[NodeId, NodeId], list[Group]] = {}
        touched, self._touched = self._touched, {}
        for group in touched:
            outcome += self._settle(group, joins, now)
        for (parent, core), groups in joins.items():
            outcome += self._memberships(parent, core, groups, [])
        return outcome

    def _settle(
        self, group: Group, joins: dict[tuple[NodeId, NodeId], list[Group]], now: float
    ) -> Outcome:
        core = self._election.cores.get(group)
        wanted = group == MANAGEMENT or self._around.index.wanted_by(group, self._self)
        member = wanted or core == self._self or bool(self._membership.children(group))
        parents = self._routes.parents(core) if core is not None else ()
        tell, changed = self._membership.settle(group, member, parents, now)
        for parent in tell:
            assert core is not None
            joins.setdefault((parent, core), []).append(group)
        self._stale[group] = None
        return [MeshJoined(group) if member else MeshLeft(group)] if changed else []

    def _compile(self, group: Group) -> Entry | Group:
        reachable = self._around.graph.reachable
        wanters = [n for n in self._around.index.wanters.get(group, ()) if n in reachable]
        if not wanters:
            return group
        core = self._election.cores.get(group)
        if group in self._membership.members:
            told = self._membership.told.get(group, {})
            mesh = dict.fromkeys([*told, *self._membership.children(group)])
            cut_off = core != self._self and not told and wanters != [self._self]
            return Entry(group, True, neighbours=self._around.links(mesh), cut_off=cut_off)
        # A parent that is a member itself saves hops (rule 5.4); sorting is stable.
        parents = self._routes.parents(core) if core is not None else ()
        nearest = sorted(parents, key=lambda parent: not self._is_member(parent, group, core))
        return Entry(group, False, towards=self._around.links(nearest))

    def _is_member(self, parent: NodeId, group: Group, core: NodeId | None) -> bool:
        """Whether a parent is known to be in the mesh: it wants the group, or said so."""
        if core is None or self._around.index.wanted_by(group, parent):
            return True
        return group_id(group) in self.flags.get((core, parent), ())

    def _leave(self, now: float) -> Outcome:
        """Tell former parents that we have left, once the linger is over."""
        lefts: dict[tuple[NodeId, NodeId], list[Group]] = {}
        for parent, group in self._membership.leave(now):
            core = self._election.cores.get(group, self._self)
            lefts.setdefault((parent, core), []).append(group)
            self._touched[group] = None
        outcome: Outcome = []
        for (parent, core), groups in lefts.items():
            outcome += self._memberships(parent, core, [], groups)
        return outcome

    def _memberships(
        self, parent: NodeId, core: NodeId, joined: list[Group], left: list[Group]
    ) -> Outcome:
        """Membership frames to one parent, as many as their size needs."""
        route = self._routes.routes.get(core)
        seq = route.stamp[1] if route else 0
        size = GROUPS_PER_FRAME_MAX
        parts = range(0, max(len(joined), len(left)), size)
        pairs = [(tuple(joined[at : at + size]), tuple(left[at : at + size])) for at in parts]
        return [Tell(parent, MembershipFrame(core, seq, *pair)) for pair in pairs]

    # ------------------------------------------------------------ what others read

    def take_entries(self) -> list[Entry | Group]:
        """Compile what changed since last asked."""
        stale, self._stale = self._stale, {}
        return [self._compile(group) for group in stale if group != MANAGEMENT]

    def entries_waiting(self) -> int:
        """Return how many groups the next `take_entries` looks at."""
        return len(self._stale)

    def core_views(self) -> dict[NodeId, CoreView]:
        """Return the ways to all cores."""
        return {
            core: CoreView(*route.stamp, route.distance, route.feasible, route.parents)
            for core, route in sorted(self._routes.routes.items())
        }

    def group_view(self, group: Group) -> GroupView:
        """Return one group."""
        reachable = self._around.graph.reachable
        wanters = self._around.index.wanters.get(group, {})
        if group == MANAGEMENT:
            wanters = dict.fromkeys(reachable, 1)
        return GroupView(
            core=self._election.cores.get(group),
            wanted_by=tuple(sorted(node for node in wanters if node in reachable)),
            member=group in self._membership.members,
            parents=tuple(sorted(self._membership.told.get(group, ()))),
            children=tuple(sorted(self._membership.children(group))),
        )

    def groups(self) -> list[Group]:
        """Return all groups known."""
        return sorted({MANAGEMENT, *self._around.index.wanters, *self._election.cores})
