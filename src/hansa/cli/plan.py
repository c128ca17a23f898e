"""From the arguments of `hansa simulate` to the options of a run."""

import argparse
import random
from dataclasses import replace
from typing import TypeVar

from hansa.cli.script import parse_faults, parse_script
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
from hansa.simulator.scenarios.scenario import settle_pause_s
from hansa.simulator.topologies import Topology, parse_topology

T = TypeVar("T")

TOPOLOGY = "ring:3"
PRESET = "default"
FILTER, TOPIC = "plant/#", "plant/temp"
SUBSCRIBERS, PUBLICATIONS = 3, 10
DURATION_S = 10.0
SUBSCRIPTION_INTERVAL_S = 0.5
"""Between two explicit subscriptions, besides what the timers take."""
CAPACITY_MAX = 16
FINAL_S = 2.0
"""After faults, every node publishes to every topic once more and all must arrive."""


def make_settings(args: argparse.Namespace) -> ProtocolSettings:
    """Return the preset with what was asked for changed."""
    base = PRESETS[_or_default(args.preset, PRESET)]
    return replace(
        base,
        strategy=_or_default(args.strategy, base.strategy),
        redundancy=_or_default(args.redundancy, base.redundancy),
        non_member_forwarding=NonMemberForwarding(
            _or_default(args.outside, base.non_member_forwarding)
        ),
        metric=Metric(_or_default(args.metric, base.metric)),
        management_by=ManagementBy(_or_default(args.management, base.management_by)),
        group_depth=_or_default(args.group_depth, base.group_depth),
    )


def make_options(args: argparse.Namespace, seed: int) -> SimulationOptions:
    """Return the run that the arguments describe."""
    topology = parse_topology(_or_default(args.topology, TOPOLOGY), seed)
    protocol, links = make_settings(args), _links(args)
    pause = settle_pause_s(topology, protocol, links)
    subscriptions = _subscriptions(args, topology, protocol, pause)
    publishers = _publishers(args, topology, seed)
    phases = Phases(
        warm_up_s=pause + max((step.at_s for step in subscriptions), default=pause),
        traffic_s=_or_default(args.duration, DURATION_S),
        settle_s=pause,
        final_s=FINAL_S if args.faults or args.at else 0.0,
    )
    if args.faults is not None and not phases.traffic_s:
        raise UsageError("faults need time to strike; give --duration more than 0 seconds")
    faults = FaultCounts() if args.faults is None else parse_faults(args.faults)
    script = parse_script(args.at or (), topology, phases.warm_up_s, phases.traffic_s)
    on_disk = any(isinstance(step.action, StallDisk | FailDisk) for step in script)
    if not args.qos and (faults.stalls or faults.disk_failures or on_disk):
        raise UsageError("a disk is only missed at QoS 1 and 2; give --qos 1 or 2")
    return SimulationOptions(
        topology,
        protocol,
        seed,
        links,
        _workload(args, publishers),
        faults,
        (*subscriptions, *_at_qos(args, [*_publications(args, publishers, phases), *script])),
        phases,
        capacities=_capacities(protocol, topology, seed),
        disk=DiskOptions() if args.qos else None,
    )


def _workload(args: argparse.Namespace, publishers: list[tuple[int, str]]) -> Workload:
    """Return what happens besides the schedule: random subscribers, and the final publications."""
    return Workload(
        subscribers=_or_default(args.subscribers, 0 if args.subscribe else SUBSCRIBERS),
        filters=tuple(check_filter(text) for text in args.filter or (FILTER,)),
        topics=tuple(dict.fromkeys(topic for _, topic in publishers)),
    )


def _subscriptions(
    args: argparse.Namespace, topology: Topology, protocol: ProtocolSettings, start_s: float
) -> list[ScheduledAction]:
    """Return the explicit ones, so far apart that the first is core when the next one comes."""
    apart = SUBSCRIPTION_INTERVAL_S + protocol.change_delay + protocol.announcement_interval_min
    return [
        ScheduledAction(
            start_s + apart * turn, ClientSubscribe(topology.find_node(node), check_filter(name))
        )
        for turn, (node, name) in enumerate(args.subscribe or ())
    ]


def _links(args: argparse.Namespace) -> LinkOptions:
    base = LinkOptions()
    return replace(
        base,
        delay_ms=_or_default(args.delay, base.delay_ms),
        jitter_ms=_or_default(args.jitter, base.jitter_ms),
        loss=_or_default(args.loss, base.loss),
        duplicate=_or_default(args.duplicate, base.duplicate),
        reorder=_or_default(args.reorder, base.reorder),
    )


def _capacities(protocol: ProtocolSettings, topology: Topology, seed: int) -> tuple[float, ...]:
    """Return different capacities if they decide something."""
    if protocol.management_by is not ManagementBy.CAPACITY:
        return ()
    rng = random.Random(f"capacities {seed}")
    return tuple(float(rng.randint(1, CAPACITY_MAX)) for _ in range(topology.nodes))


def _publishers(args: argparse.Namespace, topology: Topology, seed: int) -> list[tuple[int, str]]:
    if args.publish:
        return [(topology.find_node(node), check_name(topic)) for node, topic in args.publish]
    return [(random.Random(f"publisher {seed}").randrange(topology.nodes), TOPIC)]


def _publications(
    args: argparse.Namespace, publishers: list[tuple[int, str]], phases: Phases
) -> list[ScheduledAction]:
    count: int = _or_default(args.publications, PUBLICATIONS)
    if not count:
        return []
    interval = phases.traffic_s / count
    return [
        ScheduledAction(
            phases.warm_up_s, ClientPublish(node, topic, count=count, interval_s=interval)
        )
        for node, topic in publishers
    ]


def _at_qos(args: argparse.Namespace, steps: list[ScheduledAction]) -> list[ScheduledAction]:
    """Return the steps with their publications at the QoS that was asked for."""
    return [
        replace(step, action=replace(step.action, qos=_or_default(args.qos, 0)))
        if isinstance(step.action, ClientPublish)
        else step
        for step in steps
    ]


def _or_default(value: T | None, default: T) -> T:
    return default if value is None else value
