"""Shared subscriptions: which nodes serve the share groups that want a publication.

A share is a group with its filter, `$share/g/f`; one consumer of it gets each publication. Its
consumers may be at many brokers, and a broker that gets a publication serves every share that it
has a consumer of, whatever it got it for. So the node where something is published decides: what
its own broker serves, and what is served where it goes anyway, is served; for every other share one
node is chosen in turn. Where more than one broker serves a share, nobody can stop them: that is
counted.
"""

from collections import Counter
from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

from hansa.protocol.model import NodeId

SHARES_MAX = 10_000
"""Shares whose turn is remembered; when full, all begin anew."""


class Audience(NamedTuple):
    """Who wants a topic."""

    nodes: tuple[NodeId, ...]
    """Those with a plain subscription; each gets every publication."""
    shares: Mapping[str, tuple[NodeId, ...]] = {}
    """Per share, the nodes with consumers of it."""


class Turns:
    """Whose turn it is, share by share."""

    def __init__(
        self,
        audience: Callable[[str], Audience],
        has_share: Callable[[str], bool],
        in_reach: Callable[[], Container[NodeId]],
    ) -> None:
        """`audience` tells which other nodes want a topic, `has_share` whether this node's own
        broker has a consumer of a share."""
        self.audience = audience
        self._has_share = has_share
        self._in_reach = in_reach
        self._turns: Counter[str] = Counter()

    def choose(self, audience: Audience, kept: bool) -> tuple[tuple[NodeId, ...], int]:
        """Return the nodes that get the next publication, and how often a share is served by one
        broker too many. Only what is `kept` reaches a node that is away now."""
        if not audience.shares:
            return audience.nodes, 0
        chosen = list(audience.nodes)
        served = Counter({share: 1 for share in audience.shares if self._has_share(share)})
        in_reach = self._in_reach()
        for node in chosen:
            if kept or node in in_reach:
                served.update(_shares_of(node, audience))
        for share, members in audience.shares.items():
            if served[share]:
                continue
            near = [node for node in members if node in in_reach] or list(members)
            node = self._next(share, near, audience, served)
            chosen.append(node)
            served.update(_shares_of(node, audience))
        return tuple(chosen), sum(count - 1 for count in served.values())

    def _next(
        self, share: str, near: list[NodeId], audience: Audience, served: Counter[str]
    ) -> NodeId:
        """Return the node whose turn it is: rather one that serves nobody twice."""
        apart = [n for n in near if not any(served[s] for s in _shares_of(n, audience))] or near
        if share not in self._turns and len(self._turns) >= SHARES_MAX:
            self._turns.clear()
        self._turns[share] += 1
        return apart[self._turns[share] % len(apart)]


def _shares_of(node: NodeId, audience: Audience) -> list[str]:
    return [share for share, members in audience.shares.items() if node in members]
