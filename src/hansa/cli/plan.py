"""From the arguments of `hansa simulate` to the options of a run."""

import argparse
import random
from dataclasses import replace
from typing import TypeVar

from hansa.cli.script import parse_faults, parse_step
from hansa.errors import UsageError
from hansa.protocol.settings import PRESETS, ManagementBy, Metric, Outside, ProtocolSettings
from hansa.protocol.topics import check_filter, check_name
from hansa.simulator.actions import Publish, Step, Subscribe
from hansa.simulator.options import Faults, LinkOptions, Options, Phases, Workload
from hansa.simulator.scenario import pause_s
from hansa.simulator.topologies import Topology, parse

T = TypeVar("T")

TOPOLOGY = "ring:3"
FILTER, TOPIC = "plant/#", "plant/temp"
SUBSCRIBERS, PUBLICATIONS = 3, 10
DURATION_S = 10.0
APART_S = 0.1
"""Between two explicit subscriptions: the first must be known before the next, as it is core."""
CAPACITY_MAX = 16
FINAL_S = 2.0
"""After faults, every node publishes to every topic once more and all must arrive."""


def settings(args: argparse.Namespace) -> ProtocolSettings:
    """Return the preset with what was asked for changed."""
    base = PRESETS[args.preset]
    return replace(
        base,
        redundancy=_given(args.redundancy, base.redundancy),
        outside=Outside(_given(args.outside, base.outside)),
        metric=Metric(_given(args.metric, base.metric)),
        management_by=ManagementBy(_given(args.management, base.management_by)),
        group_depth=_given(args.group_depth, base.group_depth),
    )


def options(args: argparse.Namespace, seed: int) -> Options:
    """Return the run that the arguments describe."""
    topology = parse(args.topology or TOPOLOGY, seed)
    protocol, links = settings(args), _links(args)
    pause = pause_s(topology, protocol, links)
    filters = tuple(check_filter(text) for text in args.filter or (FILTER,))
    subscriptions = [
        Subscribe(topology.node(node), check_filter(name)) for node, name in args.subscribe or ()
    ]
    warm_up = 2 * pause + APART_S * len(subscriptions)
    duration: float = _given(args.duration, DURATION_S)
    publishers = _publishers(args, topology, seed)
    schedule = [
        *(Step(pause + APART_S * turn, action) for turn, action in enumerate(subscriptions)),
        *_publications(args, publishers, warm_up, duration),
        *(parse_step(text, topology, warm_up, duration) for text in args.at or ()),
    ]
    faults = parse_faults(args.faults) if args.faults else Faults()
    if args.faults and not duration:
        raise UsageError("faults need time to strike; give --duration more than 0 seconds")
    final_s = FINAL_S if args.faults or args.at else 0.0
    return Options(
        topology,
        protocol,
        seed,
        links,
        Workload(
            subscribers=_given(args.subscribers, 0 if args.subscribe else SUBSCRIBERS),
            filters=filters,
            topics=tuple(dict.fromkeys(topic for _, topic in publishers)),
        ),
        faults,
        tuple(schedule),
        Phases(warm_up, duration, pause, final_s),
        capacities=_capacities(protocol, topology, seed),
    )


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
    args: argparse.Namespace, publishers: list[tuple[int, str]], start: float, duration: float
) -> list[Step]:
    count: int = _given(args.publications, PUBLICATIONS)
    if not count:
        return []
    interval = duration / count
    return [
        Step(start, Publish(node, topic, count=count, interval_s=interval))
        for node, topic in publishers
    ]


def _given(value: T | None, default: T) -> T:
    return default if value is None else value
