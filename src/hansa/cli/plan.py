"""From the arguments of `hansa simulate` to the options of a run."""

import argparse
import random
from dataclasses import replace
from typing import TypeVar

from hansa.cli.script import parse_faults, parse_script
from hansa.errors import UsageError
from hansa.protocol.settings import PRESETS, ManagementBy, Metric, Outside, ProtocolSettings
from hansa.protocol.topics import check_filter, check_name
from hansa.simulator.actions import FailDisk, Publish, Stall, Step, Subscribe
from hansa.simulator.options import DiskOptions, Faults, LinkOptions, Options, Phases, Workload
from hansa.simulator.scenarios.scenario import pause_s
from hansa.simulator.topologies import Topology, parse

T = TypeVar("T")

TOPOLOGY = "ring:3"
PRESET = "default"
FILTER, TOPIC = "plant/#", "plant/temp"
SUBSCRIBERS, PUBLICATIONS = 3, 10
DURATION_S = 10.0
APART_S = 0.5
"""Between two explicit subscriptions, besides what the timers take."""
CAPACITY_MAX = 16
FINAL_S = 2.0
"""After faults, every node publishes to every topic once more and all must arrive."""


def settings(args: argparse.Namespace) -> ProtocolSettings:
    """Return the preset with what was asked for changed."""
    base = PRESETS[_given(args.preset, PRESET)]
    return replace(
        base,
        strategy=_given(args.strategy, base.strategy),
        redundancy=_given(args.redundancy, base.redundancy),
        outside=Outside(_given(args.outside, base.outside)),
        metric=Metric(_given(args.metric, base.metric)),
        management_by=ManagementBy(_given(args.management, base.management_by)),
        group_depth=_given(args.group_depth, base.group_depth),
    )


def options(args: argparse.Namespace, seed: int) -> Options:
    """Return the run that the arguments describe."""
    topology = parse(_given(args.topology, TOPOLOGY), seed)
    protocol, links = settings(args), _links(args)
    pause = pause_s(topology, protocol, links)
    subscriptions = _subscriptions(args, topology, protocol, pause)
    publishers = _publishers(args, topology, seed)
    phases = Phases(
        warm_up_s=pause + max((step.at_s for step in subscriptions), default=pause),
        traffic_s=_given(args.duration, DURATION_S),
        settle_s=pause,
        final_s=FINAL_S if args.faults or args.at else 0.0,
    )
    if args.faults is not None and not phases.traffic_s:
        raise UsageError("faults need time to strike; give --duration more than 0 seconds")
    faults = Faults() if args.faults is None else parse_faults(args.faults)
    script = parse_script(args.at or (), topology, phases.warm_up_s, phases.traffic_s)
    on_disk = any(isinstance(step.action, Stall | FailDisk) for step in script)
    if not args.qos and (faults.stalls or faults.disk_failures or on_disk):
        raise UsageError("a disk is only missed at QoS 1 and 2; give --qos 1 or 2")
    return Options(
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
        subscribers=_given(args.subscribers, 0 if args.subscribe else SUBSCRIBERS),
        filters=tuple(check_filter(text) for text in args.filter or (FILTER,)),
        topics=tuple(dict.fromkeys(topic for _, topic in publishers)),
    )


def _subscriptions(
    args: argparse.Namespace, topology: Topology, protocol: ProtocolSettings, start_s: float
) -> list[Step]:
    """Return the explicit ones, so far apart that the first is core when the next one comes."""
    apart = APART_S + protocol.change_delay + protocol.announce_gap
    return [
        Step(start_s + apart * turn, Subscribe(topology.node(node), check_filter(name)))
        for turn, (node, name) in enumerate(args.subscribe or ())
    ]


def _links(args: argparse.Namespace) -> LinkOptions:
    base = LinkOptions()
    return replace(
        base,
        delay_ms=_given(args.delay, base.delay_ms),
        jitter_ms=_given(args.jitter, base.jitter_ms),
        loss=_given(args.loss, base.loss),
        duplicate=_given(args.duplicate, base.duplicate),
        reorder=_given(args.reorder, base.reorder),
    )


def _capacities(protocol: ProtocolSettings, topology: Topology, seed: int) -> tuple[float, ...]:
    """Return different capacities if they decide something."""
    if protocol.management_by is not ManagementBy.CAPACITY:
        return ()
    chance = random.Random(f"capacities {seed}")
    return tuple(float(chance.randint(1, CAPACITY_MAX)) for _ in range(topology.nodes))


def _publishers(args: argparse.Namespace, topology: Topology, seed: int) -> list[tuple[int, str]]:
    if args.publish:
        return [(topology.node(node), check_name(topic)) for node, topic in args.publish]
    return [(random.Random(f"publisher {seed}").randrange(topology.nodes), TOPIC)]


def _publications(
    args: argparse.Namespace, publishers: list[tuple[int, str]], phases: Phases
) -> list[Step]:
    count: int = _given(args.publications, PUBLICATIONS)
    if not count:
        return []
    interval = phases.traffic_s / count
    return [
        Step(phases.warm_up_s, Publish(node, topic, count=count, interval_s=interval))
        for node, topic in publishers
    ]


def _at_qos(args: argparse.Namespace, steps: list[Step]) -> list[Step]:
    """Return the steps with their publications at the QoS that was asked for."""
    return [
        replace(step, action=replace(step.action, qos=_given(args.qos, 0)))
        if isinstance(step.action, Publish)
        else step
        for step in steps
    ]


def _given(value: T | None, default: T) -> T:
    return default if value is None else value
