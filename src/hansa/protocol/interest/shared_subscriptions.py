"""Shared subscriptions: which nodes serve the share groups of a publication.

A share is `$share/group/filter`; one consumer of it gets each publication. Its consumers may be at
many brokers, and a broker that gets a publication serves every share that it has a consumer of. So
the origin selects the nodes: shares with a consumer at a broker that gets the publication anyway
are served there; for every other share one node is selected round robin. If several of these
brokers have consumers of one share, each serves it; these extra deliveries are counted.
"""

from collections import Counter
from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

from hansa.protocol.model import NodeId

SHARES_MAX = 10_000
"""Shares whose round robin is remembered; when full, all start again."""


class TopicInterest(NamedTuple):
    nodes: tuple[NodeId, ...]
    """The nodes with a plain subscription; each gets every publication."""
    shares: Mapping[str, tuple[NodeId, ...]] = {}
    """Per share, the nodes with consumers."""


class ShareSelector:
    """Round robin per share."""

    def __init__(
        self,
        topic_interest: Callable[[str], TopicInterest],
        has_share: Callable[[str], bool],
        reachable_nodes: Callable[[], Container[NodeId]],
    ) -> None:
        """`topic_interest` returns the interested nodes of a topic; `has_share` says whether this
        node's own broker has a consumer of a share."""
        self.topic_interest = topic_interest
        self._has_share = has_share
        self._reachable_nodes = reachable_nodes
        self._round_robin: Counter[str] = Counter()

    def choose_receivers(
        self, interest: TopicInterest, is_guaranteed: bool
    ) -> tuple[tuple[NodeId, ...], int]:
        """Return the nodes that get the next publication, and how many brokers too many serve a
        share. Only guaranteed publications are kept for unreachable nodes."""
        if not interest.shares:
            return interest.nodes, 0
        chosen = list(interest.nodes)
        served = Counter({share: 1 for share in interest.shares if self._has_share(share)})
        in_reach = self._reachable_nodes()
        for node in chosen:
            if is_guaranteed or node in in_reach:
                served.update(_shares_of(node, interest))
        for share, members in interest.shares.items():
            if served[share]:
                continue
            near = [node for node in members if node in in_reach] or list(members)
            node = self._choose_node(share, near, interest, served)
            chosen.append(node)
            served.update(_shares_of(node, interest))
        return tuple(chosen), sum(count - 1 for count in served.values())

    def _choose_node(
        self, share: str, candidates: list[NodeId], interest: TopicInterest, served: Counter[str]
    ) -> NodeId:
        """Return the next node in turn, preferably one that serves no share twice."""
        preferred = [
            n for n in candidates if not any(served[s] for s in _shares_of(n, interest))
        ] or candidates
        if share not in self._round_robin and len(self._round_robin) >= SHARES_MAX:
            self._round_robin.clear()
        self._round_robin[share] += 1
        return preferred[self._round_robin[share] % len(preferred)]


def _shares_of(node: NodeId, interest: TopicInterest) -> list[str]:
    return [share for share, members in interest.shares.items() if node in members]
