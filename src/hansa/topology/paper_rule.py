"""The rule of Bevilaqua 2023, to compare with: two neighbours for who joins, and new ones only for
who has none left."""

from hansa.topology.graph import Name, Pair, pair
from hansa.topology.planner import Member


def join(
    newcomer: Name, members: list[Member], links: frozenset[Pair], degree_max: int
) -> frozenset[Pair]:
    """Link a node that is among the members to the one with the lowest latency that has room, and
    to the one with the fewest neighbours of all."""
    others = [member for member in members if member.name != newcomer]
    degree = {m.name: sum(m.name in link for link in links) for m in others}
    room = [m for m in others if degree[m.name] < degree_max]
    chosen: list[Name] = []
    if room:
        chosen.append(min(room, key=lambda m: (m.latency_ms, m.name)).name)
    rest = [m.name for m in others if m.name not in chosen]
    if rest:
        chosen.append(min(rest, key=lambda name: (degree[name], name)))
    return links | {pair(newcomer, name) for name in chosen}


def lose(
    gone: Name, members: list[Member], links: frozenset[Pair], degree_max: int
) -> frozenset[Pair]:
    """Forget a node that is not among the members any more; link again whom it leaves alone."""
    left = sorted(name for link in links if gone in link for name in link if name != gone)
    links = frozenset(link for link in links if gone not in link)
    for name in left:
        if not any(name in link for link in links):
            links = join(name, members, links, degree_max)
    return links
