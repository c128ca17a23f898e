"""Everything that might be changed, one thing at a time, and which of it is worth saying."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hansa.advice.reckoning import Cost
from hansa.advice.recorded import Recorded
from hansa.protocol.topics import matches
from hansa.topology.graph import bridges, graph_of, hops_from, pair

WORTH = 0.2
"""The least part by which delay, bytes or groups must fall: below it, change is not worth its
risk."""
HARM = 0.05
"""The most by which anything else may rise."""
DEPTHS = (1, 2, 3)
GROUPS_MIN = 20
"""Groups from which on joining them can be worth it."""
MAIN_PART = 0.8
"""Subscribers are better off at another broker if that one sends at least so much of what they
get."""

FAR = 3
"""Hops from which on it is worth asking people to connect elsewhere."""

Kind = Literal["add link", "drop link", "move core", "join filters", "move clients"]
ORDER: tuple[Kind, ...] = ("add link", "drop link", "move core", "join filters", "move clients")
"""What is easier to do comes first: links are ours, clients are other people's."""
BY: dict[Kind, str] = {
    "add link": "manager",
    "drop link": "manager",
    "move core": "clients",
    "join filters": "settings",
    "move clients": "clients",
}
"""Who can do it: the topology manager, whoever writes agents' settings, or only the clients: no
setting makes a node the core, the first to subscribe is it."""
FELT = ("delay_ms", "bytes")
"""What users feel. All proposals are for less of it, but those to join filters."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """One change."""

    kind: Kind
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

    def gain(self, before: Cost, after: Cost) -> float:
        """Return how much better it gets in what it is for; 0 if something else gets worse."""
        goals = ("groups",) if self.kind == "join filters" else FELT
        if any(before.change(after, name) > HARM for name in (*FELT, *goals)):
            return 0.0
        return max(-before.change(after, name) for name in goals)


@dataclass(frozen=True, slots=True)
class Advice:
    """A proposal that was reckoned and replayed, and is worth it both times."""

    proposal: Proposal
    reckoned: tuple[Cost, Cost]
    """Before and after."""
    replayed: tuple[Cost, Cost]

    def as_json(self) -> dict[str, Any]:
        """Return it for other programs."""
        pairs = {
            name: {"before": asdict(costs[0]), "after": asdict(costs[1])}
            for name, costs in (("predicted", self.reckoned), ("replayed", self.replayed))
        }
        what = self.proposal
        named = {"kind": what.kind, "by": BY[what.kind], "subject": list(what.subject)}
        return {**named, "text": what.text, **pairs}


def proposals(recorded: Recorded, degree_max: int) -> Iterator[Proposal]:
    """Yield every change that is possible."""
    yield from _links(recorded, degree_max)
    yield from _cores(recorded)
    yield from _depths(recorded)
    yield from _moves(recorded)


def applied(recorded: Recorded, proposal: Proposal) -> Recorded:
    """Return the federation with a proposal taken."""
    match proposal.kind, proposal.subject:
        case "add link", (a, b):
            return recorded.with_link(pair(a, b))
        case "drop link", (a, b):
            return recorded.without_link(pair(a, b))
        case "move core", (group, core):
            return recorded.with_core(group, core)
        case "join filters", (depth,):
            return recorded.with_depth(int(depth))
        case "move clients", (topic_filter, start, end):
            return recorded.with_moved(topic_filter, start, end)
    raise AssertionError(proposal)


def _links(recorded: Recorded, degree_max: int) -> Iterator[Proposal]:
    graph = recorded.graph
    free = [node for node in recorded.nodes if len(graph[node]) < degree_max]
    for number, a in enumerate(free):
        for b in free[number + 1 :]:
            if pair(a, b) not in recorded.links:
                yield Proposal("add link", pair(a, b))
    weak = bridges(graph)
    for link in recorded.links:
        rest = graph_of(recorded.nodes, (each for each in recorded.links if each != link))
        if link not in weak and bridges(rest) <= weak:  # no link gets to be the only one
            yield Proposal("drop link", link)


def _cores(recorded: Recorded) -> Iterator[Proposal]:
    for group, members in recorded.groups().items():
        for node in members:
            if node != recorded.core(group, members):
                yield Proposal("move core", (group, node))


def _depths(recorded: Recorded) -> Iterator[Proposal]:
    if len(recorded.groups()) < GROUPS_MIN:
        return
    for depth in DEPTHS:
        if depth != recorded.protocol.group_depth:
            yield Proposal("join filters", (str(depth),))


def _moves(recorded: Recorded) -> Iterator[Proposal]:
    """Subscribers might go where nearly all that they get is published, if that is far."""
    graph = recorded.graph
    for node in recorded.nodes:
        for topic_filter in sorted(recorded.wants.get(node, ())):
            sources: dict[str, int] = {}
            for flow in recorded.flows:
                if matches(topic_filter, flow.topic):
                    sources[flow.origin] = sources.get(flow.origin, 0) + flow.publications
            total = sum(sources.values())
            for origin, count in sources.items():
                is_far = hops_from(graph, origin).get(node, 0) >= FAR
                if is_far and count >= MAIN_PART * total:
                    yield Proposal("move clients", (topic_filter, node, origin))
