"""The last events of an agent: links, nodes, elections, alarms and losses, with times.

The page shows them as a time line, those of all agents together. Elections have a bound of their
own: a node with many groups must not push everything else out.
"""

import time
from collections import deque
from collections.abc import Callable
from heapq import merge
from typing import Any

from hansa.protocol import effects
from hansa.protocol.model import NodeId

EVENTS_MAX = 400
ELECTIONS_MAX = 200
TEXT_CHARS_MAX = 240

Event = dict[str, Any]
"""`number` counts the events of this incarnation, `at_ms` is the wall clock, `node` an id as text
or empty, `subject` an alarm or a group."""


class History:
    """Events of one incarnation, the oldest dropped first."""

    def __init__(
        self,
        name_of: Callable[[NodeId], str] = lambda node: "",
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.number = 0
        """The number of the last event."""
        self._name_of = name_of
        self._clock_ms = clock_ms
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._elections: deque[Event] = deque(maxlen=ELECTIONS_MAX)

    def newest(self, count: int) -> list[Event]:
        """Return so many of the last events, the oldest first."""
        both = merge(self._events, self._elections, key=lambda each: each["number"])
        return list(both)[-count:]

    def add_notification(self, effect: effects.Effect) -> None:
        """Add an event for a notification of the node, if it is one that an operator looks for."""
        match effect:
            case effects.CoreElected(group, core):
                self._add("core elected", core, group)
            case effects.CoreLost(group, core):
                self._add("core lost", core, group)
            case effects.LinkRefused(_, reason):
                self._add("link refused", text=reason)
            case effects.NeighbourDown(node, reason):
                self._add("link down", node, text=reason)
            case effects.NeighbourUp(node):
                self._add("link up", node)
            case effects.NodeReachable(node):
                self._add("node reachable", node)
            case effects.NodeUnreachable(node):
                self._add("node unreachable", node)
            case _:
                self._add_delivery_event(effect)

    def _add_delivery_event(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Gap(origin, _, first, last, reason):
                self._add("gap", origin, text=f"positions {first} to {last}: {reason}")
            case effects.DeliveryAbandoned(node, _, first, last):
                self._add("delivery abandoned", node, text=f"positions {first} to {last}")
            case effects.Repaired(origin, count):
                self._add("repaired", origin, text=f"{count} publications")
            case _:
                pass

    def add_alarm(self, name: str, text: str, change: str) -> None:
        """An alarm was raised, changed or cleared; `change` says which."""
        self._add(f"alarm {change}", subject=name, text=text)

    def add_broker_status(self, problem: str) -> None:
        self._add("broker lost" if problem else "broker connected", text=problem)

    def _add(
        self, kind: str, node: NodeId | None = None, subject: str = "", text: str = ""
    ) -> None:
        self.number += 1
        event = {
            "number": self.number,
            "at_ms": self._clock_ms(),
            "kind": kind,
            "node": "" if node is None else f"{node:016x}",
            "name": "" if node is None else self._name_of(node),
            "subject": subject[:TEXT_CHARS_MAX],
            "text": text[:TEXT_CHARS_MAX],
        }
        (self._elections if kind.startswith("core ") else self._events).append(event)
