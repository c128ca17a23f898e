"""Compares the state of all nodes with the ground truth.

There are two levels. *Converged* is what users notice: every node knows all others, every group is
connected, every subscription is in force. *Exact* are all invariants of the protocol at rest. The
routing strategy declares which structural invariants it guarantees; only those count. If a node is
compromised, only this counts: honest nodes with a path of honest nodes know each other, and their
interest is in force.

Each check returns the first problem as text, or None.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from hansa.protocol.interest.groups import group_of
from hansa.protocol.membership.records import Stamp
from hansa.protocol.model import MANAGEMENT_GROUP, Group, NodeId
from hansa.protocol.routing import strategy_class
from hansa.protocol.routing.base import StrategyInvariant
from hansa.protocol.settings import Metric, ProtocolSettings
from hansa.protocol.status import InterestStatus, NodeStatus
from hansa.protocol.topics import covers, is_local_only, split_share
from hansa.simulator.analysis.ground_truth import Component, GroundTruth
from hansa.simulator.world.site import Site

Problem = str | None


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """A component with the statuses of its nodes."""

    component: Component
    statuses: dict[NodeId, NodeStatus]

    def node_name(self, node: NodeId) -> str:
        return f"n{self.component.by_id[node].place}"


class StructureCheck:
    def __init__(
        self, truth: GroundTruth, settings: ProtocolSettings, is_steady: bool = True
    ) -> None:
        """Compare against `truth`; the settings decide about the invariants.

        With round-trip times as metric and without `is_steady`, paths never come to rest for long.
        """
        self.truth = truth
        self._settings = settings
        self._invariants = strategy_class(settings.strategy).invariants
        self._has_unstable_costs = settings.metric is Metric.RTT and not is_steady
        self._suspect_place = -1  # the place of the last problem, which probably persists
        self._verified: dict[int, tuple[NodeStatus, Component, int]] = {}

    def find_problem(self) -> Problem:
        parts = self.truth.components()
        problem = _first_problem(partial(self._nodes_know_each_other, part) for part in parts)
        if problem:
            return problem
        by_invariant = {
            StrategyInvariant.ONE_CORE: self._groups_are_connected,
            StrategyInvariant.FOLLOWS_DATABASE: self._databases_are_equal,
        }
        invariants = () if self.truth.has_attackers else self._invariants
        checks = [check for invariant, check in by_invariant.items() if invariant in invariants]
        return _first_problem(
            partial(check, seen)
            for check in (_interest_is_in_force, *checks)
            for seen in self._component_statuses()
        )

    def path_fingerprint(self) -> object:
        """Return a value that changes whenever paths may have changed, so that a copy in flight may
        be lost; constant for strategies whose old paths stay valid for a while."""
        if StrategyInvariant.FOLLOWS_DATABASE not in self._invariants:
            return None
        sites = [site for part in self.truth.components() for site in part.sites]
        return [self.truth.status(site).digest for site in sites]

    def find_broken_invariants(self) -> Iterator[tuple[str, str]]:
        """Check everything; yield each violated invariant with its first problem."""
        if self.truth.has_attackers:
            return
        by_invariant = {
            StrategyInvariant.TRUE_DISTANCES: ("true distances", self._distances_are_true),
            StrategyInvariant.REDUNDANCY_FILLED: ("redundancy filled", self._redundancy_is_filled),
            StrategyInvariant.TABLES_AGREE: ("tables agree", self._tables_agree),
            StrategyInvariant.MINIMAL: ("meshes minimal", self._meshes_are_minimal),
        }
        checks = [
            ("databases equal", self._databases_are_equal),
            *(check for invariant, check in by_invariant.items() if invariant in self._invariants),
            ("interest installed", self._interest_is_installed),
        ]
        all_seen = self._component_statuses()
        for name, check in checks:
            problem = _first_problem(partial(check, seen) for seen in all_seen)
            if problem:
                yield name, problem

    def _component_statuses(self) -> list[ComponentStatus]:
        """Return the components with more than one node."""
        parts = [part for part in self.truth.components() if len(part.sites) > 1]
        return [
            ComponentStatus(part, {node: self.truth.status(part.by_id[node]) for node in part.ids})
            for part in parts
        ]

    # ------------------------------------------------------------ converged: nodes

    def _nodes_know_each_other(self, part: Component) -> Problem:
        if not part.has_distinct_ids:
            return f"two nodes share an id in {', '.join(f'n{s.place}' for s in part.sites)}"
        suspects = [site for site in part.sites if site.place == self._suspect_place]
        for site in [*suspects, *part.sites]:
            view = self.truth.status(site)
            if self._is_verified(site, view, part):
                continue
            problem = _check_neighbourhood(site, view, part, is_exact=not self.truth.has_attackers)
            if problem:
                self._suspect_place = site.place
                return f"n{site.place}: {problem}"
            self._verified[site.place] = (view, part, site.broker.change_count)
        return None

    def _is_verified(self, site: Site, view: NodeStatus, part: Component) -> bool:
        """Whether this status was correct before, and nothing around it has changed."""
        known = self._verified.get(site.place)
        return (
            known is not None
            and known[0] is view
            and known[1] is part
            and known[2] == site.broker.change_count
        )

    # ------------------------------------------------------------ converged: groups

    def _groups_are_connected(self, seen: ComponentStatus) -> Problem:
        led: dict[NodeId, Problem] = {}
        for group, interested in self.interested_nodes(seen).items():
            core, problem = _agreed_core(group, seen)
            if core is not None and core not in led:
                led[core] = _check_paths_to_core(core, seen)
            if core is not None:
                problem = led[core] or _check_members_joined(group, core, interested, seen)
            if problem:
                return f"group {group!r}: {problem}"
        return None

    def interested_nodes(self, seen: ComponentStatus) -> dict[Group, dict[NodeId, None]]:
        """Return the interested nodes per group; all nodes belong to the management group."""
        interested: dict[Group, dict[NodeId, None]] = {
            MANAGEMENT_GROUP: dict.fromkeys(seen.component.ids)
        }
        for node, view in seen.statuses.items():
            own = view.interest.get(node)
            for name in own.filters if own else ():
                group = group_of(name, self._settings.group_depth)
                interested.setdefault(group, {})[node] = None
        return interested

    def _cores(self, seen: ComponentStatus) -> list[NodeId]:
        """Return the cores of all groups with interest; all nodes agree on them by now."""
        view = next(iter(seen.statuses.values()))
        cores = (view.groups[group].core for group in self.interested_nodes(seen))
        return sorted({core for core in cores if core is not None})

    # ------------------------------------------------------------ exact

    def _databases_are_equal(self, seen: ComponentStatus) -> Problem:
        digests = {view.digest: seen.node_name(node) for node, view in seen.statuses.items()}
        if len(digests) > 1 and not self._is_forgetting(seen):
            return f"databases differ between {', '.join(digests.values())}"
        return None

    def _is_forgetting(self, seen: ComponentStatus) -> bool:
        """Whether the databases differ because some nodes have forgotten an absent node and others
        have not: a lease begins again in a node with a restored state."""
        if self.truth.now < self._settings.interest_lease:
            return False
        ids = seen.component.ids
        databases = [site.node.membership for site in seen.component.sites if site.node is not None]
        absent = [set(database.known).difference(ids) for database in databases]
        records = [list(map(database.records_of, ids)) for database in databases]
        return any(each != absent[0] for each in absent) and all(
            each == records[0] for each in records
        )

    def _distances_are_true(self, seen: ComponentStatus) -> Problem:
        if self._settings.metric is Metric.RTT:
            return None
        for core in self._cores(seen):
            truth = seen.component.distances(core)
            for node, view in seen.statuses.items():
                believed, real = view.cores[core].distance, truth[node]
                if believed != real:
                    return (
                        f"{seen.node_name(node)} is {real} from core {core} and believes {believed}"
                    )
        return None

    def _redundancy_is_filled(self, seen: ComponentStatus) -> Problem:
        if self._settings.metric is Metric.RTT:
            return None
        for core in self._cores(seen):
            truth = seen.component.distances(core)
            for node, view in seen.statuses.items():
                nearer = [n for n in seen.component.neighbours[node] if truth[n] < truth[node]]
                parents = view.cores[core].parents
                required = min(self._settings.redundancy, len(nearer))
                if len(parents) != required or not set(parents) <= set(nearer):
                    text = f"{seen.node_name(node)} has parents {parents} towards core {core}"
                    return f"{text}, expected {required} of {nearer}"
        return None

    def _tables_agree(self, seen: ComponentStatus) -> Problem:
        """A member's parents are its next hops to the core, and exactly those have it as a
        child."""
        if self._has_unstable_costs:
            return None
        for group in self.interested_nodes(seen):
            notified: dict[NodeId, list[NodeId]] = {node: [] for node in seen.statuses}
            for node, view in seen.statuses.items():
                mine = view.groups[group]
                next_hops = (
                    view.cores[mine.core].parents
                    if mine.is_member and mine.core is not None
                    else ()
                )
                if mine.parents != tuple(sorted(next_hops)):
                    text = f"{seen.node_name(node)} has notified {mine.parents}"
                    return f"group {group!r}: {text}, its next hops to the core are {next_hops}"
                for parent in mine.parents:
                    notified[parent].append(node)
            for node, children in notified.items():
                known = seen.statuses[node].groups[group].children
                if known != tuple(children):
                    text = f"{seen.node_name(node)} has children {known}"
                    return f"group {group!r}: {text}, {tuple(children)} have it as parent"
        return None

    def _meshes_are_minimal(self, seen: ComponentStatus) -> Problem:
        """A node is a member only with a reason: clients, a child, or being the core."""
        if self._has_unstable_costs:
            return None
        for group, interested in self.interested_nodes(seen).items():
            for node, view in seen.statuses.items():
                mine = view.groups[group]
                name, joined = seen.node_name(node), "a" if mine.is_member else "no"
                reason = node in interested or bool(mine.children) or mine.core == node
                if mine.is_member != reason:
                    return f"{name} is {joined} member of {group!r}"
                if mine.interested_nodes != tuple(sorted(interested)):
                    return f"{name} sees interest in {group!r} at {mine.interested_nodes}"
        return None

    def _interest_is_installed(self, seen: ComponentStatus) -> Problem:
        for node, view in seen.statuses.items():
            if not view.installed:
                return f"{seen.node_name(node)} does not know that its interest is installed"
        return None


# ---------------------------------------------------------------- nodes


def _check_neighbourhood(site: Site, view: NodeStatus, part: Component, is_exact: bool) -> Problem:
    """Without `is_exact` the node may know compromised nodes, too."""
    known_neighbours = {
        node: status for node, status in view.neighbours.items() if is_exact or node in part.by_id
    }
    reachable = [node for node in view.reachable if is_exact or node in part.by_id]
    if tuple(sorted(known_neighbours)) != part.neighbours[view.node]:
        known = tuple(sorted(known_neighbours))
        return f"its neighbours are {part.neighbours[view.node]}, it knows {known}"
    for node, neighbour in known_neighbours.items():
        end = site.link_ends.get(neighbour.link)
        if end is None or end.peer.host is not part.by_id[node]:
            return f"its link to {node} leads elsewhere"  # possibly to a stopped clone
    if tuple(reachable) != part.ids:
        return f"it can reach {part.ids}, it knows {view.reachable}"
    own = view.interest.get(view.node)
    announced = own.filters if own else ()
    names = dict.fromkeys(announced)
    for required in site.broker.subscriber_counts:
        if required in names or is_local_only(required):
            continue
        if not _is_announced(required, announced):
            return f"its clients subscribe to {required}, it announces {announced}"
    for name in announced:
        if split_share(name)[0] is not None and name not in site.broker.subscriber_counts:
            return f"it announces {name}, without a client"
    return None


def _is_announced(topic_filter: str, announced: tuple[str, ...]) -> bool:
    """Whether a filter that is not announced itself is covered by one that is."""
    if split_share(topic_filter)[0] is not None:
        return False
    return any(split_share(a)[0] is None and covers(a, topic_filter) for a in announced)


def _interest_is_in_force(seen: ComponentStatus) -> Problem:
    """Check that every node's newest interest is known and in force at every other."""
    newest: dict[NodeId, Stamp] = {}
    required: dict[str, None] = {}
    for node, view in seen.statuses.items():
        own = view.interest.get(node)
        if own is not None:
            newest[node] = own.stamp
            required.update((split_share(name)[1], None) for name in own.filters)
    for node, view in seen.statuses.items():
        # Compare whole sets, which is fast: this runs for every node, all the time.
        own = view.interest.get(node)
        held = view.in_force | {node: own.stamp} if own else view.in_force
        if not newest.items() <= held.items():
            missing = [other for other, stamp in newest.items() if held.get(other) != stamp]
            return f"{seen.node_name(node)} has the interest of {missing} not in force"
        granted = seen.component.by_id[node].broker.granted
        if (
            not required.keys() <= granted.keys()
            and not required.keys() <= granted.keys() | _own_filters(own)
        ):
            lacking = [name for name in required if name not in granted]
            return f"the broker of {seen.node_name(node)} lacks subscriptions for {lacking}"
    return None


