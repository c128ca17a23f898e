"""The bridge flood: every node sends to all neighbours but the one it heard from.

What bridges between brokers do, and the benchmark of Antonielli 2020; to compare with, not to use.
"""

from hansa.protocol.forwarding.table import GroupEntry
from hansa.protocol.model import Group, NodeId
from hansa.protocol.routing.from_map import LinkStateStrategy


class BridgeFlood(LinkStateStrategy):
    """One node's part in the flood."""

    def _make_entry(self, group: Group, interested: list[NodeId]) -> GroupEntry:
        return GroupEntry(group, True, mesh_links=self._context.links(self._context.neighbours))
