"""Reckons what a federation's traffic costs, without playing it: fast enough to try every change.

The mesh of a group is built as the protocol builds it: distances to the core, up to `redundancy`
parents each, members and their ancestors. A publication goes along parents until it meets the mesh
and then over all of it. What the protocol does while something changes is not in it; a replay is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from hansa.advice.recorded import Flow, Recorded
from hansa.protocol.topics import matches
from hansa.topology.graph import Graph, Name, hops_from, pair

FRAME_BYTES = 32
"""What a copy has besides topic and payload, about."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What delivering the traffic takes, however that was found out."""

    delay_ms: float
    """Of one delivery, on average."""
    bytes: float
    """Over all links, by one publication on average."""
    copies: float
    """Sent by one publication on average."""
    groups: int
    """Groups that are announced."""

    def change(self, to: "Cost", name: str) -> float:
        """Return by which part a figure changes: -0.25 is a quarter less."""
        before, after = getattr(self, name), getattr(to, name)
        return (after - before) / before if before else 0.0


@dataclass(frozen=True, slots=True)
class Mesh:
    """Who carries a group's publications, and to whom each gives them."""

    neighbours: dict[Name, set[Name]]
    parents: dict[Name, list[Name]]
    """Ways towards the core, of all but the core."""

    def step(self, node: Name) -> Name:
        """Return the parent to which a node outside gives it: a member if there is one."""
        return min(self.parents[node], key=lambda parent: parent not in self.neighbours)


def reckon(recorded: Recorded) -> Cost:
    """Return what the recorded traffic costs."""
    graph = recorded.graph
    meshes = {
        group: _mesh(recorded, graph, members, recorded.core(group, members))
        for group, members in recorded.groups().items()
    }
    delays = deliveries = copies = volume = publications = 0.0
    for flow in recorded.flows:
        receivers = [node for node in recorded.wanters(flow.topic) if node != flow.origin]
        if not receivers:
            continue
        fitting = {group: mesh for group, mesh in meshes.items() if matches(group, flow.topic)}
        arrival, sent = _spread(recorded, flow, fitting)
        reached = [node for node in receivers if node in arrival]
        delays += flow.publications * sum(arrival[node] for node in reached)
        deliveries += flow.publications * len(reached)
        publications += flow.publications
        copies += flow.publications * sent
        size = flow.payload_bytes + len(flow.topic.encode()) + FRAME_BYTES
        volume += flow.publications * sent * size
    each = publications or 1.0
    return Cost(delays / (deliveries or 1.0), volume / each, copies / each, len(meshes))


def _mesh(recorded: Recorded, graph: Graph, members: list[Name], core: Name) -> Mesh:
    """Members join through their parents, and these through theirs, up to the core."""
    order = {node: number for number, node in enumerate(recorded.nodes)}
    distance = hops_from(graph, core)
    parents: dict[Name, list[Name]] = {}
    for node, hops in distance.items():
        nearer = [other for other in graph[node] if distance[other] < hops]
        parents[node] = sorted(nearer, key=order.__getitem__)[: recorded.protocol.redundancy]
    neighbours: dict[Name, set[Name]] = {core: set()}
    queue = [node for node in members if node in distance]
    for node in queue:  # grows as it is read
        near = neighbours.setdefault(node, set())
        for parent in parents[node]:
            if parent not in near:
                near.add(parent)
                neighbours.setdefault(parent, set()).add(node)
                queue.append(parent)
    return Mesh(neighbours, {node: several for node, several in parents.items() if several})


def _spread(
    recorded: Recorded, flow: Flow, meshes: Mapping[str, Mesh]
) -> tuple[dict[Name, float], int]:
    """Return when a publication reaches whom, in milliseconds, and how many copies that takes.

    Rules 5.3 to 5.5 of the protocol: whoever gets it first gives it to its mesh neighbours in all
    its groups; a copy names the groups whose mesh it has not met yet, and these are served one step
    after the other towards their core.
    """
    arrival: dict[Name, float] = {}
    served: dict[Name, set[str]] = {}
    copies = 0
    queue: list[tuple[float, Name, Name, tuple[str, ...]]] = [(0.0, flow.origin, "", (*meshes,))]
    while queue:
        time, node, sender, named = heappop(queue)
        onward: dict[Name, list[str]] = {}
        if node not in arrival:
            arrival[node] = time
            for mesh in meshes.values():
                for other in mesh.neighbours.get(node, ()):
                    if other != sender:
                        onward.setdefault(other, [])
        done = served.setdefault(node, set())
        for group in named:
            mesh = meshes[group]
            if node not in mesh.neighbours and group not in done and node in mesh.parents:
                onward.setdefault(mesh.step(node), []).append(group)
            done.add(group)
        for other, groups in onward.items():
            copies += 1
            reached = time + recorded.links[pair(node, other)] / 2
            heappush(queue, (reached, other, node, tuple(groups)))
    return arrival, copies
