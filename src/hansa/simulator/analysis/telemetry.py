"""Writes the telemetry records of a simulation, as live agents do, in virtual time.

One log for all nodes in the order of the run: equal options give equal bytes. Faults, recovery
times and the simulator's counters belong to FAULT_INJECTOR.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from hansa import __version__
from hansa.errors import UsageError
from hansa.journal.settings import JournalSettings
from hansa.protocol.effects import Effect, Send
from hansa.protocol.events import Event
from hansa.protocol.model import Publication
from hansa.simulator.options import SimulationOptions
from hansa.simulator.result import SimulationResult
from hansa.simulator.world.hooks import Hooks
from hansa.simulator.world.ledger import LedgerEntry
from hansa.simulator.world.site import Site
from hansa.simulator.world.world import World
from hansa.telemetry import schema
from hansa.telemetry.event_mapper import EventMapper
from hansa.telemetry.writer import NodeRecorder, TelemetryLog

UNWRITTEN_BYTES_MAX = 4 << 20
"""Bytes that are buffered before a write."""

SECOND_NS = 1_000_000_000

_UNBOUNDED_JOURNAL = JournalSettings(
    segment_seconds=float(1 << 40),
    retention_seconds=float(1 << 40),
    retention_bytes=1 << 62,
    unsynced_bytes_max=1 << 40,
)
"""No limit: a run is finite, and records must not be dropped."""


class SimulationTelemetry(Hooks):
    def __init__(self, world: World, path: Path) -> None:
        """Write to this directory, which must be empty."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(f"{path} is not empty; telemetry of a run needs its own directory")
        self._world = world
        self._log = TelemetryLog(path, _UNBOUNDED_JOURNAL, self._now, _log_identity(world.options))
        self._recorders: dict[tuple[int, int], NodeRecorder] = {}
        self._event_mappers: dict[int, EventMapper] = {}
        self._observer_recorder = self._recorder(schema.FAULT_INJECTOR, 1)
        options = world.options
        run = (options.seed, options.topology.name, options.protocol.strategy)
        self._observer_recorder.put(schema.SimulationStarted(0, *run))

    def _now(self) -> int:
        return round(self._world.now * SECOND_NS)

    def _recorder(self, node: int, incarnation: int) -> NodeRecorder:
        """Two copies of a node may share an incarnation; they share the sequence of records,
        too."""
        found = self._recorders.get((node, incarnation))
        if found is None:
            found = self._recorders[node, incarnation] = NodeRecorder(self._log, node, incarnation)
        return found

    # ------------------------------------------------------------ hooks

    def on_agent_started(self, site: Site) -> None:
        identity = (site.state.id, site.state.incarnation)
        recorder = self._recorder(*identity)
        recorder.put(schema.NodeStarted(self._now(), site.name, __version__))
        self._event_mappers[site.place] = EventMapper(recorder.put, identity, 1, self._now)

    def on_agent_stopped(self, site: Site) -> None:
        """Write nothing: a crashed agent would not. Nodes that run to the end get `node_stopped` in
        `close`."""
        del self._event_mappers[site.place]

    def on_event_handled(self, site: Site, event: Event, effects: Sequence[Effect]) -> None:
        self._event_mappers[site.place].on_event_handled(event, effects)

    def on_frame_sent(self, site: Site, send: Send, frame_bytes: int) -> None:
        self._event_mappers[site.place].on_frame_sent(send.link, send.frame, frame_bytes)
        if self._log.uncommitted_bytes > UNWRITTEN_BYTES_MAX:
            self._log.commit()

    def on_delivered(self, site: Site, publication: Publication, entry: LedgerEntry | None) -> None:
        self._event_mappers[site.place].on_delivered(publication)

    def on_disturbance(self, description: str, is_fault: bool, places: tuple[int, ...]) -> None:
        if is_fault:
            nodes = [self._world.sites[place].state.id for place in places[:2]]
            self._observer_recorder.put(schema.FaultInjected(self._now(), description, *nodes))

    # ------------------------------------------------------------ the end

    def close(self, result: SimulationResult) -> None:
        """Write the simulator's counters and everything that is buffered."""
        for record in result.converged_s:
            if record.converged_s is not None:
                at = round(record.at_s * SECOND_NS)
                self._observer_recorder.put(schema.Converged(at, record.after, record.converged_s))
        for name, value in result_counters(result).items():
            self._observer_recorder.put(schema.Counter(self._now(), name, value))
        for narrator in self._event_mappers.values():
            narrator.emit(schema.NodeStopped(self._now(), "the simulation ended"))
        for recorder in self._recorders.values():
            recorder.flush()
        self._log.close()


def _log_identity(options: SimulationOptions) -> int:
    """The same run gives the same log identity."""
    return int.from_bytes(hashlib.sha256(repr(options).encode()).digest()[:8]) >> 1


def result_counters(result: SimulationResult) -> dict[str, float]:
    found: dict[str, float] = {
        name: getattr(result, name)
        for name in (
            *("publications", "expected", "delivered", "duplicates_delivered"),
            *("duplicates_dropped", "data_frames", "data_bytes"),
        )
    }
    for name, count in result.control_frames.items():
        found[f"control_frames {name}"] = count
        found[f"control_bytes {name}"] = result.control_bytes[name]
    return found
