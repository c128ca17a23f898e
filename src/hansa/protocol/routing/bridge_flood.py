"""The bridge flood: every node sends to all neighbours except the sender.

Bridges between brokers do this, and it is the benchmark of Antonielli 2020. For comparison only.
"""

from hansa.protocol.forwarding.table import GroupEntry
from hansa.protocol.model import Group, NodeId
from hansa.protocol.routing.from_map import LinkStateStrategy


class BridgeFlood(LinkStateStrategy):
    def _make_entry(self, group: Group, interested: list[NodeId]) -> GroupEntry:
        return GroupEntry(group, True, mesh_links=self._context.links(self._context.neighbours))
