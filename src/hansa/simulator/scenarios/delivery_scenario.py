"""What a scenario of guaranteed delivery consists of: who wants what, and then what happens.

The scenarios themselves are in `deliveries`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import Action, Freeze, Publish, Stall, Step, Subscribe
from hansa.simulator.options import DiskOptions, LinkOptions, Options, Phases
from hansa.simulator.scenarios.scenario import pause_s
from hansa.simulator.topologies import Topology, parse

Script = list[tuple[float, Action]]
"""Seconds after everything has come to rest, and what is done then."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What a scenario consists of."""

    word: str
    wants: Sequence[tuple[int, str]]
    """Who subscribes to what before anything else happens."""
    script: Script
    links: LinkOptions = LinkOptions()
    disk: DiskOptions = DiskOptions()
    lease_s: float | None = None
    late: tuple[int, ...] = ()
    """Who starts when the script says `restart`, and not before."""

    def options(self, settings: ProtocolSettings, seed: int) -> Options:
        """Return the run: everybody subscribes, all comes to rest, then there is trouble."""
        topology = parse(self.word, seed=0)
        if self.links.loss:  # many heartbeats in a row must be lost before a neighbour is given up
            settings = replace(settings, heartbeat_interval=0.5, heartbeat_limit=5.0)
        pace = settings.heartbeat_limit / ProtocolSettings().heartbeat_limit
        if self.lease_s is not None:
            settings = replace(settings, interest_lease=pace * self.lease_s)
        start = 2 * self._pause(topology, settings)
        steps = [Step(0.0, Subscribe(node, name)) for node, name in self.wants]
        steps += [Step(start + pace * at, _slowed(what, pace)) for at, what in self.script]
        last = max(step.at_s + _lasts(step.action) for step in steps)
        patience = 20 * settings.repair_patience
        phases = Phases(last + 2 * self._pause(topology, settings) + patience)
        return Options(
            topology,
            settings,
            seed,
            self.links,
            schedule=tuple(steps),
            phases=phases,
            disk=self.disk,
            late=self.late,
        )

    def _pause(self, topology: Topology, settings: ProtocolSettings) -> float:
        return pause_s(topology, settings, self.links)


def _slowed(action: Action, pace: float) -> Action:
    """Let an action last longer where neighbours are missed later."""
    match action:
        case Publish():
            return replace(action, interval_s=pace * action.interval_s)
        case Freeze(node, seconds):
            return Freeze(node, pace * seconds)
        case Stall(node, seconds):
            return Stall(node, pace * seconds)
    return action


def _lasts(action: Action) -> float:
    return action.count * action.interval_s if isinstance(action, Publish) else 0.0
