"""The promise that nothing grows beyond its bound."""

from hansa.protocol.delivery.inbox import FOOTPRINT_BYTES
from hansa.protocol.forwarding.dedup import STRANGERS_MAX
from hansa.protocol.model import Publication
from hansa.simulator.analysis.ledger import Entry
from hansa.simulator.checkers.base import Checker
from hansa.simulator.world.network import End
from hansa.simulator.world.site import Site
from hansa.simulator.world.world import World


class Bounded(Checker):
    """Nothing that a node keeps grows beyond its setting, not even for a moment."""

    name = "bounded"

    def __init__(self, world: World, violations: list[str]) -> None:
        """Take the limits from the settings."""
        super().__init__(world, violations)
        settings = world.options.protocol
        largest = settings.packet_bytes_max + FOOTPRINT_BYTES
        self._limits = {
            "debts": settings.nodes_max,
            "filters": settings.filters_per_node_max,
            "held": settings.held_max,
            "held_bytes": settings.held_bytes_max,
            "nodes": settings.nodes_max,
            "plans": settings.plans_max,
            "streams": settings.nodes_max,
            "unacknowledged": 2 * settings.unacknowledged_max,
            "undelivered": settings.undelivered_max,
            "undelivered_bytes": settings.undelivered_bytes_max + largest,
            "windows": 4 * (settings.nodes_max + STRANGERS_MAX),
        }

    def changed(self, site: Site) -> None:
        """Control may have made it grow."""
        if site.node is None:
            return
        sizes = site.node.sizes()
        for name, limit in self._limits.items():
            if sizes[name] > limit:
                self.fail(f"n{site.place} has {sizes[name]} {name}, the limit is {limit}")

    def forwarded(self, end: End, publication: Publication) -> None:
        """Publications may have, too: where they go on …"""
        self.changed(self.world.sites[end.machine.place])

    def delivered(self, site: Site, publication: Publication, entry: Entry | None) -> None:
        """… and where they end."""
        self.changed(site)
