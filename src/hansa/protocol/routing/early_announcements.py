"""Announcements of cores whose node record has not arrived yet.

On a new link a neighbour announces all known cores; its records follow one round trip later. Until
the record of a core arrives, its announcement waits and has no effect. So announcements of invented
nodes are never applied or forwarded. The number of waiting announcements is bounded in total and
per neighbour; more are refused and counted. Their cores are asked for a new announcement when they
become reachable: a neighbour announces a core again only if something changes.
"""

from collections import Counter
from collections.abc import Container, Iterable

from msgspec.structs import replace

from hansa.protocol.model import NodeId
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import CoreAnnouncement

UNKNOWN_CORE = "announcement of an unknown core"


class EarlyAnnouncements:
    """Waiting announcements, by core and by neighbour."""

    def __init__(self, settings: ProtocolSettings) -> None:
        self._most_of_one = min(settings.nodes_max, settings.nodes_per_neighbour_max)
        self._most = 2 * settings.nodes_max
        self._waiting: dict[NodeId, dict[NodeId, CoreAnnouncement]] = {}
        self._count_of: Counter[NodeId] = Counter()
        self._refused_cores: dict[NodeId, None] = {}

    def __len__(self) -> int:
        return sum(self._count_of.values())

    def put(self, sender: NodeId, frame: CoreAnnouncement) -> bool:
        """Keep an announcement, without its claims, replacing an older one of the same core and
        sender; refuse it and return False if there is no room."""
        of_core = self._waiting.get(frame.core, {})
        if sender not in of_core:
            if self._count_of[sender] >= self._most_of_one or len(self) >= self._most:
                if len(self._refused_cores) < self._most:
                    self._refused_cores[frame.core] = None
                return False
            self._count_of[sender] += 1
            self._waiting[frame.core] = of_core
        of_core[sender] = replace(frame, claims=None)
        return True

    def pop_known(self, known: Container[NodeId]) -> list[tuple[NodeId, CoreAnnouncement]]:
        """Remove and return those whose core is known now, each with its sender."""
        cores = [core for core in self._waiting if core in known]
        taken = [item for core in cores for item in self._waiting.pop(core).items()]
        for sender, _ in taken:
            self._count_of[sender] -= 1
        return taken

    def pop_refused(self, cores: Iterable[NodeId]) -> list[NodeId]:
        """Remove and return those of the cores that had an announcement refused."""
        refused = [core for core in cores if core in self._refused_cores]
        for core in refused:
            del self._refused_cores[core]
        return refused

    def remove_neighbour(self, node: NodeId) -> None:
        if not self._count_of.pop(node, 0):
            return
        for of_core in self._waiting.values():
            of_core.pop(node, None)
        self._waiting = {core: of_core for core, of_core in self._waiting.items() if of_core}
