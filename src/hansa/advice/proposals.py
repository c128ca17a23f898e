"""Everything that might be changed, one thing at a time, and which of it is worth saying."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hansa.advice.federation import RecordedFederation
from hansa.advice.prediction import TrafficCost
from hansa.protocol.topics import matches
from hansa.topology.graph import bridges, hops_from, make_graph, make_link_pair

GAIN_MIN = 0.2
"""The least part by which delay, bytes or groups must fall: below it, change is not worth its
risk."""
REGRESSION_MAX = 0.05
"""The most by which anything else may rise."""
DEPTHS = (1, 2, 3)
GROUPS_MIN = 20
"""Groups from which on joining them can be worth it."""
DOMINANT_SOURCE_RATIO = 0.8
"""Subscribers are better off at another broker if that one sends at least so much of what they
get."""

FAR_HOPS = 3
"""Hops from which on it is worth asking people to connect elsewhere."""

ProposalKind = Literal["add link", "drop link", "move core", "join filters", "move clients"]
KIND_ORDER: tuple[ProposalKind, ...] = (
    "add link",
    "drop link",
    "move core",
    "join filters",
    "move clients",
)
"""What is easier to do comes first: links are ours, clients are other people's."""
ACTOR_BY_KIND: dict[ProposalKind, str] = {
    "add link": "manager",
    "drop link": "manager",
    "move core": "clients",
    "join filters": "settings",
    "move clients": "clients",
}
"""Who can do it: the topology manager, whoever writes agents' settings, or only the clients: no
setting makes a node the core, the first to subscribe is it."""
USER_METRICS = ("delay_ms", "bytes")
"""What users feel. All proposals are for less of it, but those to join filters."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """One change."""

    kind: ProposalKind
    subject: tuple[str, ...]
    """Whom it is about: two nodes; a group and its new core; a depth; a filter and two nodes."""

    @property
    def text(self) -> str:
        """Return what to do, as people say it."""
        match self.kind, self.subject:
            case "add link", (a, b):
                return f"link {a} with {b}"
            case "drop link", (a, b):
                return f"remove the link between {a} and {b}"
            case "move core", (group, core):
                return f"let {core} lead {group}: its clients should subscribe first"
            case "join filters", (depth,):
                return f"set group_depth = {depth} on all nodes"
            case "move clients", (topic_filter, start, end):
                return f"let the subscribers of {topic_filter} at {start} connect to {end}"
        raise AssertionError(self)

    def gain(self, before: TrafficCost, after: TrafficCost) -> float:
        """Return how much better it gets in what it is for; 0 if something else gets worse."""
        goals = ("groups",) if self.kind == "join filters" else USER_METRICS
        if any(
            before.relative_change(after, name) > REGRESSION_MAX for name in (*USER_METRICS, *goals)
        ):
            return 0.0
        return max(-before.relative_change(after, name) for name in goals)


@dataclass(frozen=True, slots=True)
class Advice:
    """A proposal that was reckoned and replayed, and is worth it both times."""

    proposal: Proposal
    predicted: tuple[TrafficCost, TrafficCost]
    """Before and after."""
    replayed: tuple[TrafficCost, TrafficCost]

    def as_json(self) -> dict[str, Any]:
        """Return it for other programs."""
        pairs = {
            name: {"before": asdict(costs[0]), "after": asdict(costs[1])}
            for name, costs in (("predicted", self.predicted), ("replayed", self.replayed))
        }
        what = self.proposal
        named = {"kind": what.kind, "by": ACTOR_BY_KIND[what.kind], "subject": list(what.subject)}
        return {**named, "text": what.text, **pairs}


def generate_proposals(federation: RecordedFederation, degree_max: int) -> Iterator[Proposal]:
    """Yield every change that is possible."""
    yield from _propose_links(federation, degree_max)
    yield from _propose_cores(federation)
    yield from _propose_depths(federation)
    yield from _propose_moves(federation)


def apply_proposal(federation: RecordedFederation, proposal: Proposal) -> RecordedFederation:
    """Return the federation with a proposal taken."""
    match proposal.kind, proposal.subject:
        case "add link", (a, b):
            return federation.with_link(make_link_pair(a, b))
        case "drop link", (a, b):
            return federation.without_link(make_link_pair(a, b))
        case "move core", (group, core):
            return federation.with_core(group, core)
        case "join filters", (depth,):
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
    weak = bridges(graph)
    for link in federation.links:
        rest = make_graph(federation.nodes, (each for each in federation.links if each != link))
        if link not in weak and bridges(rest) <= weak:  # no link gets to be the only one
            yield Proposal("drop link", link)


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
            yield Proposal("join filters", (str(depth),))


def _propose_moves(federation: RecordedFederation) -> Iterator[Proposal]:
    """Subscribers might go where nearly all that they get is published, if that is far."""
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
