"""Invariant: no state of a node grows beyond its bound."""

from collections.abc import Sequence

from hansa.protocol.delivery.inbox import PUBLICATION_OVERHEAD_BYTES
from hansa.protocol.effects import Effect
from hansa.protocol.events import Event
from hansa.protocol.forwarding.dedup import UNKNOWN_ORIGINS_MAX
from hansa.protocol.interest.local import COVERING_FILTERS_MAX
from hansa.protocol.model import Publication
from hansa.simulator.checkers.base import Checker
from hansa.simulator.world.ledger import LedgerEntry
from hansa.simulator.world.network import LinkEnd
from hansa.simulator.world.site import Site
from hansa.simulator.world.world import World


class BoundedState(Checker):
    """No state of a node exceeds its setting at any time."""

    name = "bounded"

    def __init__(self, world: World, violations: list[str]) -> None:
        super().__init__(world, violations)
        settings = world.options.protocol
        largest = settings.packet_bytes_max + PUBLICATION_OVERHEAD_BYTES
        self._limits = {
            "receivers": settings.nodes_max,
            "filters": settings.filters_per_node_max + COVERING_FILTERS_MAX,
            "out_of_order": settings.out_of_order_max,
            "out_of_order_bytes": settings.out_of_order_bytes_max,
            "nodes": settings.nodes_max,
            "topic_plans": settings.plans_max,
            "streams": settings.nodes_max,
            "unacknowledged": 2 * settings.unacknowledged_max,
            "uncommitted": settings.uncommitted_max,
            "uncommitted_bytes": settings.uncommitted_bytes_max + largest,
            "dedup_windows": 4 * (settings.nodes_max + UNKNOWN_ORIGINS_MAX),
        }
        self._checked: set[int] = set()
        """Places whose nodes have handled no event since they were checked."""

    def on_event_handled(self, site: Site, event: Event, effects: Sequence[Effect]) -> None:
        self._checked.discard(site.place)

    def on_state_changed(self, site: Site) -> None:
        if site.node is None or site.place in self._checked:
            return
        self._checked.add(site.place)
        sizes = site.node.sizes()
        for name, limit in self._limits.items():
            if sizes[name] > limit:
                self.report_violation(
                    f"n{site.place} has {sizes[name]} {name}, the limit is {limit}"
                )

    def on_delivery_changed(self, site: Site) -> None:
        self.on_state_changed(site)

    def on_copy_sent(self, end: LinkEnd, publication: Publication) -> None:
        self.on_state_changed(self.world.sites[end.host.place])

    def on_delivered(self, site: Site, publication: Publication, entry: LedgerEntry | None) -> None:
        self.on_state_changed(site)