def _own_filters(own: InterestStatus | None) -> set[str]:
    """Return the filters that only this node is interested in: it need not subscribe to them."""
    return {split_share(name)[1] for name in own.filters} if own else set()


# ---------------------------------------------------------------- groups


def _agreed_core(group: Group, seen: ComponentStatus) -> tuple[NodeId | None, Problem]:
    cores: dict[NodeId | None, NodeId] = {}
    for node, view in seen.statuses.items():
        known = view.groups.get(group)
        cores.setdefault(known.core if known else None, node)
    if len(cores) > 1:
        sights = ", ".join(f"{seen.node_name(node)} sees {core}" for core, node in cores.items())
        return None, f"nodes see different cores: {sights}"
    (core,) = cores
    if core is None or core not in seen.statuses:
        return None, f"its core {core} does not exist"
    return core, None


def _check_paths_to_core(core: NodeId, seen: ComponentStatus) -> Problem:
    """Check that first parents lead from every node to the core, which must know its role."""
    if core not in seen.statuses[core].cores:
        return f"its core {seen.node_name(core)} does not announce itself"
    verified = {core}
    for start in seen.statuses:
        path: list[NodeId] = []
        here = start
        while here not in verified:
            route = seen.statuses[here].cores.get(core)
            path.append(here)
            if route is None or not route.parents or route.parents[0] in path:
                return f"{seen.node_name(start)} has no path to the core {core}"
            here = route.parents[0]
            if here not in seen.statuses:
                return f"{seen.node_name(start)} reaches core {core} over {here}, which is gone"
        verified.update(path)
    return None


def _check_members_joined(
    group: Group, core: NodeId, interested: Iterable[NodeId], seen: ComponentStatus
) -> Problem:
    """Check that all interested nodes reach the core by consistent parents and children."""
    joined = {core: None}
    queue = [core]
    for here in queue:  # grows while it is read
        for child in seen.statuses[here].groups[group].children:
            if child in joined or child not in seen.statuses:
                continue
            theirs = seen.statuses[child].groups[group]
            if theirs.is_member and here in theirs.parents:
                joined[child] = None
                queue.append(child)
    for node_id in interested:
        if node_id not in joined:
            return f"{seen.node_name(node_id)} is interested and not joined to core {core}"
    return None


def _first_problem(checks: Iterable[Callable[[], Problem]]) -> Problem:
    return next((problem for check in checks if (problem := check())), None)
