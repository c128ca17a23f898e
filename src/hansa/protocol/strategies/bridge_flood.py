"""The bridge flood: every node sends to all neighbours but the one it heard from.

What bridges between brokers do, and the benchmark of Antonielli 2020; to compare with, not to use.
"""

from hansa.protocol.forwarding import Entry
from hansa.protocol.strategies.from_map import FromMap
from hansa.protocol.vocabulary import Group, NodeId


class BridgeFlood(FromMap):
    """One node's part in the flood."""

    def _entry(self, group: Group, wanters: list[NodeId]) -> Entry:
        return Entry(group, True, neighbours=self._around.links(self._around.neighbours))
