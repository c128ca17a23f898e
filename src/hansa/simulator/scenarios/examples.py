"""Two small scenarios for the documents."""

import random

from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import ClientPublish, ClientSubscribe, CrashAgent, ScheduledAction
from hansa.simulator.options import LinkOptions, Phases, SimulationOptions
from hansa.simulator.scenarios.scenario import (
    ClaimRow,
    FinalSnapshot,
    SimulationScenario,
    delivered_once_row,
    equality_row,
    recoveries,
    settle_pause_s,
)
from hansa.simulator.topologies import parse_topology

# ---------------------------------------------------------------- ring-3

RING = parse_topology("ring:3", seed=0)
RING_TOPIC = "plant/temp"


def _ring_options(settings: ProtocolSettings, seed: int) -> SimulationOptions:
    """A message crosses the ring; then the core crashes and the next message still arrives."""
    pause = settle_pause_s(RING, settings, LinkOptions())
    actions = (
        ClientSubscribe(1, "plant/#"),
        ClientSubscribe(2, "plant/#"),
        ClientPublish(0, RING_TOPIC),
        CrashAgent(1),
        ClientPublish(0, RING_TOPIC),
    )
    schedule = tuple(
        ScheduledAction(number * pause, action) for number, action in enumerate(actions, 1)
    )
    end = (len(actions) + 1) * pause
    return SimulationOptions(RING, settings, seed, schedule=schedule, phases=Phases(end))


def _evaluate_ring(final: FinalSnapshot) -> list[ClaimRow]:
    crash = recoveries(final.result)[-1]
    return [
        equality_row("core after the crash of 1", "2", final.core("plant/#")),
        ClaimRow(
            "converged after the crash",
            "it does",
            crash.duration_text,
            crash.converged_s is not None,
        ),
        delivered_once_row(final, publications=2, pairs=3),
    ]


# ---------------------------------------------------------------- overlap

OVERLAP = parse_topology("random:40,4", seed=1)
FILTERS = ("plant/#", "plant/+/temp", "+/line1/+", "plant/line1/temp")
OVERLAP_TOPIC = "plant/line1/temp"
SUBSCRIBERS_PER_FILTER = 6
"""Interested nodes per filter."""
COPIES_PER_UNION_LINK_MAX = 1.5
"""Copies per link of the union: one, and more where copies cross or travel to a mesh."""


def _overlap_options(settings: ProtocolSettings, seed: int) -> SimulationOptions:
    """24 nodes subscribe to one of four filters that all match; every node publishes once."""
    pause = settle_pause_s(OVERLAP, settings, LinkOptions())
    rng = random.Random(f"overlap {seed}")
    places = rng.sample(range(OVERLAP.nodes), SUBSCRIBERS_PER_FILTER * len(FILTERS))
    schedule = [
        *(
            ScheduledAction(pause, ClientSubscribe(n, FILTERS[i % len(FILTERS)]))
            for i, n in enumerate(places)
        ),
        *(
            ScheduledAction(2 * pause + node / 10, ClientPublish(node, OVERLAP_TOPIC))
            for node in range(OVERLAP.nodes)
        ),
    ]
    end = 2 * pause + OVERLAP.nodes / 10 + 1
    return SimulationOptions(OVERLAP, settings, seed, schedule=tuple(schedule), phases=Phases(end))


def _evaluate_overlap(final: FinalSnapshot) -> list[ClaimRow]:
    meshes = [final.mesh_links(group) for group in FILTERS]
    union = set().union(*meshes)
    apart = sum(len(mesh) for mesh in meshes)
    copies = final.result.copies_per_publication
    wanting = SUBSCRIBERS_PER_FILTER * len(FILTERS)
    pairs = (OVERLAP.nodes - 1) * wanting
    return [
        ClaimRow("links of the four meshes, each for itself", "", str(apart)),
        ClaimRow("links of their union", "", str(len(union))),
        ClaimRow(
            "copies per publication",
            f"at most {COPIES_PER_UNION_LINK_MAX * len(union):.0f}",
            f"{copies:.2f}",
            copies <= COPIES_PER_UNION_LINK_MAX * len(union),
        ),
        delivered_once_row(final, OVERLAP.nodes, pairs),
    ]


SCENARIOS = (
    SimulationScenario(
        "ring-3",
        "three nodes in a ring; the core of a topic crashes",
        "A loop of links carries every message once, and losing the core loses nothing else.",
        _ring_options,
        _evaluate_ring,
    ),
    SimulationScenario(
        "overlap",
        "40 nodes, four overlapping wildcard filters that match the same topic",
        "A publication that belongs to several groups travels over the union of their meshes: it"
        " does not cross a link once per group.",
        _overlap_options,
        _evaluate_overlap,
    ),
)
