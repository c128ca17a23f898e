"""What the manager knows, as its planner takes it; and what comes back, for each kind of node."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from hansa.manager.rows import LinkRow, NodeRow, Origin, State
from hansa.topology.graph import Pair, pair
from hansa.topology.planner import Change, Limits, Member, Situation, plan

UNKNOWN_LATENCY_MS = 50.0
"""What a broker is taken to need that did not answer lately, or was never asked."""

Key = tuple[int, int]


def changes(
    nodes: Collection[NodeRow],
    links: Sequence[LinkRow],
    rtts: Mapping[Key, float | None],
    barred: Iterable[Key],
    degree_max: int,
) -> list[Change]:
    """Plan agents and federators of the paper's kind, each by themselves: they do not speak with
    each other. `nodes` are all that are known."""
    known = {_name(key): rtt for key, rtt in rtts.items() if rtt is not None}
    limits = Limits(degree_max=degree_max)
    avoided = frozenset(map(_name, barred))
    silent = {node.id for node in nodes if node.is_silent}
    up = [node for node in nodes if node.state is State.UP]
    found: list[Change] = []
    for kind in (False, True):
        ours = [link for link in links if silent.issuperset((link.a, link.b)) is kind]
        situation = Situation(
            tuple(_member(node) for node in up if node.is_silent is kind),
            frozenset(_name((link.a, link.b)) for link in ours),
            known,
            pinned=frozenset(
                _name((link.a, link.b)) for link in ours if link.origin is Origin.OPERATOR
            ),
            barred=avoided,
        )
        found += plan(situation, limits)
    return found


def _member(node: NodeRow) -> Member:
    latency = UNKNOWN_LATENCY_MS if node.latency_ms is None else node.latency_ms
    return Member(str(node.id), latency, node.tags, node.draining)


def _name(key: Key) -> Pair:
    return pair(str(key[0]), str(key[1]))
