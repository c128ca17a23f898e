"""Whether the federation is right: what every node believes, held against the truth.

Two depths. *Converged* is what users feel: everybody knows everybody, every group hangs together,
every subscription is in force. *Exact* is all that the protocol promises about its own shape once
it is at rest. The routing strategy says which facts about its shape it promises; only those count.

Each check returns the first problem it finds, as text, or None.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from hansa.protocol.interest.groups import group_of
from hansa.protocol.membership.records import Stamp
from hansa.protocol.model import MANAGEMENT, Group, NodeId
from hansa.protocol.routing import strategy_of
from hansa.protocol.routing.base import Fact
from hansa.protocol.settings import Metric, ProtocolSettings
from hansa.protocol.status import InterestView, NodeView
from hansa.protocol.topics import covers, is_local_only, split_share
from hansa.simulator.analysis.truth import Component, Truth
from hansa.simulator.world.site import Site

Problem = str | None


@dataclass(frozen=True, slots=True)
class Seen:
    """A component, and what its nodes believe."""

    part: Component
    views: dict[NodeId, NodeView]

    def name(self, node: NodeId) -> str:
        """Return what people call a node."""
        return f"n{self.part.by_id[node].place}"


class Structure:
    """Compares all nodes with the truth."""

    def __init__(self, truth: Truth, settings: ProtocolSettings, steady: bool = True) -> None:
        """Look through `truth`; the settings say what was promised.

        Where round trips are the metric and not `steady`, ways never come to rest for long.
        """
        self.truth = truth
        self._settings = settings
        self._facts = strategy_of(settings.strategy).facts
        self._restless = settings.metric is Metric.RTT and not steady
        self._suspect = -1  # the place where the last problem was: most likely it is still there
        self._fine: dict[int, tuple[NodeView, Component, int]] = {}

    def converged(self) -> Problem:
        """Check what users feel."""
        parts = self.truth.components()
        problem = _first(partial(self._nodes_know_each_other, part) for part in parts)
        if problem:
            return problem
        promised = {
            Fact.ONE_CORE: self._groups_hang_together,
            Fact.FOLLOWS_DATABASE: self._databases_are_equal,
        }
        checks = [check for fact, check in promised.items() if fact in self._facts]
        return _first(
            partial(check, seen)
            for check in (_interest_is_in_force, *checks)
            for seen in self._see_all()
        )

    def ways_mark(self) -> object:
        """Return what differs at two moments if ways may have changed between them, so that a copy
        under way then may have been lost; always the same where old ways last for a while."""
        if Fact.FOLLOWS_DATABASE not in self._facts:
            return None
        sites = [site for part in self.truth.components() for site in part.sites]
        return [self.truth.view(site).digest for site in sites]

    def exact(self) -> Iterator[tuple[str, str]]:
        """Check everything; yield every promise that is broken, with the first problem."""
        promised = {
            Fact.TRUE_DISTANCES: ("true distances", self._distances_are_true),
            Fact.REDUNDANCY_FILLED: ("redundancy filled", self._redundancy_is_filled),
            Fact.TABLES_AGREE: ("tables agree", self._tables_agree),
            Fact.MINIMAL: ("meshes minimal", self._meshes_are_minimal),
        }
        checks = [
            ("databases equal", self._databases_are_equal),
            *(check for fact, check in promised.items() if fact in self._facts),
            ("interest installed", self._interest_is_installed),
        ]
        all_seen = self._see_all()
        for name, check in checks:
            problem = _first(partial(check, seen) for seen in all_seen)
            if problem:
                yield name, problem

    def _see_all(self) -> list[Seen]:
        """Look at all nodes but those alone: they have nobody to agree with."""
        parts = [part for part in self.truth.components() if len(part.sites) > 1]
        return [
            Seen(part, {node: self.truth.view(part.by_id[node]) for node in part.ids})
            for part in parts
        ]

    # ------------------------------------------------------------ converged: nodes

    def _nodes_know_each_other(self, part: Component) -> Problem:
        if not part.distinct:
            return f"two nodes share an id in {', '.join(f'n{s.place}' for s in part.sites)}"
        suspects = [site for site in part.sites if site.place == self._suspect]
        for site in [*suspects, *part.sites]:
            view = self.truth.view(site)
            if self._is_fine(site, view, part):
                continue
            problem = _knows_its_surroundings(site, view, part)
            if problem:
                self._suspect = site.place
                return f"n{site.place}: {problem}"
            self._fine[site.place] = (view, part, site.broker.changes)
        return None

    def _is_fine(self, site: Site, view: NodeView, part: Component) -> bool:
        """Whether this very view was right before, and nothing around it has changed since."""
        known = self._fine.get(site.place)
        return (
            known is not None
            and known[0] is view
            and known[1] is part
            and known[2] == site.broker.changes
        )

    # ------------------------------------------------------------ converged: groups

    def _groups_hang_together(self, seen: Seen) -> Problem:
        led: dict[NodeId, Problem] = {}
        for group, wanters in self.wanters(seen).items():
            core, problem = _one_core(group, seen)
            if core is not None and core not in led:
                led[core] = _all_lead_to(core, seen)
            if core is not None:
                problem = led[core] or _all_are_joined(group, core, wanters, seen)
            if problem:
                return f"group {group!r}: {problem}"
        return None

    def wanters(self, seen: Seen) -> dict[Group, dict[NodeId, None]]:
        """Return who wants which group; all belong to the management group."""
        wanters: dict[Group, dict[NodeId, None]] = {MANAGEMENT: dict.fromkeys(seen.part.ids)}
        for node, view in seen.views.items():
            own = view.interest.get(node)
            for name in own.filters if own else ():
                group = group_of(name, self._settings.group_depth)
                wanters.setdefault(group, {})[node] = None
        return wanters

    def _cores(self, seen: Seen) -> list[NodeId]:
        """Return the cores of all groups that somebody wants; all nodes agree on them by now."""
        view = next(iter(seen.views.values()))
        cores = (view.groups[group].core for group in self.wanters(seen))
        return sorted({core for core in cores if core is not None})

    # ------------------------------------------------------------ exact

    def _databases_are_equal(self, seen: Seen) -> Problem:
        digests = {view.digest: seen.name(node) for node, view in seen.views.items()}
        if len(digests) > 1:
            return f"databases differ between {', '.join(digests.values())}"
        return None

    def _distances_are_true(self, seen: Seen) -> Problem:
        if self._settings.metric is Metric.RTT:
            return None
        for core in self._cores(seen):
            truth = seen.part.distances(core)
            for node, view in seen.views.items():
                believed, real = view.cores[core].distance, truth[node]
                if believed != real:
                    return f"{seen.name(node)} is {real} from core {core} and believes {believed}"
        return None

    def _redundancy_is_filled(self, seen: Seen) -> Problem:
        if self._settings.metric is Metric.RTT:
            return None
        for core in self._cores(seen):
            truth = seen.part.distances(core)
            for node, view in seen.views.items():
                nearer = [n for n in seen.part.neighbours[node] if truth[n] < truth[node]]
                parents = view.cores[core].parents
                wanted = min(self._settings.redundancy, len(nearer))
                if len(parents) != wanted or not set(parents) <= set(nearer):
                    has = f"{seen.name(node)} has parents {parents} towards core {core}"
                    return f"{has}, {wanted} of {nearer} are promised"
        return None

    def _tables_agree(self, seen: Seen) -> Problem:
        """A member's parents are its ways to the core, and each has it as a child; no other has."""
        if self._restless:
            return None
        for group in self.wanters(seen):
            told: dict[NodeId, list[NodeId]] = {node: [] for node in seen.views}
            for node, view in seen.views.items():
                mine = view.groups[group]
                ways = (
                    view.cores[mine.core].parents if mine.member and mine.core is not None else ()
                )
                if mine.parents != tuple(sorted(ways)):
                    has = f"{seen.name(node)} told {mine.parents}"
                    return f"group {group!r}: {has}, its ways to the core are {ways}"
                for parent in mine.parents:
                    told[parent].append(node)
            for node, children in told.items():
                known = seen.views[node].groups[group].children
                if known != tuple(children):
                    has = f"{seen.name(node)} has children {known}"
                    return f"group {group!r}: {has}, {tuple(children)} have it as parent"
        return None

    def _meshes_are_minimal(self, seen: Seen) -> Problem:
        """A node is a member only with a reason: clients, a child, or being the core."""
        if self._restless:
            return None
        for group, wanters in self.wanters(seen).items():
            for node, view in seen.views.items():
                mine = view.groups[group]
                reason = node in wanters or bool(mine.children) or mine.core == node
                if mine.member != reason:
                    return (
                        f"{seen.name(node)} is {'a' if mine.member else 'no'} member of {group!r}"
                    )
                if mine.wanted_by != tuple(sorted(wanters)):
                    return f"{seen.name(node)} believes that {mine.wanted_by} want {group!r}"
        return None

    def _interest_is_installed(self, seen: Seen) -> Problem:
        for node, view in seen.views.items():
            if not view.installed:
                return f"{seen.name(node)} does not know that its interest is installed"
        return None


