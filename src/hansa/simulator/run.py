"""Plays a run from its options to its result."""

import gc
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hansa.protocol.status import NodeView
from hansa.simulator.analysis.convergence import Tracker
from hansa.simulator.analysis.structure import Structure
from hansa.simulator.analysis.telemetry import Telemetry
from hansa.simulator.analysis.transcript import Listener
from hansa.simulator.analysis.truth import Truth
from hansa.simulator.checkers import Cost, Guaranteed, all_checkers
from hansa.simulator.faults.random_faults import random_faults
from hansa.simulator.options import Options
from hansa.simulator.result import Result
from hansa.simulator.workload import random_clients
from hansa.simulator.world.director import Director
from hansa.simulator.world.hooks import Watcher
from hansa.simulator.world.site import Site
from hansa.simulator.world.world import World


class Simulation:
    """One run, that can be looked at while it goes."""

    def __init__(
        self,
        options: Options,
        listen: Listener | None = None,
        watchers: Iterable[Watcher] = (),
        telemetry: Path | None = None,
    ) -> None:
        """Prepare everything; nothing happens before `run`. More watchers may measure more, and
        records of all that happens may go to a directory."""
        self.options = options
        self.world = World(options, listen)
        self.director = Director(self.world)
        self.violations: list[str] = []
        steady = options.links.ordered and not options.links.jitter_ms
        structure = Structure(Truth(self.world), options.protocol, steady)
        self.tracker = Tracker(self.world, structure, always=options.check)
        self._cost = Cost(self.world, self.violations)
        self._guaranteed = Guaranteed(self.world, self.violations, self.tracker)
        checkers: list[Watcher] = [self.tracker, self._cost]
        if options.check:
            checkers.append(self._guaranteed)
            checkers += all_checkers(self.world, self.violations, self.tracker, structure)
        self._telemetry = Telemetry(self.world, telemetry) if telemetry else None
        told = [self._telemetry] if self._telemetry else []
        self.world.watch([*told, *checkers, *watchers])
        self._plan()

    def _plan(self) -> None:
        """Write the schedule: clients that were there before, links, starts, and all the rest."""
        options, world = self.options, self.world
        steps = [*random_clients(options), *random_faults(options), *options.schedule]
        for step in steps:
            if step.at_s == 0:
                self.director.plan(step)
        for a, b in options.topology.links:
            world.network.add(world.sites[a], world.sites[b])
        chance = random.Random(f"{options.seed} start")
        world.scheduler.at(0.0, world.disturb, "start")
        for site in world.sites:
            starts_at = chance.uniform(0.0, options.start_spread_s)
            if site.place not in options.late:
                world.scheduler.at(starts_at, self._start, site)
        for step in steps:
            if step.at_s > 0:
                self.director.plan(step)

    def _start(self, site: Site) -> None:
        self.world.start(site)
        self.world.disturb(f"start {site.place}", fault=False)  # part of the one start of all

    def run_until(self, time_s: float) -> None:
        """Go on to a moment of virtual time."""
        self.world.scheduler.run(time_s)

    def run(self) -> Result:
        """Play to the end."""
        began = time.perf_counter()
        with _without_garbage_collection():
            self.run_until(self.options.end_s)
        for call in self.world.watchers.finished:
            call()
        result = self._result(time.perf_counter() - began)
        if self._telemetry:
            self._telemetry.close(result)
        return result

    def views(self) -> list[NodeView | None]:
        """Return the state of every node, by place; None where none runs."""
        return [site.node.view() if site.node else None for site in self.world.sites]

    def _result(self, wall_s: float) -> Result:
        options, world, ledger, traffic = (
            self.options,
            self.world,
            self.world.ledger,
            self.world.traffic,
        )
        sent = sum(1 for entry in ledger.entries if entry.captured)
        return Result(
            seed=options.seed,
            topology=options.topology.name,
            nodes=options.topology.nodes,
            links=len(options.topology.links),
            converged_s=self.tracker.records(),
            control_frames=traffic.control_frames(),
            control_bytes=traffic.control_bytes(),
            frames_per_announcement_max=self._cost.frames_max,
            publications=len(ledger.entries),
            expected=ledger.expected,
            delivered=ledger.delivered,
            lost=ledger.expected - ledger.delivered,
            duplicates_delivered=ledger.duplicates,
            duplicates_dropped=world.duplicates_dropped,
            copies_per_publication=round(traffic.data_frames / sent, 6) if sent else 0.0,
            delay_ms=ledger.delay(),
            delay_ms_by_node=ledger.delay_by_place(),
            guaranteed=self._guaranteed.summary() if options.check and options.disk else None,
            violations=tuple(self.violations),
            fingerprint=world.transcript.fingerprint(),
            virtual_s=options.end_s,
            events=world.events,
            data_frames=traffic.data_frames,
            data_bytes=traffic.data_bytes,
            wall_s=wall_s,
        )


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A large world is millions of objects that all stay: looking for garbage costs a quarter.

    The world of the run before is garbage by now, and nothing else would ever look for it.
    """
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def simulate(
    options: Options, listen: Listener | None = None, telemetry: Path | None = None
) -> Result:
    """Play one run. `listen` is told what happens: time, place, news or action."""
    return Simulation(options, listen, telemetry=telemetry).run()
