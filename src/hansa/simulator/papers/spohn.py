"""Spohn 2020, the six brokers of Figs 1-4, and Spohn 2021, the 3x3 grid with its delays."""

import random
from dataclasses import replace

from hansa.protocol.model import MANAGEMENT
from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import Publish, Step, Subscribe
from hansa.simulator.options import LinkOptions, Options, Phases
from hansa.simulator.scenarios.scenario import (
    Final,
    Row,
    Scenario,
    delivered_once,
    frames_per_announcement,
    links,
    nodes,
    parents,
    pause_s,
    same,
)
from hansa.simulator.topologies import graph, parse

REDUNDANCY = 2

# ---------------------------------------------------------------- 2020: six brokers

SIX = graph("spohn-2020", 6, [(0, 1), (0, 2), (1, 3), (1, 4), (2, 3), (3, 4), (3, 5), (4, 5)])
"""The links of Figs 1-4, read from the parent lists in the text."""

GROUP_1, GROUP_2 = "group/1", "group/2"


def _six(settings: ProtocolSettings, seed: int) -> Options:
    """Subscribe one after the other, each when all is at rest; then publish inside and outside."""
    protocol = replace(settings, redundancy=REDUNDANCY)
    pause = pause_s(SIX, protocol, LinkOptions())
    actions = (
        Subscribe(0, GROUP_1),
        Subscribe(3, GROUP_1),
        Subscribe(1, GROUP_2),
        Subscribe(5, GROUP_2),
        Publish(4, GROUP_2),
        Publish(0, GROUP_2),
    )
    schedule = tuple(Step(number * pause, action) for number, action in enumerate(actions, 1))
    end = (len(actions) + 1) * pause
    return Options(SIX, protocol, seed, schedule=schedule, phases=Phases(end))


def _judge_six(final: Final) -> list[Row]:
    unused = set(SIX.links) - final.mesh(MANAGEMENT)
    return [
        same("core of the management group", "0", final.core(MANAGEMENT)),
        same("links outside its mesh", "3-4", links(unused)),
        same("core of group 1, subscribers 0 then 3", "0", final.core(GROUP_1)),
        same("members of group 1", "0,1,2,3", nodes(final.members(GROUP_1))),
        same("core of group 2, subscribers 1 then 5", "1", final.core(GROUP_2)),
        same(
            "parents towards it",
            "0:{1} 2:{0,3} 3:{1} 4:{1} 5:{3,4}",
            parents(final.parents(GROUP_2)),
        ),
        same("members of group 2", "1,3,4,5", nodes(final.members(GROUP_2))),
        frames_per_announcement(final),
        delivered_once(final, publications=2, pairs=4),
    ]


# ---------------------------------------------------------------- 2021: the grid

GRID = parse("grid:3x3", seed=0)
TOPIC = "grid/data"
PUBLICATIONS = 1000
HOPS = {2: 4, 7: 1}
SPOHN_MS = {2: 34.77, 7: 18.61}
PAPERS = {
    2: "34.77 ± 3.17 ms (Ribas 16.71 ± 9.53)",
    7: "18.61 ± 3.17 ms (Ribas 12.35 ± 10.70)",
}
NEAR = 0.1
"""How far a mean may be from Spohn's, as a part of it."""

HOP_MS = (SPOHN_MS[2] - SPOHN_MS[7]) / (HOPS[2] - HOPS[7])
"""Two means at 4 and 1 hops give the time per hop …"""
ENDS_MS = SPOHN_MS[7] - HOPS[7] * HOP_MS
"""… and what brokers and clients take at both ends together."""
JITTER_MS = 1.0
"""Small, so that copies race on the ways between 7 and 2, as the paper says they do."""


def _grid(settings: ProtocolSettings, seed: int) -> Options:
    """Both subscribe at once, so that two cores meet; then the publisher at 6 starts."""
    network = LinkOptions(HOP_MS - JITTER_MS / 2, JITTER_MS, broker_ms=ENDS_MS / 2)
    protocol = replace(settings, redundancy=REDUNDANCY)
    pause = pause_s(GRID, protocol, network)
    chance = random.Random(f"spohn-2021 {seed}")
    schedule = [Step(pause, Subscribe(node, TOPIC)) for node in HOPS]
    at = 2 * pause
    for _ in range(PUBLICATIONS):
        schedule.append(Step(at, Publish(6, TOPIC, payload_bytes=64)))
        at += chance.uniform(0.05, 0.1)
    return Options(GRID, protocol, seed, network, schedule=tuple(schedule), phases=Phases(at + 1))


def _judge_grid(final: Final) -> list[Row]:
    return [
        same("core", "2", final.core(TOPIC)),
        same("members of the mesh", "1,2,4,5,7,8", nodes(final.members(TOPIC))),
        *(_delay(final, node) for node in HOPS),
        Row("copies per publication", "not given", f"{final.result.copies_per_publication:.2f}"),
        delivered_once(final, PUBLICATIONS, 2 * PUBLICATIONS),
    ]


def _delay(final: Final, node: int) -> Row:
    what = f"mean delay at {node}, {HOPS[node]} hop{'s' * (HOPS[node] > 1)} from the publisher"
    delay = final.result.delay_ms_by_node.get(node)
    if delay is None:
        return Row(what, PAPERS[node], "none arrived", False)
    residual = delay.mean - SPOHN_MS[node]
    ours = f"{delay.mean:.2f} ms ({residual:+.2f})"
    return Row(what, PAPERS[node], ours, abs(residual) <= NEAR * SPOHN_MS[node])


SCENARIOS = (
    Scenario(
        "spohn-2020",
        "six brokers, two groups, redundancy 2",
        "The management group and every topic group build a mesh around a core. Publishers inside"
        " (4) and outside (0) the mesh of group 2 reach its subscribers.",
        _six,
        _judge_six,
    ),
    Scenario(
        "spohn-2021",
        "3x3 grid, subscribers at 2 and 7, 1000 publications of 64 bytes from 6",
        "Nodes 1, 4, 5 and 8 connect the core 2 with 7; the subscriber one hop away waits about"
        " half as long as the one four hops away.",
        _grid,
        _judge_grid,
        (
            f"Calibrated: {HOP_MS:.2f} ms per hop and {ENDS_MS:.2f} ms for both ends together"
            " follow from Spohn's two means, so these two delays agree by construction; what the"
            " run adds is that the copies do travel 4 hops and 1.",
            f"A hop varies by {JITTER_MS:g} ms and the first of two racing copies counts: that is"
            " the residual at node 2.",
        ),
    ),
)