# ---------------------------------------------------------------- nodes


def _knows_its_surroundings(site: Site, view: NodeView, part: Component) -> Problem:
    near = tuple(sorted(view.neighbours))
    if near != part.neighbours[view.node]:
        return f"its neighbours are {part.neighbours[view.node]}, it knows {near}"
    for node, neighbour in view.neighbours.items():
        end = site.ends.get(neighbour.link)
        if end is None or end.other.machine is not part.by_id[node]:
            return f"its link to {node} leads elsewhere"  # to a clone that runs no more, perhaps
    if view.reachable != part.ids:
        return f"it can reach {part.ids}, it knows {view.reachable}"
    own = view.interest.get(view.node)
    announced = own.filters if own else ()
    for wanted in site.broker.clients:
        if not is_local_only(wanted) and not _is_announced(wanted, announced):
            return f"its clients want {wanted}, it announces {announced}"
    for name in announced:
        if split_share(name)[0] is not None and name not in site.broker.clients:
            return f"it announces {name}, which no client wants"
    return None


def _is_announced(wanted: str, announced: tuple[str, ...]) -> bool:
    if split_share(wanted)[0] is not None:
        return wanted in announced
    return any(split_share(a)[0] is None and covers(a, wanted) for a in announced)


def _interest_is_in_force(seen: Seen) -> Problem:
    """Every node's newest interest must be known and in force at every other."""
    newest: dict[NodeId, Stamp] = {}
    wanted: dict[str, None] = {}
    for node, view in seen.views.items():
        own = view.interest.get(node)
        if own is not None:
            newest[node] = own.stamp
            wanted.update((split_share(name)[1], None) for name in own.filters)
    for node, view in seen.views.items():
        # Whole sets at once, which is fast: this runs for every node, all the time.
        own = view.interest.get(node)
        held = view.in_force | {node: own.stamp} if own else view.in_force
        if not newest.items() <= held.items():
            missing = [other for other, stamp in newest.items() if held.get(other) != stamp]
            return f"{seen.name(node)} has the interest of {missing} not in force"
        granted = seen.part.by_id[node].broker.granted
        if not wanted.keys() <= granted.keys() and not wanted.keys() <= granted.keys() | _plain(
            own
        ):
            lacking = [name for name in wanted if name not in granted]
            return f"the broker of {seen.name(node)} was not asked for all of {lacking}"
    return None


