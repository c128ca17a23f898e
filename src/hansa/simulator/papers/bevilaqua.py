"""Bevilaqua 2023: a topology manager relocates an isolated node; and delays over 12 federators.

Both graphs are ours, made to fit what the text says of the pictures. Of the nine: 8 has the fewest
neighbours, 0 and 7, and 3 has the most. Of the twelve: every new node got two neighbours, nobody
has more than five, 11 is one hop from 0 and three from 5. The manager itself is not simulated: a
script adds the links that it chose.
"""

from dataclasses import replace

from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import Action, AddLink, Crash, Publish, Step, Subscribe
from hansa.simulator.options import LinkOptions, Options, Phases
from hansa.simulator.scenarios.scenario import (
    Final,
    Row,
    Scenario,
    delivered_once,
    nodes,
    pause_s,
    recoveries,
    same,
)
from hansa.simulator.topologies import graph

TOPIC = "federated/data"

# ---------------------------------------------------------------- nine: relocation

NINE = graph(
    "bevilaqua-9",
    9,
    [
        *((0, 1), (0, 2), (0, 3), (0, 8), (1, 3), (1, 4), (2, 3), (2, 5)),
        *((3, 5), (3, 6), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7), (7, 8)),
    ],
)
NOTICE_S = 10.0
"""The manager checks every 5 s and gives a node up after two failures in a row."""
BURST = 10
"""Publications from 5 before the failures, and again after the relocation."""


def _nine(settings: ProtocolSettings, seed: int) -> Options:
    pause = pause_s(NINE, settings, LinkOptions())
    relocated = 4 * pause + max(NOTICE_S, pause)
    actions: tuple[tuple[float, Action], ...] = (
        (pause, Subscribe(8, TOPIC)),
        (pause, Subscribe(2, TOPIC)),
        (2 * pause, Publish(5, TOPIC, count=BURST)),
        (4 * pause, Crash(0)),
        (4 * pause, Crash(7)),
        (relocated, AddLink(8, 3)),
        (relocated, AddLink(8, 1)),
        (relocated + pause, Publish(5, TOPIC, count=BURST)),
    )
    schedule = tuple(Step(at, action) for at, action in actions)
    return Options(NINE, settings, seed, schedule=schedule, phases=Phases(relocated + 3 * pause))


def _judge_nine(final: Final) -> list[Row]:
    view = final.views[8]
    neighbours = nodes(view.neighbours) if view else "none"
    reached = nodes(view.reachable) if view else "none"
    return [
        same("neighbours of 8 after relocation", "1,3", neighbours),
        same("nodes that 8 reaches", "1,2,3,4,5,6,8", reached),
        *(
            Row(
                f"converged after {recovery.after}",
                "it does; no time given",
                recovery.took,
                recovery.converged_s is not None,
            )
            for recovery in recoveries(final.result)
        ),
        delivered_once(final, 2 * BURST, 4 * BURST),
    ]


# ---------------------------------------------------------------- twelve: delay

TWELVE = graph(
    "bevilaqua-12",
    12,
    [
        *((0, 1), (0, 2), (1, 2), (0, 3), (2, 3), (1, 4), (3, 4), (3, 5), (4, 5), (2, 6), (4, 6)),
        *((0, 7), (5, 7), (1, 8), (6, 8), (2, 9), (8, 9), (6, 10), (9, 10), (0, 11), (10, 11)),
    ],
)
REDUNDANCY = 3
PUBLICATIONS = 1000
INTERVAL_S = 0.05
PAPER_MS = {0: 445.8, 5: 1062.2}
HOPS = {0: 1, 5: 3}


def _twelve(settings: ProtocolSettings, seed: int) -> Options:
    """A local network, as in the thesis: 1 ms per hop."""
    protocol = replace(settings, redundancy=REDUNDANCY)
    pause = pause_s(TWELVE, protocol, LinkOptions())
    burst = Publish(11, TOPIC, payload_bytes=64, count=PUBLICATIONS, interval_s=INTERVAL_S)
    schedule = (
        Step(pause, Subscribe(0, TOPIC)),
        Step(2 * pause, Subscribe(5, TOPIC)),
        Step(3 * pause, burst),
    )
    end = 3 * pause + PUBLICATIONS * INTERVAL_S + 1
    return Options(TWELVE, protocol, seed, schedule=schedule, phases=Phases(end))


def _judge_twelve(final: Final) -> list[Row]:
    return [
        *(_delay(final, node) for node in HOPS),
        Row("copies per publication", "not given", f"{final.result.copies_per_publication:.2f}"),
        delivered_once(final, PUBLICATIONS, 2 * PUBLICATIONS),
    ]


def _delay(final: Final, node: int) -> Row:
    """Ours must be what so many hops take, and no more: then no copy took a detour."""
    network = final.options.links
    shortest = HOPS[node] * network.delay_ms + 2 * network.broker_ms
    delay = final.result.delay_ms_by_node.get(node)
    ours = f"{delay.mean:.2f} ms" if delay else "none arrived"
    what = f"mean delay at {node}, {HOPS[node]} hop{'s' * (HOPS[node] > 1)} from the publisher"
    holds = delay is not None and abs(delay.mean - shortest) < 0.01
    return Row(what, f"{PAPER_MS[node]} ms", ours, holds)


SCENARIOS = (
    Scenario(
        "bevilaqua-9",
        "nine nodes; both neighbours of 8 stop, a script links it to 3 and 1",
        "Node 8, left without neighbours, is given new ones and takes part again.",
        _nine,
        _judge_nine,
        (
            "The script adds the links when the paper's manager would have noticed: two health"
            " checks of 5 s each, or later with slower timers.",
        ),
    ),
    Scenario(
        "bevilaqua-12",
        "twelve nodes, redundancy 3, 1000 publications of 64 bytes from 11 to 0 and 5",
        "Mean delay over a local network: 445.8 ms at one hop, 1062.2 ms at three.",
        _twelve,
        _judge_twelve,
        (
            "Not a comparison of speed: the paper's delays are almost all processing, which a"
            " simulation does not have. Ours is 1 ms per hop and 0.1 ms per broker, so it shows"
            " that publications take the shortest way and wait for nothing.",
        ),
    ),
)
