"""Notices that a member or a link on the path drops publications at QoS 1 and 2.

Such publications arrive all the same, later: the receiver requests them from the journal of their
origin. After a failure that is normal, but it ends soon. The alarm is raised if publications of one
origin are repaired again and again while no node or neighbour comes or goes. It cannot say which
member of the path it is, and an overloaded link looks the same.
"""

import asyncio
from collections.abc import Callable

from hansa.agent.alarms import SetAlarm
from hansa.agent.error_text import quote_text
from hansa.protocol.effects import (
    Effect,
    NeighbourDown,
    NeighbourUp,
    NodeReachable,
    NodeUnreachable,
    Repaired,
)
from hansa.protocol.model import NodeId

SETTLE_S = 10.0
"""Seconds after a change of neighbours or nodes in which repairs are expected."""

SLOT_S = 5.0
"""Repairs within such a time count once: one failure may cause many."""

SLOTS_MIN = 3
WINDOW_S = 60.0
"""The alarm needs repairs in SLOTS_MIN slots within the window, and stays for as long."""

ORIGINS_MAX = 256
"""Origins whose repairs are counted at a time."""

NAMES_MAX = 3
"""Origins that the alarm names."""

CHECK_INTERVAL_S = 5.0


class WithheldMonitor:
    def __init__(
        self,
        set_alarm: SetAlarm,
        name_of: Callable[[NodeId], str],
        now: Callable[[], float],
    ) -> None:
        """`name_of` returns the name of a node, empty if it is not known."""
        self._set_alarm = set_alarm
        self._name_of = name_of
        self._now = now
        self._settled_at = now() + SETTLE_S
        self._slots: dict[NodeId, dict[int, None]] = {}
        """The numbers of the slots with repairs, by origin."""

    def on_notification(self, effect: Effect) -> None:
        if isinstance(effect, Repaired):
            self._on_repaired(effect.origin)
        elif isinstance(effect, (NeighbourUp, NeighbourDown, NodeReachable, NodeUnreachable)):
            self.expect_repairs()

    def expect_repairs(self) -> None:
        """Something has failed or come back, here or elsewhere."""
        self._settled_at = self._now() + SETTLE_S

    def _on_repaired(self, origin: NodeId) -> None:
        now = self._now()
        if now < self._settled_at or (
            origin not in self._slots and len(self._slots) >= ORIGINS_MAX
        ):
            return
        self._slots.setdefault(origin, {})[int(now // SLOT_S)] = None
        self.check()

    def check(self) -> None:
        """Forget old repairs; raise or clear the alarm."""
        oldest = int((self._now() - WINDOW_S) // SLOT_S)
        for origin, slots in list(self._slots.items()):
            for number in [number for number in slots if number <= oldest]:
                del slots[number]
            if not slots:
                del self._slots[origin]
        origins = [origin for origin, slots in self._slots.items() if len(slots) >= SLOTS_MIN]
        if not origins:
            self._set_alarm("")
            return
        names = ", ".join(self._label_node(origin) for origin in origins[:NAMES_MAX])
        more = f" and {len(origins) - NAMES_MAX} more" if len(origins) > NAMES_MAX else ""
        self._set_alarm(
            f"publications of {names}{more} arrive only from the origin's journal, although no node"
            " was lost: a member or a link on the path drops them"
        )

    def _label_node(self, node: NodeId) -> str:
        name = self._name_of(node)
        return quote_text(name) if name else f"{node:016x}"

    async def run(self) -> None:
        """Check every CHECK_INTERVAL_S."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            self.check()
