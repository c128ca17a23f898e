"""Runs the strategy of one node: reports changes to it, and sends its frames.

Each method passes one change to the strategy and returns the effects in order, its frames among
them. Announcements of cores that are not known yet wait here.
"""

from collections.abc import Container, Iterable

from hansa.protocol.effects import Effect, Ignored
from hansa.protocol.interest.groups import GroupIndex
from hansa.protocol.membership.overlay import Overlay
from hansa.protocol.model import Group, NodeId
from hansa.protocol.routing import make_strategy
from hansa.protocol.routing.base import make_strategy_context
from hansa.protocol.routing.early_announcements import UNKNOWN_CORE, EarlyAnnouncements
from hansa.protocol.routing.output import SendToNeighbour, StrategyOutput
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import ControlFrame, CoreAnnouncement


class StrategyRunner:
    def __init__(self, overlay: Overlay, settings: ProtocolSettings) -> None:
        self._overlay = overlay
        self._group_index = GroupIndex(settings.group_depth)
        self.strategy = make_strategy(make_strategy_context(overlay, self._group_index, settings))
        self._early_announcements = EarlyAnnouncements(settings)
        self.due = self.strategy.next_deadline()
        """When `handle_timer` is due."""

    # ------------------------------------------------------------ changes

    def neighbour_up(self, node: NodeId, now: float) -> list[Effect]:
        return self._send(self.strategy.neighbour_up(node, now), now)

    def neighbour_down(self, node: NodeId, now: float) -> list[Effect]:
        self._early_announcements.remove_neighbour(node)
        return self._send(self.strategy.neighbour_down(node, now), now)

    def nodes_changed(
        self, joined: Iterable[NodeId], lost: Iterable[NodeId], now: float
    ) -> list[Effect]:
        """Nodes became reachable or unreachable, or changed their capacity or rights."""
        joined = tuple(joined)
        for core in self._early_announcements.pop_refused(joined):
            self.strategy.announcement_missed(core, now)
        return self._send(self.strategy.nodes_changed(joined, lost, now), now)

    def costs_changed(self, now: float) -> list[Effect]:
        return self._send(self.strategy.costs_changed(now), now)

    def map_changed(self, now: float) -> list[Effect]:
        return self._send(self.strategy.map_changed(now), now)

    def incarnation_raised(self, now: float) -> list[Effect]:
        return self._send(self.strategy.incarnation_raised(now), now)

    def interest_changed(
        self, node: NodeId, added: Iterable[str], removed: Iterable[str], now: float
    ) -> list[Effect]:
        """A node is interested in other filters than before."""
        groups = self._group_index.apply_change(node, added, removed)
        return self._send(self.strategy.interest_changed(groups, now), now)

    def claims_changed(
        self, node: NodeId, added: Iterable[Group], removed: Iterable[Group], now: float
    ) -> list[Effect]:
        """A node claims or releases groups."""
        return self._send(self.strategy.claims_changed(node, added, removed, now), now)

    def expire_node(
        self, node: NodeId, filters: Iterable[str], claims: Iterable[Group], now: float
    ) -> list[Effect]:
        """A node's lease has ended; it had these filters and claims."""
        groups = self._group_index.apply_change(node, (), filters)
        self.strategy.expire_node(node)
        effects = self.claims_changed(node, (), claims, now)
        return effects + self._send(self.strategy.interest_changed(groups, now), now)

    def handle_timer(self, now: float) -> list[Effect]:
        if self.due is None or now < self.due:
            return []
        return self._send(self.strategy.handle_timer(now), now)

    # ------------------------------------------------------------ frames

    def receive(self, sender: NodeId, frame: ControlFrame, now: float) -> list[Effect]:
        """A neighbour sent a frame of the strategy."""
        if isinstance(frame, CoreAnnouncement) and frame.core not in self._overlay.database.nodes:
            is_kept = self._early_announcements.put(sender, frame)
            return [] if is_kept else [Ignored(UNKNOWN_CORE)]
        return self._send(self.strategy.receive(sender, frame, now), now)

    def pop_early_announcements(
        self, known: Container[NodeId]
    ) -> Iterable[tuple[NodeId, CoreAnnouncement]]:
        """Return announcements that waited for the records of their cores, each with its sender."""
        return self._early_announcements.pop_known(known)

    def _send(self, output: StrategyOutput, now: float) -> list[Effect]:
        """Turn frames for neighbours into frames on links, after each call of the strategy."""
        effects: list[Effect] = []
        for item in output:
            if isinstance(item, SendToNeighbour):
                effects += self._overlay.send_to(item.node, item.frame, now)
            else:
                effects.append(item)
        self.due = self.strategy.next_deadline()
        return effects
