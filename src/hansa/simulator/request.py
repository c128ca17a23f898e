"""What a user asks `hansa simulate` to run, and the options of a run that follow from it.

A field that is None takes its default here. The seed draws everything that is neither given nor
fixed by a default. Raises UsageError for requests that contradict each other.
"""

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from hansa.errors import UsageError
from hansa.protocol.settings import (
    PRESETS,
    ManagementBy,
    Metric,
    NonMemberForwarding,
    ProtocolSettings,
)
from hansa.protocol.topics import check_filter, check_name
from hansa.simulator.actions import (
    ClientPublish,
    ClientSubscribe,
    FailDisk,
    FillDisk,
    PlayAttack,
    ScheduledAction,
    StallDisk,
)
from hansa.simulator.options import (
    DiskOptions,
    FaultCounts,
    LinkOptions,
    Phases,
    SimulationOptions,
    Workload,
)
from hansa.simulator.run import simulate
from hansa.simulator.scenarios.catalogue import ScenarioResult, find_scenario, run_scenario
from hansa.simulator.scenarios.scenario import settle_pause_s
from hansa.simulator.script import parse_faults, parse_script
from hansa.simulator.topologies import Topology, parse_topology
from hansa.simulator.world.transcript import TranscriptListener

T = TypeVar("T")

TOPOLOGY = "ring:3"
PRESET = "default"
FILTER, TOPIC = "plant/#", "plant/temp"
SUBSCRIBERS, PUBLICATIONS = 3, 10
DURATION_S = 10.0
SUBSCRIPTION_INTERVAL_S = 0.5
"""Between two explicit subscriptions, in addition to the timers."""
CAPACITY_MAX = 16
FINAL_S = 2.0
"""After the faults every node publishes to every topic once more, and all must arrive."""

