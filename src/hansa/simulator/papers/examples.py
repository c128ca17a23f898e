"""Two small scenarios of our own that the documents refer to."""

import random

from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import Crash, Publish, Step, Subscribe
from hansa.simulator.options import LinkOptions, Options, Phases
from hansa.simulator.scenarios.scenario import (
    Final,
    Row,
    Scenario,
    delivered_once,
    pause_s,
    recoveries,
    same,
)
from hansa.simulator.topologies import parse

# ---------------------------------------------------------------- ring-3

RING = parse("ring:3", seed=0)
RING_TOPIC = "plant/temp"


def _ring(settings: ProtocolSettings, seed: int) -> Options:
    """A message goes round once; then the core dies and the next message still arrives."""
    pause = pause_s(RING, settings, LinkOptions())
    actions = (
        Subscribe(1, "plant/#"),
        Subscribe(2, "plant/#"),
        Publish(0, RING_TOPIC),
        Crash(1),
        Publish(0, RING_TOPIC),
    )
    schedule = tuple(Step(number * pause, action) for number, action in enumerate(actions, 1))
    end = (len(actions) + 1) * pause
    return Options(RING, settings, seed, schedule=schedule, phases=Phases(end))


def _judge_ring(final: Final) -> list[Row]:
    crash = recoveries(final.result)[-1]
    return [
        same("core after the crash of 1", "2", final.core("plant/#")),
        Row("converged after the crash", "it does", crash.took, crash.converged_s is not None),
        delivered_once(final, publications=2, pairs=3),
    ]


# ---------------------------------------------------------------- overlap

OVERLAP = parse("random:40,4", seed=1)
FILTERS = ("plant/#", "plant/+/temp", "+/line1/+", "plant/line1/temp")
OVERLAP_TOPIC = "plant/line1/temp"
WANTING = 6
"""Nodes that want each filter."""
UNION_MAX = 1.5
"""Copies per link of the union: one, and more where copies cross or are on their way to a mesh."""


def _overlap(settings: ProtocolSettings, seed: int) -> Options:
    """24 nodes want one of four filters that all match; every node publishes once."""
    pause = pause_s(OVERLAP, settings, LinkOptions())
    chance = random.Random(f"overlap {seed}")
    places = chance.sample(range(OVERLAP.nodes), WANTING * len(FILTERS))
    schedule = [
        *(Step(pause, Subscribe(n, FILTERS[i % len(FILTERS)])) for i, n in enumerate(places)),
        *(
            Step(2 * pause + node / 10, Publish(node, OVERLAP_TOPIC))
            for node in range(OVERLAP.nodes)
        ),
    ]
    end = 2 * pause + OVERLAP.nodes / 10 + 1
    return Options(OVERLAP, settings, seed, schedule=tuple(schedule), phases=Phases(end))


def _judge_overlap(final: Final) -> list[Row]:
    meshes = [final.mesh(group) for group in FILTERS]
    union = set().union(*meshes)
    apart = sum(len(mesh) for mesh in meshes)
    copies = final.result.copies_per_publication
    wanting = WANTING * len(FILTERS)
    pairs = (OVERLAP.nodes - 1) * wanting
    return [
        Row("links of the four meshes, each for itself", "", str(apart)),
        Row("links of their union", "", str(len(union))),
        Row(
            "copies per publication",
            f"at most {UNION_MAX * len(union):.0f}",
            f"{copies:.2f}",
            copies <= UNION_MAX * len(union),
        ),
        delivered_once(final, OVERLAP.nodes, pairs),
    ]


SCENARIOS = (
    Scenario(
        "ring-3",
        "three nodes in a ring; the core of a topic dies",
        "A loop of links carries every message once, and losing the core loses nothing else.",
        _ring,
        _judge_ring,
    ),
    Scenario(
        "overlap",
        "40 nodes, four overlapping wildcard filters that match the same topic",
        "A publication that belongs to several groups travels over the union of their meshes: it"
        " does not cross a link once per group.",
        _overlap,
        _judge_overlap,
    ),
)
