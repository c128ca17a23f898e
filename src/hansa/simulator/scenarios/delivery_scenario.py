"""What a scenario of guaranteed delivery consists of: who wants what, and then what happens.

The scenarios themselves are in `deliveries`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import (
    ClientPublish,
    ClientSubscribe,
    FreezeAgent,
    ScheduledAction,
    SimulatedAction,
    StallDisk,
)
from hansa.simulator.options import DiskOptions, LinkOptions, Phases, SimulationOptions
from hansa.simulator.scenarios.scenario import settle_pause_s
from hansa.simulator.topologies import Topology, parse_topology

TimedActions = list[tuple[float, SimulatedAction]]
"""Seconds after everything has come to rest, and what is done then."""


@dataclass(frozen=True, slots=True)
class DeliveryScenario:
    """What a scenario consists of."""

    topology_text: str
    subscriptions: Sequence[tuple[int, str]]
    """Who subscribes to what before anything else happens."""
    script: TimedActions
    links: LinkOptions = LinkOptions()
    disk: DiskOptions = DiskOptions()
    lease_s: float | None = None
    late_places: tuple[int, ...] = ()
    """Who starts when the script says `restart`, and not before."""

    def make_options(self, settings: ProtocolSettings, seed: int) -> SimulationOptions:
        """Return the run: everybody subscribes, all comes to rest, then there is trouble."""
        topology = parse_topology(self.topology_text, seed=0)
        if self.links.loss:  # many heartbeats in a row must be lost before a neighbour is given up
            settings = replace(settings, heartbeat_interval=0.5, heartbeat_limit=5.0)
        time_scale = settings.heartbeat_limit / ProtocolSettings().heartbeat_limit
        if self.lease_s is not None:
            settings = replace(settings, interest_lease=time_scale * self.lease_s)
        start = 2 * self._pause(topology, settings)
        steps = [
            ScheduledAction(0.0, ClientSubscribe(node, name)) for node, name in self.subscriptions
        ]
        steps += [
            ScheduledAction(start + time_scale * at, _scale_duration(what, time_scale))
            for at, what in self.script
        ]
        last = max(step.at_s + _duration_s(step.action) for step in steps)
        patience = 20 * settings.repair_retry_interval
        phases = Phases(last + 2 * self._pause(topology, settings) + patience)
        return SimulationOptions(
            topology,
            settings,
            seed,
            self.links,
            schedule=tuple(steps),
            phases=phases,
            disk=self.disk,
            late_places=self.late_places,
        )

    def _pause(self, topology: Topology, settings: ProtocolSettings) -> float:
        return settle_pause_s(topology, settings, self.links)


def _scale_duration(action: SimulatedAction, time_scale: float) -> SimulatedAction:
    """Let an action last longer where neighbours are missed later."""
    match action:
        case ClientPublish():
            return replace(action, interval_s=time_scale * action.interval_s)
        case FreezeAgent(node, seconds):
            return FreezeAgent(node, time_scale * seconds)
        case StallDisk(node, seconds):
            return StallDisk(node, time_scale * seconds)
    return action


def _duration_s(action: SimulatedAction) -> float:
    return action.count * action.interval_s if isinstance(action, ClientPublish) else 0.0
