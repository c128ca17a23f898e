"""Runs a simulation from its options to its result."""

import gc
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hansa.protocol.status import NodeStatus
from hansa.simulator.analysis.convergence import ConvergenceTracker
from hansa.simulator.analysis.ground_truth import GroundTruth
from hansa.simulator.analysis.structure import StructureCheck
from hansa.simulator.analysis.telemetry import SimulationTelemetry
from hansa.simulator.byzantine.attacks import compromise_members
from hansa.simulator.checkers import AnnouncementCost, GuaranteedDelivery, make_checkers
from hansa.simulator.options import SimulationOptions
from hansa.simulator.random_faults import all_actions
from hansa.simulator.result import SimulationResult
from hansa.simulator.world.action_executor import ActionExecutor
from hansa.simulator.world.hooks import Hooks
from hansa.simulator.world.site import Site
from hansa.simulator.world.transcript import TranscriptListener
from hansa.simulator.world.world import World

DELIVERY_PAUSE_MAX_S = 60.0
"""A run ends with publications missing if none has arrived anywhere for so long."""

EXTRA_STEP_S = 1.0


class Simulation:
    """A run that can be inspected at any virtual time."""

    def __init__(
        self,
        options: SimulationOptions,
        listener: TranscriptListener | None = None,
        extra_hooks: Iterable[Hooks] = (),
        telemetry: Path | None = None,
    ) -> None:
        """Prepare the run. `extra_hooks` may measure more, and `telemetry` is a directory for
        records."""
        self.options = options
        self.world = World(options, listener)
        self._steps = all_actions(options)
        compromise_members(self.world, self._steps)
        self.executor = ActionExecutor(self.world)
        self.violations: list[str] = []
        steady = options.links.is_ordered and not options.links.jitter_ms
        structure = StructureCheck(GroundTruth(self.world), options.protocol, steady)
        self.tracker = ConvergenceTracker(
            self.world, structure, always_compare=options.check_invariants
        )
        self._announcement_cost = AnnouncementCost(self.world, self.violations)
        self._guaranteed = GuaranteedDelivery(self.world, self.violations, self.tracker)
        checkers: list[Hooks] = [self.tracker, self._announcement_cost]
        if options.check_invariants:
            checkers.append(self._guaranteed)
            checkers += make_checkers(self.world, self.violations, self.tracker, structure)
        self._telemetry = SimulationTelemetry(self.world, telemetry) if telemetry else None
        telemetry_hooks = [self._telemetry] if self._telemetry else []
        self.world.set_hooks([*telemetry_hooks, *checkers, *extra_hooks])
        self._schedule_actions()

    def _schedule_actions(self) -> None:
        """Schedule initial clients, links, starts and all actions."""
        options, world = self.options, self.world
        steps = self._steps
        for step in steps:
            if step.at_s == 0:
                self.executor.schedule(step)
        for a, b in options.topology.links:
            world.network.add_link(world.sites[a], world.sites[b])
        rng = random.Random(f"{options.seed} start")
        world.scheduler.at(0.0, world.report_disturbance, "start")
        for site in world.sites:
            starts_at = rng.uniform(0.0, options.start_spread_s)
            if site.place not in options.late_places:
                world.scheduler.at(starts_at, self._start, site)
        for step in steps:
            if step.at_s > 0:
                self.executor.schedule(step)

    def _start(self, site: Site) -> None:
        if site.process_run:
            return  # a fault started it before
        self.world.start_agent(site)
        self.world.report_disturbance(
            f"start {site.place}", fault=False
        )  # part of the common start

    def run_until(self, time_s: float) -> None:
        """Run up to a virtual time."""
        self.world.scheduler.run_until(time_s)

    def run(self) -> SimulationResult:
        began = time.perf_counter()
        with _without_garbage_collection():
            self.run_until(self.options.end_s)
            self._wait_for_deliveries()
        for call in self.world.hooks.on_run_finished:
            call()
        result = self._result(time.perf_counter() - began)
        if self._telemetry:
            self._telemetry.close(result)
        return result

    def _wait_for_deliveries(self) -> None:
        """Continue while guaranteed publications still arrive: how long slow disks and repairs over
        slow links need is not known in advance. Publications that are stuck are violations."""
        if not self.options.check_invariants:
            return
        ledger, arrived_at = self.world.ledger, self.world.now
        while self._guaranteed.is_missing_publications():
            if self.world.now >= arrived_at + DELIVERY_PAUSE_MAX_S:
                return
            delivered_count = ledger.delivered_count
            self.run_until(self.world.now + EXTRA_STEP_S)
            if ledger.delivered_count > delivered_count:
                arrived_at = self.world.now

    def statuses(self) -> list[NodeStatus | None]:
        """Return the status of every node, by place; None where no agent runs."""
        return [site.node.status() if site.node else None for site in self.world.sites]

    def _result(self, wall_s: float) -> SimulationResult:
        options, world, ledger, traffic = (
            self.options,
            self.world,
            self.world.ledger,
            self.world.traffic,
        )
        sent = sum(1 for entry in ledger.entries if entry.is_captured)
        return SimulationResult(
            seed=options.seed,
            topology=options.topology.name,
            nodes=options.topology.nodes,
            links=len(options.topology.links),
            converged_s=self.tracker.measurements(),
            control_frames=traffic.control_frames(),
            control_bytes=traffic.control_bytes(),
            frames_per_announcement_max=self._announcement_cost.frames_per_announcement_max,
            publications=len(ledger.entries),
            expected=ledger.expected_count,
            delivered=ledger.delivered_count,
            lost=ledger.expected_count - ledger.delivered_count,
            duplicates_delivered=ledger.duplicate_count,
            duplicates_dropped=world.duplicates_dropped,
            copies_per_publication=round(traffic.data_frames / sent, 6) if sent else 0.0,
            delay_ms=ledger.delay_statistics(),
            delay_ms_by_node=ledger.delay_statistics_by_place(),
            guaranteed=self._guaranteed.summarize()
            if options.check_invariants and options.disk
            else None,
            violations=tuple(self.violations),
            fingerprint=world.transcript.fingerprint(),
            virtual_s=world.now,
            events=world.event_count,
            data_frames=traffic.data_frames,
            data_bytes=traffic.data_bytes,
            wall_s=wall_s,
        )


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: a large world has millions of live objects, and scanning them
    costs a quarter of the time.

    The world of the previous run is collected first.
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
    options: SimulationOptions,
    listener: TranscriptListener | None = None,
    telemetry: Path | None = None,
) -> SimulationResult:
    """Run one simulation. `listener` is called with time, place and notification or action."""
    return Simulation(options, listener, telemetry=telemetry).run()
