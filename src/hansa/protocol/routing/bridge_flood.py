"""The bridge flood: every node sends to all neighbours but the one it heard from.

What bridges between brokers do, and the benchmark of Antonielli 2020; to compare with, not to use.
"""

from hansa.protocol.forwarding.table import Entry
from hansa.protocol.model import Group, NodeId
from hansa.protocol.routing.from_map import FromMap


class BridgeFlood(FromMap):
    """One node's part in the flood."""

    def _entry(self, group: Group, wanters: list[NodeId]) -> Entry:
        return Entry(group, True, neighbours=self._around.links(self._around.neighbours))