def _plain(own: InterestView | None) -> set[str]:
    """Return the filters that a node need not ask its broker for: those that only it wants."""
    return {split_share(name)[1] for name in own.filters} if own else set()


# ---------------------------------------------------------------- groups


def _one_core(group: Group, seen: Seen) -> tuple[NodeId | None, Problem]:
    cores: dict[NodeId | None, NodeId] = {}
    for node, view in seen.views.items():
        known = view.groups.get(group)
        cores.setdefault(known.core if known else None, node)
    if len(cores) > 1:
        sights = ", ".join(f"{seen.name(node)} sees {core}" for core, node in cores.items())
        return None, f"nodes see different cores: {sights}"
    (core,) = cores
    if core is None or core not in seen.views:
        return None, f"its core {core} is not there"
    return core, None


def _all_lead_to(core: NodeId, seen: Seen) -> Problem:
    """Following first parents must lead from everywhere to the core, which must know itself."""
    if core not in seen.views[core].cores:
        return f"its core {seen.name(core)} does not announce itself"
    good = {core}
    for start in seen.views:
        path: list[NodeId] = []
        here = start
        while here not in good:
            way = seen.views[here].cores.get(core)
            path.append(here)
            if way is None or not way.parents or way.parents[0] in path:
                return f"{seen.name(start)} has no way to the core {core}"
            here = way.parents[0]
            if here not in seen.views:
                return f"{seen.name(start)} goes to the core {core} by {here}, gone"
        good.update(path)
    return None


def _all_are_joined(group: Group, core: NodeId, wanters: Iterable[NodeId], seen: Seen) -> Problem:
    """All who want a group must hang on its core by parents and children that agree."""
    joined = {core: None}
    queue = [core]
    for here in queue:  # grows as it is read
        for child in seen.views[here].groups[group].children:
            if child in joined or child not in seen.views:
                continue
            theirs = seen.views[child].groups[group]
            if theirs.member and here in theirs.parents:
                joined[child] = None
                queue.append(child)
    for wanter in wanters:
        if wanter not in joined:
            return f"{seen.name(wanter)} wants it and is not joined to core {core}"
    return None


def _first(checks: Iterable[Callable[[], Problem]]) -> Problem:
    return next((problem for check in checks if (problem := check())), None)
