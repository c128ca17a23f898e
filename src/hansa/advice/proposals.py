"""Proposals: all possible single changes of a federation, and their gain."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hansa.advice.federation import RecordedFederation
from hansa.advice.prediction import TrafficCost
from hansa.protocol.topics import matches
from hansa.topology.graph import bridges, hops_from, make_graph, make_link_pair

GAIN_MIN = 0.2
"""Minimum relative reduction of delay, bytes or groups that justifies a change."""
REGRESSION_MAX = 0.05
"""Maximum relative increase of any other figure."""
DEPTHS = (1, 2, 3)
GROUPS_MIN = 20
"""With fewer groups, merging filters is not proposed."""
DOMINANT_SOURCE_RATIO = 0.8
"""Moving subscribers to another broker is proposed if at least this ratio of their publications
originates there."""

FAR_HOPS = 3
"""Minimum distance to that broker."""

ProposalKind = Literal["add link", "remove link", "move core", "merge filters", "move clients"]
KIND_ORDER: tuple[ProposalKind, ...] = (
    "add link",
    "remove link",
    "move core",
    "merge filters",
    "move clients",
)
"""Easier changes first: the manager controls links, but not clients."""
ACTOR_BY_KIND: dict[ProposalKind, str] = {
    "add link": "manager",
    "remove link": "manager",
    "move core": "clients",
    "merge filters": "settings",
    "move clients": "clients",
}
"""Where the change is made: by the topology manager, in the settings of the agents, or by clients.
No setting selects a core: the first node with a subscriber becomes it."""
USER_METRICS = ("delay_ms", "bytes")
"""Figures that all proposals reduce, except those to merge filters."""


@dataclass(frozen=True, slots=True)
class Proposal:
    kind: ProposalKind
    subject: tuple[str, ...]
    """Two nodes; a group and its new core; a depth; or a filter and two nodes."""

    @property
    def text(self) -> str:
        """Return an instruction for the operator."""
        match self.kind, self.subject:
            case "add link", (a, b):
                return f"link {a} with {b}"
            case "remove link", (a, b):
                return f"remove the link between {a} and {b}"
            case "move core", (group, core):
                return f"make {core} the core of {group}: its clients should subscribe first"
            case "merge filters", (depth,):
                return f"set group_depth = {depth} on all nodes"
            case "move clients", (topic_filter, start, end):
                return f"move the subscribers of {topic_filter} from {start} to {end}"
        raise AssertionError(self)

    def gain(self, before: TrafficCost, after: TrafficCost) -> float:
        """Return the best relative reduction of its goals; 0 if another figure gets worse."""
        goals = ("groups",) if self.kind == "merge filters" else USER_METRICS
        if any(
            before.relative_change(after, name) > REGRESSION_MAX for name in (*USER_METRICS, *goals)
        ):
            return 0.0
        return max(-before.relative_change(after, name) for name in goals)


@dataclass(frozen=True, slots=True)
class Advice:
    """A proposal whose gain was predicted and confirmed by replay."""

    proposal: Proposal
    predicted: tuple[TrafficCost, TrafficCost]
    """Before and after."""
    replayed: tuple[TrafficCost, TrafficCost]

    def as_json(self) -> dict[str, Any]:
        pairs = {
            name: {"before": asdict(costs[0]), "after": asdict(costs[1])}
            for name, costs in (("predicted", self.predicted), ("replayed", self.replayed))
        }
        return {
            "kind": self.proposal.kind,
            "actor": ACTOR_BY_KIND[self.proposal.kind],
            "subject": list(self.proposal.subject),
            "text": self.proposal.text,
            **pairs,
        }


def generate_proposals(federation: RecordedFederation, degree_max: int) -> Iterator[Proposal]:
    """Yield every possible change."""
    yield from _propose_links(federation, degree_max)
    yield from _propose_cores(federation)
    yield from _propose_depths(federation)
    yield from _propose_moves(federation)


def apply_proposal(federation: RecordedFederation, proposal: Proposal) -> RecordedFederation:
    match proposal.kind, proposal.subject:
        case "add link", (a, b):
            return federation.with_link(make_link_pair(a, b))
        case "remove link", (a, b):
            return federation.without_link(make_link_pair(a, b))
        case "move core", (group, core):
            return federation.with_core(group, core)
        case "merge filters", (depth,):
            return federation.with_group_depth(int(depth))
        case "move clients", (topic_filter, start, end):
            return federation.with_moved_subscribers(topic_filter, start, end)
    raise AssertionError(proposal)


def _propose_links(federation: RecordedFederation, degree_max: int) -> Iterator[Proposal]:
    graph = federation.graph
    free = [node for node in federation.nodes if len(graph[node]) < degree_max]
    for number, a in enumerate(free):
        for b in free[number + 1 :]:
            if make_link_pair(a, b) not in federation.links:
                yield Proposal("add link", make_link_pair(a, b))
    old_bridges = bridges(graph)
    for link in federation.links:
        rest = make_graph(federation.nodes, (each for each in federation.links if each != link))
        if link not in old_bridges and bridges(rest) <= old_bridges:  # no link becomes a bridge
            yield Proposal("remove link", link)


def _propose_cores(federation: RecordedFederation) -> Iterator[Proposal]:
    for group, members in federation.groups().items():
        for node in members:
            if node != federation.core(group, members):
                yield Proposal("move core", (group, node))


def _propose_depths(federation: RecordedFederation) -> Iterator[Proposal]:
    if len(federation.groups()) < GROUPS_MIN:
        return
    for depth in DEPTHS:
        if depth != federation.protocol.group_depth:
            yield Proposal("merge filters", (str(depth),))


def _propose_moves(federation: RecordedFederation) -> Iterator[Proposal]:
    """Propose to move subscribers to the distant broker where most of their topics originate."""
    graph = federation.graph
    for node in federation.nodes:
        for topic_filter in sorted(federation.interest.get(node, ())):
            sources: dict[str, int] = {}
            for flow in federation.flows:
                if matches(topic_filter, flow.topic):
                    sources[flow.origin] = sources.get(flow.origin, 0) + flow.publications
            total = sum(sources.values())
            for origin, count in sources.items():
                is_far = hops_from(graph, origin).get(node, 0) >= FAR_HOPS
                if is_far and count >= DOMINANT_SOURCE_RATIO * total:
                    yield Proposal("move clients", (topic_filter, node, origin))
