"""Asking a core for a fresh announcement: when to ask, and whose requests to pass on.

A node asks while a core is in reach but no way to it is known: at once when it has just lost its
way, after a while when an announcement may still be under way; again and again, ever less often.
"""

from collections.abc import Iterable

from hansa.protocol.membership.records import Stamp
from hansa.protocol.model import NodeId
from hansa.protocol.settings import ProtocolSettings


class AnnouncementRequests:
    """One node's requests, its own and those of others that pass through."""

    def __init__(self, settings: ProtocolSettings) -> None:
        """Start with nothing to ask for."""
        self._interval_min = settings.announcement_interval_min
        self._interval_max = settings.announcement_request_interval_max
        self._due: dict[NodeId, tuple[float, float]] = {}  # core: when, and how long after that
        self._forwarded: dict[NodeId, tuple[Stamp, float]] = {}

    def request_now(self, core: NodeId, now: float) -> None:
        """The way to a core has just been lost: ask now."""
        self._due[core] = (now, self._interval_min)

    def request_later(self, core: NodeId, now: float) -> None:
        """A core has no way yet: ask if none comes by itself."""
        self._due.setdefault(core, (now + self._interval_max, self._interval_max))

    def cancel(self, cores: Iterable[NodeId]) -> None:
        """These need not be asked for any more."""
        for core in cores:
            self._due.pop(core, None)

    def pop_due(self, now: float) -> list[NodeId]:
        """Return the cores to ask for now, and plan the next time."""
        cores = [core for core, (when, _) in self._due.items() if now >= when]
        for core in cores:
            interval = self._due[core][1]
            self._due[core] = (now + interval, min(2 * interval, self._interval_max))
        return cores

    def should_forward(self, core: NodeId, stamp: Stamp, now: float) -> bool:
        """Whether a request of somebody else must travel on: one of many is enough."""
        passed, at = self._forwarded.get(core, ((-1, 0), float("-inf")))
        if passed >= stamp and now < at + self._interval_min:
            return False
        self._forwarded[core] = (stamp, now)
        return True

    def expire_node(self, core: NodeId) -> None:
        """A core's lease has ended."""
        self._forwarded.pop(core, None)

    def next_deadline(self) -> float | None:
        """When `due` next returns something."""
        return min(when for when, _ in self._due.values()) if self._due else None
