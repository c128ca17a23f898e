"""Faults of links, which all go through relays; `heal` undoes every fault."""

from collections.abc import Iterable

from hansa.testbed.chaos.fault_effects import FaultEffects
from hansa.testbed.datagram_relay import DatagramRelay
from hansa.testbed.federation import LocalFederation
from hansa.testbed.link_conditions import BOTH_DIRECTIONS, Direction, LinkConditions
from hansa.testbed.relay import Relay

NARROW_BYTES_PER_S = 8_000.0
"""Bytes per second: 64 kbit/s."""


class LinkActuator:
    def __init__(self, federation: LocalFederation, fault_effects: FaultEffects) -> None:
        self._federation = federation
        self._fault_effects = fault_effects
        self._blocked: set[tuple[int, int]] = set()
        self._former_conditions: dict[tuple[int, int], LinkConditions] = {}

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return list(self._federation.topology.links)

    def cut(self, a: int, b: int) -> None:
        """Let nothing pass; neither end is notified."""
        self._fault_effects.record_fault("silence", a, b)
        self._blocked.add((a, b))
        self._federation.cut_link(a, b)

    def black_hole(self, a: int, b: int, directions: Iterable[Direction] = BOTH_DIRECTIONS) -> None:
        """Let nothing pass, in one direction or both; new connections get no answer either."""
        self._fault_effects.record_fault("black-hole", a, b)
        self._blocked.add((a, b))
        self._tcp_relay(a, b).cut(directions, refuse_connections=False)

    def reset(self, a: int, b: int) -> None:
        """Reset the connection at both ends."""
        self._fault_effects.record_fault("reset", a, b)
        self._tcp_relay(a, b).reset()

    def make_half_open(self, a: int, b: int) -> None:
        """Reset the connection at the dialling end only."""
        self._fault_effects.record_fault("half-open", a, b)
        self._tcp_relay(a, b).make_half_open()

    def degrade(self, a: int, b: int, conditions: LinkConditions) -> None:
        """Give a link other delay, bandwidth or loss."""
        self._fault_effects.record_fault("degrade", a, b)
        relay = self._federation.link_relay(a, b)
        self._former_conditions.setdefault((a, b), relay.conditions)
        relay.conditions = conditions

    def restore_conditions(self, a: int, b: int) -> None:
        """Undo `degrade`, unless it is undone already."""
        if (a, b) in self._former_conditions:
            self._fault_effects.record_repair("restore-conditions", a, b)
            self._federation.link_relay(a, b).conditions = self._former_conditions.pop((a, b))

    def unblock(self, a: int, b: int) -> None:
        """Undo `cut` and `black_hole`."""
        self._fault_effects.record_repair("restore", a, b)
        self._blocked.discard((a, b))
        self._federation.restore_link(a, b)

    def partition(self, side: set[int], bridge: int | None = None) -> None:
        """Cut all links between these nodes and the others, except links of the bridge node."""
        for a, b in self.pairs:
            if (a in side) != (b in side) and bridge not in (a, b):
                self.cut(a, b)

    def heal(self) -> None:
        for a, b in list(self._blocked):
            self.unblock(a, b)
        for a, b in list(self._former_conditions):
            self.restore_conditions(a, b)

    def _tcp_relay(self, a: int, b: int) -> Relay:
        relay = self._federation.link_relay(a, b)
        assert not isinstance(relay, DatagramRelay), "datagrams have no connection to reset"
        return relay
