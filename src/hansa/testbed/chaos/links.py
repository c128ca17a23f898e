"""The hands that break links. What is broken is remembered, so that all of it can be mended."""

from collections.abc import Iterable

from hansa.testbed.chaos.fault_effects import FaultEffects
from hansa.testbed.datagram_relay import DatagramRelay
from hansa.testbed.federation import LocalFederation
from hansa.testbed.link_conditions import BOTH_DIRECTIONS, Direction, LinkConditions
from hansa.testbed.relay import Relay

NARROW_BYTES_PER_S = 8_000.0
"""Bytes per second: 64 kbit/s."""


class LinkFaults:
    """All links of a federation; each goes through a relay."""

    def __init__(self, federation: LocalFederation, fault_effects: FaultEffects) -> None:
        """Break nothing yet."""
        self._federation = federation
        self._fault_effects = fault_effects
        self._blocked: set[tuple[int, int]] = set()
        self._former_conditions: dict[tuple[int, int], LinkConditions] = {}

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Who is linked to whom."""
        return list(self._federation.topology.links)

    def cut(self, a: int, b: int) -> None:
        """Let nothing pass between two neighbours, and tell nobody."""
        self._fault_effects.record_fault("silence", a, b)
        self._blocked.add((a, b))
        self._federation.cut_link(a, b)

    def black_hole(self, a: int, b: int, directions: Iterable[Direction] = BOTH_DIRECTIONS) -> None:
        """Let nothing pass, one way or both; who dials anew hears nothing either."""
        self._fault_effects.record_fault("black-hole", a, b)
        self._blocked.add((a, b))
        self._tcp_relay(a, b).cut(directions, refuse_connections=False)

    def reset(self, a: int, b: int) -> None:
        """Break the connection off; both ends are told by RST."""
        self._fault_effects.record_fault("reset", a, b)
        self._tcp_relay(a, b).reset()

    def make_half_open(self, a: int, b: int) -> None:
        """Break the connection off, and tell only the end that dialled."""
        self._fault_effects.record_fault("half-open", a, b)
        self._tcp_relay(a, b).make_half_open()

    def degrade(self, a: int, b: int, conditions: LinkConditions) -> None:
        """Make a link longer, narrower or less sure."""
        self._fault_effects.record_fault("worsen", a, b)
        relay = self._federation.link_relay(a, b)
        self._former_conditions.setdefault((a, b), relay.conditions)
        relay.conditions = conditions

    def restore_conditions(self, a: int, b: int) -> None:
        """Undo `worsen`, if nobody has."""
        if (a, b) in self._former_conditions:
            self._fault_effects.record_repair("restore", a, b)
            self._federation.link_relay(a, b).conditions = self._former_conditions.pop((a, b))

    def unblock(self, a: int, b: int) -> None:
        """Undo `cut` and `swallow`."""
        self._fault_effects.record_repair("mend", a, b)
        self._blocked.discard((a, b))
        self._federation.restore_link(a, b)

    def partition(self, side: set[int], bridge: int | None = None) -> None:
        """Cut all links between these nodes and the others, but for those of one that may stay the
        bridge between them."""
        for a, b in self.pairs:
            if (a in side) != (b in side) and bridge not in (a, b):
                self.cut(a, b)

    def heal(self) -> None:
        """Undo everything."""
        for a, b in list(self._blocked):
            self.unblock(a, b)
        for a, b in list(self._former_conditions):
            self.restore_conditions(a, b)

    def _tcp_relay(self, a: int, b: int) -> Relay:
        relay = self._federation.link_relay(a, b)
        assert not isinstance(relay, DatagramRelay), "datagrams have no connection to break"
        return relay
