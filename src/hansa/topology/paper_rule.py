"""The rule of Bevilaqua 2023, for comparison: a joining node gets two neighbours, and a node gets
new ones only when it has none left."""

from hansa.topology.graph import LinkPair, NodeName, make_link_pair
from hansa.topology.planner import PlannerNode


def join_node(
    newcomer: NodeName, members: list[PlannerNode], links: frozenset[LinkPair], degree_max: int
) -> frozenset[LinkPair]:
    """Link a new member to the one with the lowest latency that has room, and to the one with the
    fewest neighbours."""
    others = [member for member in members if member.name != newcomer]
    degree = {m.name: sum(m.name in link for link in links) for m in others}
    room = [m for m in others if degree[m.name] < degree_max]
    chosen: list[NodeName] = []
    if room:
        chosen.append(min(room, key=lambda m: (m.latency_ms, m.name)).name)
    rest = [m.name for m in others if m.name not in chosen]
    if rest:
        chosen.append(min(rest, key=lambda name: (degree[name], name)))
    return links | {make_link_pair(newcomer, name) for name in chosen}


def remove_node(
    removed: NodeName, members: list[PlannerNode], links: frozenset[LinkPair], degree_max: int
) -> frozenset[LinkPair]:
    """Remove the links of a former member; join the nodes that have no neighbour left."""
    former_neighbours = sorted(
        name for link in links if removed in link for name in link if name != removed
    )
    links = frozenset(link for link in links if removed not in link)
    for name in former_neighbours:
        if not any(name in link for link in links):
            links = join_node(name, members, links, degree_max)
    return links
