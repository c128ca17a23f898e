"""Predicts the cost of a federation's traffic without simulating it: fast enough for every change.

The mesh of a group is built as in the protocol: distances to the core, up to `redundancy` parents
per node, members and their ancestors. A publication follows parents until it reaches the mesh, and
then crosses the whole mesh. Transient behaviour is not modelled; `replay` covers it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from hansa.advice.federation import RecordedFederation, TopicFlow
from hansa.protocol.topics import matches
from hansa.topology.graph import Graph, NodeName, hops_from, make_link_pair

FRAME_OVERHEAD_BYTES = 32
"""Approximate size of a copy without topic and payload."""


@dataclass(frozen=True, slots=True)
class TrafficCost:
    """The cost of delivering the traffic, predicted or replayed."""

    delay_ms: float
    """Mean delay of a delivery."""
    bytes: float
    """Mean bytes on all links per publication."""
    copies: float
    """Mean copies per publication."""
    groups: int
    """Number of announced groups."""

    def relative_change(self, to: "TrafficCost", name: str) -> float:
        """Return the relative change of a figure: -0.25 is a quarter less."""
        before, after = getattr(self, name), getattr(to, name)
        return (after - before) / before if before else 0.0


@dataclass(frozen=True, slots=True)
class GroupMesh:
    """The mesh of a group: its nodes with their mesh neighbours."""

    neighbours: dict[NodeName, set[NodeName]]
    parents: dict[NodeName, list[NodeName]]
    """Parents of all nodes but the core."""

    def next_hop(self, node: NodeName) -> NodeName:
        """Return the parent to which a node outside the mesh forwards: a mesh node if possible."""
        return min(self.parents[node], key=lambda parent: parent not in self.neighbours)


def predict_cost(federation: RecordedFederation) -> TrafficCost:
    graph = federation.graph
    meshes = {
        group: _build_mesh(federation, graph, members, federation.core(group, members))
        for group, members in federation.groups().items()
    }
    delays = deliveries = copies = total_bytes = publications = 0.0
    for flow in federation.flows:
        receivers = [
            node for node in federation.interested_nodes(flow.topic) if node != flow.origin
        ]
        if not receivers:
            continue
        matching_meshes = {
            group: mesh for group, mesh in meshes.items() if matches(group, flow.topic)
        }
        arrival, sent = _propagate(federation, flow, matching_meshes)
        reached = [node for node in receivers if node in arrival]
        delays += flow.publications * sum(arrival[node] for node in reached)
        deliveries += flow.publications * len(reached)
        publications += flow.publications
        copies += flow.publications * sent
        size = flow.payload_bytes + len(flow.topic.encode()) + FRAME_OVERHEAD_BYTES
        total_bytes += flow.publications * sent * size
    each = publications or 1.0
    return TrafficCost(delays / (deliveries or 1.0), total_bytes / each, copies / each, len(meshes))


def _build_mesh(
    federation: RecordedFederation, graph: Graph, members: list[NodeName], core: NodeName
) -> GroupMesh:
    """Let members join through their parents, and these through theirs, up to the core."""
    order = {node: number for number, node in enumerate(federation.nodes)}
    distance = hops_from(graph, core)
    parents: dict[NodeName, list[NodeName]] = {}
    for node, hops in distance.items():
        nearer = [other for other in graph[node] if distance[other] < hops]
        parents[node] = sorted(nearer, key=order.__getitem__)[: federation.protocol.redundancy]
    neighbours: dict[NodeName, set[NodeName]] = {core: set()}
    queue = [node for node in members if node in distance]
    for node in queue:  # grows during iteration
        node_neighbours = neighbours.setdefault(node, set())
        for parent in parents[node]:
            if parent not in node_neighbours:
                node_neighbours.add(parent)
                neighbours.setdefault(parent, set()).add(node)
                queue.append(parent)
    return GroupMesh(neighbours, {node: several for node, several in parents.items() if several})


def _propagate(
    federation: RecordedFederation, flow: TopicFlow, meshes: Mapping[str, GroupMesh]
) -> tuple[dict[NodeName, float], int]:
    """Return when a publication reaches each node, in milliseconds, and how many copies are sent.

    Rules 5.3 to 5.5 of the protocol: on first receipt, a node forwards to its mesh neighbours in
    all matching groups. A copy names the groups whose mesh it has not reached yet; for these, each
    node forwards to its next hop towards the core.
    """
    arrival: dict[NodeName, float] = {}
    served: dict[NodeName, set[str]] = {}
    copies = 0
    queue: list[tuple[float, NodeName, NodeName, tuple[str, ...]]] = [
        (0.0, flow.origin, "", (*meshes,))
    ]
    while queue:
        time, node, sender, pending_groups = heappop(queue)
        next_hops: dict[NodeName, list[str]] = {}
        if node not in arrival:
            arrival[node] = time
            for mesh in meshes.values():
                for other in mesh.neighbours.get(node, ()):
                    if other != sender:
                        next_hops.setdefault(other, [])
        served_groups = served.setdefault(node, set())
        for group in pending_groups:
            mesh = meshes[group]
            if node not in mesh.neighbours and group not in served_groups and node in mesh.parents:
                next_hops.setdefault(mesh.next_hop(node), []).append(group)
            served_groups.add(group)
        for other, groups in next_hops.items():
            copies += 1
            reached = time + federation.links[make_link_pair(node, other)] / 2
            heappush(queue, (reached, other, node, tuple(groups)))
    return arrival, copies