NodeAndText = tuple[str, str]
"""A node, by number or name, and a topic or filter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRequest:
    """The options of `hansa simulate`, under the names of its flags."""

    scenario: str | None = None
    """If given, the scenario decides everything but preset and strategy."""
    topology: str | None = None
    preset: str | None = None
    strategy: str | None = None
    redundancy: int | None = None
    non_member_forwarding: str | None = None
    metric: str | None = None
    management: str | None = None
    group_depth: int | None = None
    delay: float | None = None
    jitter: float | None = None
    loss: float | None = None
    duplicate: float | None = None
    reorder: float | None = None
    subscribe: list[NodeAndText] | None = None
    subscribers: int | None = None
    filter: list[str] | None = None
    publish: list[NodeAndText] | None = None
    publications: int | None = None
    qos: int | None = None
    faults: str | None = None
    at: list[str] | None = None
    duration: float | None = None


def run_request(
    request: SimulationRequest,
    seed: int,
    listener: TranscriptListener | None = None,
    telemetry: Path | None = None,
) -> ScenarioResult:
    """Run one seed of a request. Also runs in worker processes and on Spark executors."""
    if request.scenario is not None:
        scenario = find_scenario(request.scenario)
        return run_scenario(scenario, make_settings(request), seed, listener, telemetry)
    return ScenarioResult(simulate(make_options(request, seed), listener, telemetry), ())


def make_settings(request: SimulationRequest) -> ProtocolSettings:
    """Return the preset with the requested changes."""
    base = PRESETS[_or_default(request.preset, PRESET)]
    return replace(
        base,
        strategy=_or_default(request.strategy, base.strategy),
        redundancy=_or_default(request.redundancy, base.redundancy),
        non_member_forwarding=NonMemberForwarding(
            _or_default(request.non_member_forwarding, base.non_member_forwarding)
        ),
        metric=Metric(_or_default(request.metric, base.metric)),
        management_by=ManagementBy(_or_default(request.management, base.management_by)),
        group_depth=_or_default(request.group_depth, base.group_depth),
    )


def make_options(request: SimulationRequest, seed: int) -> SimulationOptions:
    """Return the options of one seed; raise UsageError if the request cannot be run."""
    topology = parse_topology(_or_default(request.topology, TOPOLOGY), seed)
    protocol, links = make_settings(request), _links(request)
    pause = settle_pause_s(topology, protocol, links)
    subscriptions = _subscriptions(request, topology, protocol, pause)
    publishers = _publishers(request, topology, seed)
    phases = Phases(
        warm_up_s=pause + max((step.at_s for step in subscriptions), default=pause),
        traffic_s=_or_default(request.duration, DURATION_S),
        settle_s=pause,
        final_s=FINAL_S if request.faults or request.at else 0.0,
    )
    if request.faults is not None and not phases.traffic_s:
        raise UsageError("faults need time; give --duration more than 0 seconds")
    faults = FaultCounts() if request.faults is None else parse_faults(request.faults)
    script = parse_script(request.at or (), topology, phases.warm_up_s, phases.traffic_s)
    on_disk = any(isinstance(step.action, StallDisk | FillDisk | FailDisk) for step in script)
    if not request.qos and (faults.stalls or faults.disk_failures or on_disk):
        raise UsageError("disk faults matter only at QoS 1 and 2; give --qos 1 or 2")
    has_attackers = faults.byzantine > 0 or any(
        isinstance(step.action, PlayAttack) for step in script
    )
    return SimulationOptions(
        topology,
        protocol,
        seed,
        links,
        _workload(request, publishers),
        faults,
        (*subscriptions, *_at_qos(request, [*_publications(request, publishers, phases), *script])),
        phases,
        capacities=_capacities(protocol, topology, seed),
        disk=DiskOptions() if request.qos else None,
        derive_ids=has_attackers,
        certificates=has_attackers,
    )


def _workload(request: SimulationRequest, publishers: list[tuple[int, str]]) -> Workload:
    """Return the random subscribers and the topics of the final publications."""
    return Workload(
        subscribers=_or_default(request.subscribers, 0 if request.subscribe else SUBSCRIBERS),
        filters=tuple(check_filter(text) for text in request.filter or (FILTER,)),
        topics=tuple(dict.fromkeys(topic for _, topic in publishers)),
    )


def _subscriptions(
    request: SimulationRequest, topology: Topology, protocol: ProtocolSettings, start_s: float
) -> list[ScheduledAction]:
    """Return the explicit subscriptions, far enough apart for the first to become core."""
    apart = SUBSCRIPTION_INTERVAL_S + protocol.change_delay + protocol.announcement_interval_min
    return [
        ScheduledAction(
            start_s + apart * turn, ClientSubscribe(topology.find_node(node), check_filter(name))
        )
        for turn, (node, name) in enumerate(request.subscribe or ())
    ]


def _links(request: SimulationRequest) -> LinkOptions:
    base = LinkOptions()
    return replace(
        base,
        delay_ms=_or_default(request.delay, base.delay_ms),
        jitter_ms=_or_default(request.jitter, base.jitter_ms),
        loss=_or_default(request.loss, base.loss),
        duplicate=_or_default(request.duplicate, base.duplicate),
        reorder=_or_default(request.reorder, base.reorder),
    )


def _capacities(protocol: ProtocolSettings, topology: Topology, seed: int) -> tuple[float, ...]:
    """Return random capacities if the settings use them."""
    if protocol.management_by is not ManagementBy.CAPACITY:
        return ()
    rng = random.Random(f"capacities {seed}")
    return tuple(float(rng.randint(1, CAPACITY_MAX)) for _ in range(topology.nodes))


def _publishers(request: SimulationRequest, topology: Topology, seed: int) -> list[tuple[int, str]]:
    if request.publish:
        return [(topology.find_node(node), check_name(topic)) for node, topic in request.publish]
    return [(random.Random(f"publisher {seed}").randrange(topology.nodes), TOPIC)]


def _publications(
    request: SimulationRequest, publishers: list[tuple[int, str]], phases: Phases
) -> list[ScheduledAction]:
    count: int = _or_default(request.publications, PUBLICATIONS)
    if not count:
        return []
    interval = phases.traffic_s / count
    return [
        ScheduledAction(
            phases.warm_up_s, ClientPublish(node, topic, count=count, interval_s=interval)
        )
        for node, topic in publishers
    ]


def _at_qos(request: SimulationRequest, steps: list[ScheduledAction]) -> list[ScheduledAction]:
    """Return the steps with their publications at the requested QoS."""
    return [
        replace(step, action=replace(step.action, qos=_or_default(request.qos, 0)))
        if isinstance(step.action, ClientPublish)
        else step
        for step in steps
    ]


def _or_default(value: T | None, default: T) -> T:
    return default if value is None else value
