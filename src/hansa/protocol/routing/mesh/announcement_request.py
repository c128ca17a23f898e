"""Requests for a new announcement of a core: when to send them, and which ones to forward.

A node asks while a core is reachable but has no route: at once when it has just lost its route,
after a delay when an announcement may still be in flight; then at growing intervals. It asks once,
with or without a route, if it had to refuse announcements of the core.
"""

from collections.abc import Iterable
from itertools import chain

from hansa.protocol.membership.records import Stamp
from hansa.protocol.model import NodeId
from hansa.protocol.settings import ProtocolSettings


class AnnouncementRequests:
    """Requests of this node, and requests of others that pass it."""

    def __init__(self, settings: ProtocolSettings) -> None:
        self._interval_min = settings.announcement_interval_min
        self._interval_max = settings.announcement_request_interval_max
        # core: due time, and the interval after it
        self._due: dict[NodeId, tuple[float, float]] = {}
        self._once_due: dict[NodeId, float] = {}
        self._forwarded: dict[NodeId, tuple[Stamp, float]] = {}

    def request_now(self, core: NodeId, now: float) -> None:
        """The route to a core has just been lost: ask now."""
        self._due[core] = (now, self._interval_min)

    def request_later(self, core: NodeId, now: float) -> None:
        """A core has no route yet: ask later if no announcement arrives."""
        self._due.setdefault(core, (now + self._interval_max, self._interval_max))

    def request_once(self, core: NodeId, now: float) -> None:
        """Announcements of a core were refused: ask once for a new one, when those in flight have
        arrived."""
        self._once_due[core] = now + self._interval_max

    def cancel(self, cores: Iterable[NodeId]) -> None:
        for core in cores:
            self._due.pop(core, None)

    def pop_due(self, now: float) -> list[NodeId]:
        """Return the cores to ask now, and schedule the next time."""
        cores = [core for core, (when, _) in self._due.items() if now >= when]
        for core in cores:
            interval = self._due[core][1]
            self._due[core] = (now + interval, min(2 * interval, self._interval_max))
        once = [core for core, when in self._once_due.items() if now >= when]
        for core in once:
            del self._once_due[core]
        return list(dict.fromkeys(cores + once))

    def should_forward(self, core: NodeId, stamp: Stamp, now: float) -> bool:
        """Whether to forward a request of another node: one of several is enough."""
        passed, at = self._forwarded.get(core, ((-1, 0), float("-inf")))
        if passed >= stamp and now < at + self._interval_min:
            return False
        self._forwarded[core] = (stamp, now)
        return True

    def expire_node(self, core: NodeId) -> None:
        """A core's lease has ended."""
        self._forwarded.pop(core, None)

    def next_deadline(self) -> float | None:
        """When `pop_due` is due."""
        if not self._due and not self._once_due:  # the usual case; asked after every change
            return None
        repeated = (when for when, _ in self._due.values())
        return min(chain(repeated, self._once_due.values()), default=None)
