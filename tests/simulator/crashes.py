"""Short scripts in which agents crash after chosen effects of their delivery cores."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hansa.delivery.connect_attempts import UNCERTAIN_ALARM
from hansa.delivery.effects import Effect, SetAlarm
from hansa.protocol.model import Publication
from hansa.simulator.actions import ClientSubscribe, ScheduledAction, SimulatedAction
from hansa.simulator.options import DiskOptions, LinkOptions, Phases, SimulationOptions
from hansa.simulator.run import Simulation
from hansa.simulator.topologies import parse_topology
from hansa.simulator.world.hooks import Hooks
from hansa.simulator.world.ledger import LedgerEntry
from hansa.simulator.world.site import Site

START_S = 2.0
"""When a script starts: interest is in force by then."""

DOWN_S = 0.02
"""Seconds until a crashed agent is restarted: longer than any packet travels."""

IN_FLIGHT_MAX = 3
"""Small, so that a few publications fill the window."""


@dataclass(frozen=True, slots=True)
class CrashScript:
    """Actions, in seconds after `START_S`."""

    name: str
    actions: Sequence[tuple[float, SimulatedAction]]
    subscriptions: Sequence[tuple[int, str]] = ((1, "a/b"),)
    """Place and filter; every publication matches all filters."""
    topology: str = "line:2"
    length_s: float = 0.3
    """Seconds in which agents crash."""
    settle_s: float = 1.5
    """Seconds after that until everything must have arrived."""
    certain_from_s: float = 0.0
    """Earlier publications may be lost or duplicated: a state directory is rolled back then."""
    session_lost: tuple[float, int] | None = None
    """When and where the broker loses the session of its agent."""
    disconnection_count: int = 0
    """Connections that break in the script while the broker keeps the session."""


@dataclass(frozen=True, slots=True)
class Crash:
    """The agent of a place crashes after its n-th effect since the start of the script, or since
    the previous crash."""

    place: int
    effect: int
    surviving_fraction: float
    """Unsynced records that are on disk afterwards: from 0, none, to 1, all."""


class CrashRun(Hooks):
    """One run of a script with crashes."""

    def __init__(self, script: CrashScript, crashes: Sequence[Crash] = ()) -> None:
        self.script = script
        self.crashes = crashes
        self.next_crashes: list[Crash] = []
        """Every crash that could follow the last one."""
        self.repeat_count = 0
        """Duplicates that are allowed after a fault."""
        self._pending = list(crashes)
        self._uncertain_count = 0
        """How often an agent raised the alarm that its session is uncertain."""
        self._effect_counts: Counter[int] = Counter()
        self._delivered: list[tuple[int, LedgerEntry]] = []
        first = [ScheduledAction(0.0, ClientSubscribe(*each)) for each in script.subscriptions]
        steps = [ScheduledAction(START_S + at, action) for at, action in script.actions]
        options = SimulationOptions(
            parse_topology(script.topology, 0),
            links=LinkOptions(redial_wait_s=(0.01, 0.02)),
            schedule=(*first, *steps),
            phases=Phases(START_S + script.length_s + script.settle_s),
            disk=DiskOptions(in_flight_max=IN_FLIGHT_MAX),
        )
        self._simulation = Simulation(options, extra_hooks=(self,))
        self._world = self._simulation.world
        self._world.on_effect_performed = self._on_effect
        if script.session_lost is not None:
            at, place = script.session_lost
            self._world.scheduler.at(START_S + at, self._lose_session, self._world.sites[place])

    def play(self) -> list[str]:
        """Run to the end; return what is wrong."""
        self._simulation.run()
        errors = [*self._simulation.violations, *self._find_errors()]
        if self._uncertain_count and self.script.session_lost is not None:
            return self._without_uncertain(errors)
        return errors

    def _without_uncertain(self, errors: Sequence[str]) -> list[str]:
        """Leave out what the alarm covers: publications in flight may be lost or duplicated."""
        covered = [each for each in errors if "reach" in each or "again" in each]
        count = len(set(re.findall(r"publication (\d+)", " ".join(covered))))
        is_covered = count <= IN_FLIGHT_MAX * self._uncertain_count
        return [each for each in errors if not (is_covered and each in covered)]

    def _lose_session(self, site: Site) -> None:
        self._world.lose_session(site)
        self._world.report_disturbance("session lost", places=(site.place,))

    # ------------------------------------------------------------ crashes

    def _on_effect(self, site: Site, effect: Effect) -> None:
        if isinstance(effect, SetAlarm) and effect.name == UNCERTAIN_ALARM and effect.text:
            self._uncertain_count += 1
        if not START_S <= self._world.now < START_S + self.script.length_s:
            return
        self._effect_counts[site.place] += 1
        number = self._effect_counts[site.place]
        if not self._pending:
            self.next_crashes += [
                Crash(site.place, number, fraction) for fraction in _surviving_fractions(site)
            ]
        elif (self._pending[0].place, self._pending[0].effect) == (site.place, number):
            self._crash(site, self._pending.pop(0))

    def _crash(self, site: Site, crash: Crash) -> None:
        self._effect_counts.clear()
        self._world.stop_agent(site, True, crash.surviving_fraction)
        self._world.report_disturbance(f"crash {site.place}", places=(site.place,))
        self._world.scheduler.after(DOWN_S, self._restart, site, site.process_run)

    def _restart(self, site: Site, process_run: int) -> None:
        self._world.restart_agent(site, process_run, with_state=True)
        self._world.report_disturbance(f"restart {site.place}", places=(site.place,))

    # ------------------------------------------------------------ what is wrong

    def on_delivered(self, site: Site, publication: Publication, entry: LedgerEntry | None) -> None:
        assert entry is not None
        self._delivered.append((site.place, entry))

    def _find_errors(self) -> Iterator[str]:
        """Check the guarantees without the checkers' exceptions."""
        if self._pending:
            yield f"{self._pending} did not happen"
        counts = Counter((place, entry.number) for place, entry in self._delivered)
        places = {place for place, _ in self.script.subscriptions}
        certain = [
            entry
            for entry in self._world.ledger.entries
            if entry.at >= START_S + self.script.certain_from_s and entry.is_captured
        ]
        for entry in certain:
            for place in places - {entry.place}:
                count = counts[place, entry.number]
                if count == 0:
                    yield f"publication {entry.number} did not reach n{place}"
                elif entry.qos == 2 and not self._is_session_lost(place):
                    if count > 1:
                        yield f"publication {entry.number} reached n{place} {count} times"
                else:
                    self.repeat_count += count - 1
        faults = len(self.crashes) + self.script.disconnection_count
        faults += self.script.session_lost is not None
        if self.repeat_count > IN_FLIGHT_MAX * faults:
            yield f"{self.repeat_count} duplicates after {faults} faults"
        yield from self._find_reordered()

    def _is_session_lost(self, place: int) -> bool:
        return self.script.session_lost is not None and self.script.session_lost[1] == place

    def _find_reordered(self) -> Iterator[str]:
        newest: dict[tuple[int, int, int], int] = {}
        seen = set()
        for place, entry in self._delivered:
            stream = (place, entry.place, entry.qos)
            if (place, entry.number) not in seen and entry.number < newest.get(stream, -1):
                yield f"publication {entry.number} reached n{place} after {newest[stream]}"
            seen.add((place, entry.number))
            newest[stream] = max(entry.number, newest.get(stream, -1))


def _surviving_fractions(site: Site) -> Sequence[float]:
    """None, some or all of the unsynced records survive, as far as that makes a difference."""
    disk = site.state.disk
    unsynced = max(log.end - log.durable for log in (disk.outbox, disk.inbox) if log is not None)
    return (0.0, 0.5, 1.0)[: 1 + min(unsynced, 2)] if unsynced != 1 else (0.0, 1.0)
