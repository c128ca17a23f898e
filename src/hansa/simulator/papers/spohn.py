"""Spohn 2020, the six brokers of Figs 1-4, and Spohn 2021, the 3x3 grid with its delays."""

import random
from dataclasses import replace

from hansa.protocol.model import MANAGEMENT_GROUP
from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import ClientPublish, ClientSubscribe, ScheduledAction
from hansa.simulator.options import LinkOptions, Phases, SimulationOptions
from hansa.simulator.scenarios.scenario import (
    ClaimRow,
    FinalSnapshot,
    SimulationScenario,
    delivered_once_row,
    equality_row,
    format_links,
    format_nodes,
    format_parents,
    frames_per_announcement_row,
    settle_pause_s,
)
from hansa.simulator.topologies import make_topology, parse_topology

REDUNDANCY = 2

# ---------------------------------------------------------------- 2020: six brokers

SIX = make_topology(
    "spohn-2020", 6, [(0, 1), (0, 2), (1, 3), (1, 4), (2, 3), (3, 4), (3, 5), (4, 5)]
)
"""The links of Figs 1-4, read from the parent lists in the text."""

GROUP_1, GROUP_2 = "group/1", "group/2"


def _six_options(settings: ProtocolSettings, seed: int) -> SimulationOptions:
    """Subscribe one after the other, each after convergence; then publish inside and outside the
    mesh."""
    protocol = replace(settings, redundancy=REDUNDANCY)
    pause = settle_pause_s(SIX, protocol, LinkOptions())
    actions = (
        ClientSubscribe(0, GROUP_1),
        ClientSubscribe(3, GROUP_1),
        ClientSubscribe(1, GROUP_2),
        ClientSubscribe(5, GROUP_2),
        ClientPublish(4, GROUP_2),
        ClientPublish(0, GROUP_2),
    )
    schedule = tuple(
        ScheduledAction(number * pause, action) for number, action in enumerate(actions, 1)
    )
    end = (len(actions) + 1) * pause
    return SimulationOptions(SIX, protocol, seed, schedule=schedule, phases=Phases(end))


def _evaluate_six(final: FinalSnapshot) -> list[ClaimRow]:
    unused = set(SIX.links) - final.mesh_links(MANAGEMENT_GROUP)
    return [
        equality_row("core of the management group", "0", final.core(MANAGEMENT_GROUP)),
        equality_row("links outside its mesh", "3-4", format_links(unused)),
        equality_row("core of group 1, subscribers 0 then 3", "0", final.core(GROUP_1)),
        equality_row("members of group 1", "0,1,2,3", format_nodes(final.members(GROUP_1))),
        equality_row("core of group 2, subscribers 1 then 5", "1", final.core(GROUP_2)),
        equality_row(
            "parents towards it",
            "0:{1} 2:{0,3} 3:{1} 4:{1} 5:{3,4}",
            format_parents(final.parents(GROUP_2)),
        ),
        equality_row("members of group 2", "1,3,4,5", format_nodes(final.members(GROUP_2))),
        frames_per_announcement_row(final),
        delivered_once_row(final, publications=2, pairs=4),
    ]


# ---------------------------------------------------------------- 2021: the grid

GRID = parse_topology("grid:3x3", seed=0)
TOPIC = "grid/data"
PUBLICATIONS = 1000
HOPS_BY_NODE = {2: 4, 7: 1}
SPOHN_MS = {2: 34.77, 7: 18.61}
PAPER_DELAYS = {
    2: "34.77 ± 3.17 ms (Ribas 16.71 ± 9.53)",
    7: "18.61 ± 3.17 ms (Ribas 12.35 ± 10.70)",
}
DELAY_TOLERANCE = 0.1
"""Largest relative deviation of a mean from Spohn's."""

HOP_MS = (SPOHN_MS[2] - SPOHN_MS[7]) / (HOPS_BY_NODE[2] - HOPS_BY_NODE[7])
"""Two means at 4 and 1 hops give the time per hop …"""
BOTH_ENDS_MS = SPOHN_MS[7] - HOPS_BY_NODE[7] * HOP_MS
"""… and the time of brokers and clients at both ends together."""
JITTER_MS = 1.0
"""Small, so that copies race on the paths between 7 and 2, as the paper says."""


def _grid_options(settings: ProtocolSettings, seed: int) -> SimulationOptions:
    """Both subscribe at once, so that two cores compete; then the publisher at 6 starts."""
    network = LinkOptions(HOP_MS - JITTER_MS / 2, JITTER_MS, broker_delay_ms=BOTH_ENDS_MS / 2)
    protocol = replace(settings, redundancy=REDUNDANCY)
    pause = settle_pause_s(GRID, protocol, network)
    rng = random.Random(f"spohn-2021 {seed}")
    schedule = [ScheduledAction(pause, ClientSubscribe(node, TOPIC)) for node in HOPS_BY_NODE]
    at = 2 * pause
    for _ in range(PUBLICATIONS):
        schedule.append(ScheduledAction(at, ClientPublish(6, TOPIC, payload_bytes=64)))
        at += rng.uniform(0.05, 0.1)
    return SimulationOptions(
        GRID, protocol, seed, network, schedule=tuple(schedule), phases=Phases(at + 1)
    )


def _evaluate_grid(final: FinalSnapshot) -> list[ClaimRow]:
    return [
        equality_row("core", "2", final.core(TOPIC)),
        equality_row("members of the mesh", "1,2,4,5,7,8", format_nodes(final.members(TOPIC))),
        *(_delay_row(final, node) for node in HOPS_BY_NODE),
        ClaimRow(
            "copies per publication", "not given", f"{final.result.copies_per_publication:.2f}"
        ),
        delivered_once_row(final, PUBLICATIONS, 2 * PUBLICATIONS),
    ]


def _delay_row(final: FinalSnapshot, node: int) -> ClaimRow:
    hops = f"{HOPS_BY_NODE[node]} hop{'s' * (HOPS_BY_NODE[node] > 1)}"
    what = f"mean delay at {node}, {hops} from the publisher"
    delay = final.result.delay_ms_by_node.get(node)
    if delay is None:
        return ClaimRow(what, PAPER_DELAYS[node], "none arrived", False)
    residual = delay.mean - SPOHN_MS[node]
    ours = f"{delay.mean:.2f} ms ({residual:+.2f})"
    return ClaimRow(
        what, PAPER_DELAYS[node], ours, abs(residual) <= DELAY_TOLERANCE * SPOHN_MS[node]
    )


SCENARIOS = (
    SimulationScenario(
        "spohn-2020",
        "six brokers, two groups, redundancy 2",
        "The management group and every topic group build a mesh around a core. Publishers inside"
        " (4) and outside (0) the mesh of group 2 reach its subscribers.",
        _six_options,
        _evaluate_six,
    ),
    SimulationScenario(
        "spohn-2021",
        "3x3 grid, subscribers at 2 and 7, 1000 publications of 64 bytes from 6",
        "Nodes 1, 4, 5 and 8 connect the core 2 with 7; the subscriber one hop away waits about"
        " half as long as the one four hops away.",
        _grid_options,
        _evaluate_grid,
        (
            f"Calibrated: {HOP_MS:.2f} ms per hop and {BOTH_ENDS_MS:.2f} ms for both ends together"
            " follow from Spohn's two means, so these two delays agree by construction; what the"
            " run adds is that the copies do travel 4 hops and 1.",
            f"A hop varies by {JITTER_MS:g} ms and the first of two racing copies counts: that is"
            " the residual at node 2.",
        ),
    ),
)
