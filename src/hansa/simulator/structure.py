"""Whether the federation is right: what every node believes, held against the truth.

Two depths. *Converged* is what users feel: everybody knows everybody, every group has one core and
hangs together, every subscription is in force. *Exact* is all that the protocol promises about its
own shape once it is at rest: shortest distances, full redundancy, tables that agree on both ends.

Each check returns the first problem it finds, as text, or None.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from hansa.protocol.groups import group_of
from hansa.protocol.inspection import InterestView
from hansa.protocol.records import Stamp
from hansa.protocol.settings import Metric, ProtocolSettings
from hansa.protocol.topics import covers, is_local_only, split_share
from hansa.protocol.vocabulary import MANAGEMENT, Group, NodeId
from hansa.simulator.site import Site
from hansa.simulator.truth import Component, Truth

Problem = str | None


class Structure:
    """Compares all nodes with the truth."""

    def __init__(self, truth: Truth, settings: ProtocolSettings) -> None:
        """Look through `truth`; the settings say what was promised."""
        self.truth = truth
        self._settings = settings
        self._suspect = -1  # the place where the last problem was: most likely it is still there

    def converged(self) -> Problem:
        """Check what users feel."""
        parts = self.truth.components()
        return _first(
            *(partial(self._nodes_agree, part) for part in parts),
            *(partial(self._groups_hang_together, part) for part in parts),
        )

    def exact(self) -> Iterator[tuple[str, str]]:
        """Check everything; yield every promise that is broken, with the first problem."""
        checks = {
            "databases equal": self._databases_are_equal,
            "true distances": self._distances_are_true,
            "redundancy filled": self._redundancy_is_filled,
            "tables agree": self._tables_agree,
            "meshes minimal": self._meshes_are_minimal,
            "interest installed": self._interest_is_installed,
        }
        for name, check in checks.items():
            problem = _first(*(partial(check, part) for part in self.truth.components()))
            if problem:
                yield name, problem

    # ------------------------------------------------------------ converged: nodes

    def _nodes_agree(self, part: Component) -> Problem:
        if not part.distinct:
            return f"two nodes share an id in {_places(part.sites)}"
        suspects = [site for site in part.sites if site.place == self._suspect]
        for site in [*suspects, *part.sites]:
            problem = self._knows_its_surroundings(site, part)
            if problem:
                self._suspect = site.place
                return f"n{site.place}: {problem}"
        return self._interest_is_in_force(part)

    def _knows_its_surroundings(self, site: Site, part: Component) -> Problem:
        view = self.truth.view(site)
        near = tuple(sorted(view.neighbours))
        if near != part.neighbours[view.node]:
            return f"its neighbours are {part.neighbours[view.node]}, it knows {near}"
        if view.reachable != part.ids:
            return f"it can reach {part.ids}, it knows {view.reachable}"
        own = view.interest.get(view.node)
        announced = own.filters if own else ()
        for wanted in site.broker.clients:
            if not is_local_only(wanted) and not _is_announced(wanted, announced):
                return f"its clients want {wanted}, it announces {announced}"
        return None

    def _interest_is_in_force(self, part: Component) -> Problem:
        """Every node's newest interest must be known and in force at every other."""
        newest: dict[NodeId, Stamp] = {}
        wanted: dict[str, None] = {}
        for node, site in part.by_id.items():
            own = self.truth.view(site).interest.get(node)
            if own is not None:
                newest[node] = own.stamp
                wanted.update((split_share(name)[1], None) for name in own.filters)
        for site in part.sites:
            view = self.truth.view(site)
            own = view.interest.get(view.node)
            # The whole comparison in one step of C: it runs for every node, all the time.
            held = view.in_force | {view.node: own.stamp} if own else view.in_force
            if not newest.items() <= held.items():
                missing = [node for node, stamp in newest.items() if held.get(node) != stamp]
                return f"n{site.place} has the interest of {missing} not in force"
            if not wanted.keys() <= site.broker.granted.keys() | _plain(own):
                lacking = [name for name in wanted if name not in site.broker.granted]
                return f"the broker of n{site.place} was not asked for all of {lacking}"
        return None

    # ------------------------------------------------------------ converged: groups

    def _groups_hang_together(self, part: Component) -> Problem:
        led: dict[NodeId, Problem] = {}
        for group, wanters in self.wanters(part).items():
            core, problem = self._one_core(group, part)
            if core is not None and core not in led:
                led[core] = self._all_lead_to(core, part)
            if core is not None:
                problem = led[core] or self._all_are_joined(group, core, wanters, part)
            if problem:
                return f"group {group!r}: {problem}"
        return None

    def wanters(self, part: Component) -> dict[Group, dict[NodeId, None]]:
        """Return who wants which group; all belong to the management group."""
        wanters: dict[Group, dict[NodeId, None]] = {MANAGEMENT: dict.fromkeys(part.ids)}
        for site in part.sites:
            view = self.truth.view(site)
            own = view.interest.get(view.node)
            for name in own.filters if own else ():
                group = group_of(name, self._settings.group_depth)
                wanters.setdefault(group, {})[view.node] = None
        return wanters

    def _one_core(self, group: Group, part: Component) -> tuple[NodeId | None, Problem]:
        cores: dict[NodeId | None, Site] = {}
        for site in part.sites:
            seen = self.truth.view(site).groups.get(group)
            cores.setdefault(seen.core if seen else None, site)
        if len(cores) > 1:
            sights = ", ".join(f"n{site.place} sees {core}" for core, site in cores.items())
            return None, f"nodes see different cores: {sights}"
        (core,) = cores
        if core is None or core not in part.by_id:
            return None, f"its core {core} is not there"
        return core, None

    def _all_lead_to(self, core: NodeId, part: Component) -> Problem:
        """Following first parents must lead from everywhere to the core."""
        good = {core}
        for start in part.ids:
            path: list[NodeId] = []
            here = start
            while here not in good:
                way = self.truth.view(part.by_id[here]).cores.get(core)
                path.append(here)
                if way is None or not way.parents or way.parents[0] in path:
                    return f"n{part.by_id[start].place} has no way to the core {core}"
                here = way.parents[0]
                if here not in part.by_id:
                    return f"n{part.by_id[start].place} goes to the core {core} by {here}, gone"
            good.update(path)
        return None

    def _all_are_joined(
        self, group: Group, core: NodeId, wanters: Iterable[NodeId], part: Component
    ) -> Problem:
        """All who want a group must hang on its core by parents and children that agree."""
        joined = {core: None}
        queue = [core]
        for here in queue:  # grows as it is read
            for child in self.truth.view(part.by_id[here]).groups[group].children:
                if child in joined or child not in part.by_id:
                    continue
                theirs = self.truth.view(part.by_id[child]).groups[group]
                if theirs.member and here in theirs.parents:
                    joined[child] = None
                    queue.append(child)
        for wanter in wanters:
            if wanter not in joined:
                return f"n{part.by_id[wanter].place} wants it and is not joined to core {core}"
        return None

    # ------------------------------------------------------------ exact

    def _databases_are_equal(self, part: Component) -> Problem:
        digests = {self.truth.view(site).digest: site.place for site in part.sites}
        if len(digests) > 1:
            return f"databases differ between {_names(digests.values())}"
        return None

    def _distances_are_true(self, part: Component) -> Problem:
        if self._settings.metric is not Metric.HOPS:
            return None
        for core in self._cores(part):
            truth = part.distances(core)
            for site in part.sites:
                way = self.truth.view(site).cores[core]
                if way.distance != truth[site.memory.id]:
                    real = truth[site.memory.id]
                    return f"n{site.place} is {real} from core {core} and believes {way.distance}"
        return None

    def _redundancy_is_filled(self, part: Component) -> Problem:
        if self._settings.metric is not Metric.HOPS:
            return None
        for core in self._cores(part):
            truth = part.distances(core)
            for site in part.sites:
                node = site.memory.id
                nearer = [n for n in part.neighbours[node] if truth[n] < truth[node]]
                parents = self.truth.view(site).cores[core].parents
                wanted = min(self._settings.redundancy, len(nearer))
                if len(parents) != wanted or not set(parents) <= set(nearer):
                    place = f"n{site.place} has parents {parents} towards core {core}"
                    return f"{place}, {wanted} of {nearer} are promised"
        return None

    def _tables_agree(self, part: Component) -> Problem:
        """A member's parents are its ways to the core, and each has it as a child; no other has."""
        for group in self.wanters(part):
            told: dict[NodeId, list[NodeId]] = {node: [] for node in part.ids}
            for node in part.ids:
                view = self.truth.view(part.by_id[node])
                mine = view.groups[group]
                ways = (
                    view.cores[mine.core].parents if mine.member and mine.core is not None else ()
                )
                if mine.parents != tuple(sorted(ways)):
                    place = f"n{part.by_id[node].place} told {mine.parents}"
                    return f"group {group!r}: {place}, its ways to the core are {ways}"
                for parent in mine.parents:
                    told[parent].append(node)
            for node, children in told.items():
                known = self.truth.view(part.by_id[node]).groups[group].children
                if known != tuple(children):
                    place = f"n{part.by_id[node].place} has children {known}"
                    return f"group {group!r}: {place}, {tuple(children)} have it as parent"
        return None

    def _meshes_are_minimal(self, part: Component) -> Problem:
        """A node is a member only with a reason: clients, a child, or being the core."""
        for group, wanters in self.wanters(part).items():
            for site in part.sites:
                view = self.truth.view(site)
                mine = view.groups[group]
                reason = view.node in wanters or bool(mine.children) or mine.core == view.node
                if mine.member != reason:
                    return f"n{site.place} is {'a' if mine.member else 'no'} member of {group!r}"
                if mine.wanted_by != tuple(sorted(wanters)):
                    return f"n{site.place} believes that {mine.wanted_by} want {group!r}"
        return None

    def _interest_is_installed(self, part: Component) -> Problem:
        for site in part.sites:
            if not self.truth.view(site).installed:
                return f"n{site.place} does not know that its interest is installed"
        return None

    def _cores(self, part: Component) -> list[NodeId]:
        views = self.truth.view(part.sites[0])
        cores = (view.core for view in views.groups.values())
        return sorted({core for core in cores if core is not None})


def _plain(own: InterestView | None) -> set[str]:
    """Return the filters that a node need not ask its broker for: those that only it wants."""
    return {split_share(name)[1] for name in own.filters} if own else set()


def _first(*checks: Callable[[], Problem]) -> Problem:
    return next((problem for check in checks if (problem := check())), None)


def _is_announced(wanted: str, announced: tuple[str, ...]) -> bool:
    if split_share(wanted)[0] is not None:
        return wanted in announced
    return any(split_share(a)[0] is None and covers(a, wanted) for a in announced)


def _places(sites: Iterable[Site]) -> str:
    return _names(site.place for site in sites)


def _names(places: Iterable[int]) -> str:
    return ", ".join(f"n{place}" for place in places)
