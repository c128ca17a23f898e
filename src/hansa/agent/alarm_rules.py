"""Which reports of node, observer and broker raise an alarm, and its text.

Alarms of one part only are raised by that part. Each text says what to do.
"""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic

from hansa.agent.admin.summary import INCOMPLETE
from hansa.agent.alarms import Alarms
from hansa.agent.broker.connection import LOGIN_REFUSED
from hansa.agent.withheld_monitor import WithheldMonitor
from hansa.observers.base import BrokerDroppedPublications, ObserverFinding
from hansa.protocol.effects import Effect, Ignored, IncarnationRaised
from hansa.protocol.model import NodeId

ID_CONFLICT = (
    "another record with this node's id was met and outranked: a copy of this agent runs elsewhere"
    " and must be stopped, a peer forged the record, or the clock was set back"
)

OWN_DISK_ALARMS = frozenset(("journal not writable", "inbox not writable"))
"""While one of them is active, this node cannot accept publications and requests them again."""

FILTERS_REFUSED = {
    "filters_max": "of all other nodes together",
    "filters_per_neighbour_max": "of the nodes behind a neighbour that dialled this agent",
    "filters_per_node_max": "of one node",
}
"""Settings that bound filters, and what each bounds."""


CORE_CHECK_S = 5.0
"""Seconds between two checks whether a reachable node may become core."""

NO_CORE = (
    "no reachable node has the role core, so publications reach no other broker: sign one with"
    " hansa ca sign --role core, or link to one"
)


class AlarmRules:
    def __init__(
        self,
        alarms: Alarms,
        filters_when_unknown: Sequence[str],
        name_of: Callable[[NodeId], str],
        now: Callable[[], float] = monotonic,
        has_core: Callable[[], bool] = lambda: True,
    ) -> None:
        """`name_of` returns the name of a node, empty if it is not known. `has_core`: whether a
        reachable node may become core, or none is needed."""
        self._alarms = alarms
        self._withheld = WithheldMonitor(alarms.setter("publications withheld"), name_of, now)
        self._filters_when_unknown = filters_when_unknown
        self._filters_refused: dict[str, None] = {}
        """The settings that the alarm names."""
        self._has_core = has_core
        self._had_core = True

    async def run(self) -> None:
        """Raise and clear alarms that depend on time."""
        await asyncio.gather(self._withheld.run(), self._watch_cores())

    async def _watch_cores(self) -> None:
        while True:
            await asyncio.sleep(CORE_CHECK_S)
            self.check_cores()

    def check_cores(self) -> None:
        """Raise the alarm if no core was possible at the last check either: nodes become reachable
        one after the other."""
        has_core = self._has_core()
        self._alarms.set("no core", "" if has_core or self._had_core else NO_CORE)
        self._had_core = has_core

    def on_notification(self, effect: Effect) -> None:
        if not OWN_DISK_ALARMS.isdisjoint(self._alarms.active):
            self._withheld.expect_repairs()
        self._withheld.on_notification(effect)
        match effect:
            case IncarnationRaised():
                self._alarms.set("incarnation raised", ID_CONFLICT)
            case Ignored(reason) if reason in FILTERS_REFUSED:
                self._on_filters_refused(reason)

    def _on_filters_refused(self, reason: str) -> None:
        self._filters_refused[reason] = None
        bounds = [f"{each} ({FILTERS_REFUSED[each]})" for each in sorted(self._filters_refused)]
        text = f"filters beyond {', '.join(bounds)} were refused: what they match is not carried;"
        text += " raise the setting, or find the node that announces so many"
        self._alarms.set("filters refused", text)

    def on_finding(self, finding: ObserverFinding) -> None:
        if isinstance(finding, BrokerDroppedPublications):
            text = f"it has dropped {finding.total} messages for slow clients: if the"
            text += " agent is one of them, publications are lost; raise max_queued_messages"
            self._alarms.set("broker dropped messages", text)

    def on_observer_incomplete(self, reason: str) -> None:
        """Raise the alarm while subscriptions may be unknown, with the consequence; clear it
        without a reason."""
        filters = ", ".join(self._filters_when_unknown)
        consequence = (
            f"asks other brokers for {filters}"
            if filters
            else "asks for nothing, and clients may miss messages"
        )
        text = f"{reason}; meanwhile the agent {consequence}" if reason else ""
        self._alarms.set(INCOMPLETE, text)

    def on_broker_status(self, problem: str) -> None:
        self._withheld.expect_repairs()
        if not problem or problem.startswith(LOGIN_REFUSED):
            self._alarms.set("broker login refused", problem)
