"""A scenario: a run with a claim, and helpers to evaluate its end.

The scenarios are in `papers`, `examples` and `deliveries`; `catalogue` finds and runs them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby

from hansa.protocol.model import Group
from hansa.protocol.routing.base import GroupStatus
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.status import NodeStatus
from hansa.simulator.analysis.convergence import convergence_limit_s
from hansa.simulator.options import LinkOptions, SimulationOptions
from hansa.simulator.result import SimulationResult
from hansa.simulator.topologies import Topology, TopologyLink


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """One claim of a paper, beside the value of this run."""

    what: str
    claimed: str
    ours: str
    holds: bool | None = None
    """Whether our value is as claimed; None if that is not evaluated."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Time to convergence after simultaneous faults."""

    after: str
    converged_s: float | None
    """None if unknown: another disturbance followed, or the run ended."""
    last: bool = False

    @property
    def duration_text(self) -> str:
        if self.converged_s is not None:
            return format_duration(self.converged_s)
        return "not before the end" if self.last else "the next fault came first"


@dataclass(frozen=True, slots=True)
class FederationSnapshot:
    """A federation at one time. Nodes are named by their places, which are their ids here."""

    statuses: tuple[NodeStatus | None, ...]
    """By place; None where no agent runs."""

    def core(self, group: Group) -> str:
        """Return the core of a group according to the running nodes; all, if they disagree."""
        return format_nodes(
            {-1 if view.core is None else view.core for _, view in self._group_statuses(group)}
        )

    def members(self, group: Group) -> tuple[int, ...]:
        """Return the members of a group's mesh."""
        return tuple(place for place, view in self._group_statuses(group) if view.is_member)

    def parents(self, group: Group) -> dict[int, tuple[int, ...]]:
        """Return, for every node but the core, its parents towards the core of a group."""
        found: dict[int, tuple[int, ...]] = {}
        for place, view in self._running():
            core = view.groups[group].core if group in view.groups else None
            if core is not None and core in view.cores and core != place:
                found[place] = tuple(view.cores[core].parents)
        return found

    def mesh_links(self, group: Group) -> set[TopologyLink]:
        """Return the links between parents and children of a group's mesh."""
        return {
            (min(place, parent), max(place, parent))
            for place, view in self._group_statuses(group)
            for parent in view.parents
        }

    def _running(self) -> list[tuple[int, NodeStatus]]:
        return [(place, view) for place, view in enumerate(self.statuses) if view is not None]

    def _group_statuses(self, group: Group) -> list[tuple[int, GroupStatus]]:
        return [
            (place, view.groups[group]) for place, view in self._running() if group in view.groups
        ]


@dataclass(frozen=True, slots=True)
class FinalSnapshot(FederationSnapshot):
    """A run at its end."""

    options: SimulationOptions
    result: SimulationResult


@dataclass(frozen=True, slots=True)
class SimulationScenario:
    """A named run with expectations."""

    name: str
    title: str
    claim: str
    """The claim of the paper, in one or two sentences."""
    make_options: Callable[[ProtocolSettings, int], SimulationOptions]
    """Makes the options from settings and a seed."""
    evaluate: Callable[[FinalSnapshot], list[ClaimRow]]
    """Compares the paper with our run; a row that does not hold is a violation."""
    notes: tuple[str, ...] = ()
    """Assumptions and calibration that a reader of the comparison must know."""
    is_drawn_from_seed: bool = False
    """Whether the seed also decides the settings."""


def settle_pause_s(topology: Topology, settings: ProtocolSettings, links: LinkOptions) -> float:
    """Return the seconds between two steps of a scenario: enough to converge.

    It follows the settings, so that a scenario also works with slow timers.
    """
    return convergence_limit_s(SimulationOptions(topology, settings, links=links)) + 1


# ---------------------------------------------------------------- rows


def equality_row(what: str, claimed: str, ours: str) -> ClaimRow:
    """Return a row in which our value must equal the claim."""
    return ClaimRow(what, claimed, ours, claimed == ours)


def delivered_once_row(final: FinalSnapshot, publications: int, pairs: int) -> ClaimRow:
    """Return the row for delivery of every publication to every interested broker exactly once."""
    result = final.result
    ours = f"{result.delivered} of {result.expected}, {result.duplicates_delivered} twice"
    holds = (result.publications, result.expected) == (publications, pairs)
    once = result.delivered == pairs and not result.duplicates_delivered
    return ClaimRow(
        f"deliveries of {result.publications} publications", f"all {pairs}", ours, holds and once
    )


def frames_per_announcement_row(final: FinalSnapshot) -> ClaimRow:
    """Return the row of Spohn's first theorem, which holds for equally fast links."""
    most, limit = final.result.frames_per_announcement_max, 2 * final.result.links
    return ClaimRow(
        "frames per announcement, at most", f"{limit} (theorem 1)", str(most), most <= limit
    )


def recoveries(result: SimulationResult) -> list[Recovery]:
    """Return the times to convergence after the start and after faults, one per point in time."""
    found = []
    for at_s, moment in groupby(result.converged_s, key=lambda record: record.at_s):
        records = list(moment)
        last = at_s == result.converged_s[-1].at_s
        found.append(
            Recovery(_merge_descriptions([r.after for r in records]), records[-1].converged_s, last)
        )
    return found


def _merge_descriptions(texts: list[str]) -> str:
    """Return `crash 1,3` for `crash 1` and `crash 3`: descriptions that differ in one word are
    merged."""
    table = [text.split() for text in texts]
    if len({len(words) for words in table}) > 1:
        return ", ".join(texts)
    columns = [list(dict.fromkeys(column)) for column in zip(*table, strict=True)]
    if sum(len(column) > 1 for column in columns) > 1:
        return ", ".join(texts)
    return " ".join(",".join(column) for column in columns)


# ---------------------------------------------------------------- texts


def format_nodes(places: Iterable[int]) -> str:
    """Return nodes as text: `1,3`."""
    return ",".join("none" if place < 0 else str(place) for place in sorted(places))


def format_parents(by_node: dict[int, tuple[int, ...]]) -> str:
    """Return parents as text: `2:{0,3} 5:{3,4}`."""
    return " ".join(f"{node}:{{{format_nodes(above)}}}" for node, above in sorted(by_node.items()))


def format_links(pairs: Iterable[TopologyLink]) -> str:
    """Return links as text: `0-1 3-4`."""
    return " ".join(f"{a}-{b}" for a, b in sorted(pairs))


def format_duration(seconds: float) -> str:
    """Return a duration for people, from milliseconds to hours."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6_000 else f"{seconds / 3600:,.1f} h"
