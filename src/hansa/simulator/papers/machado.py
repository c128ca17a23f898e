"""Machado 2023: how long 6, 15 and 25 wrappers take to converge after failures.

The six are Spohn's. Of the 15 and 25 the thesis has only pictures, so the graphs are ours: 15 in a
ring with six chords, 25 in a 5x5 grid with a diagonal in every second cell, which is the denser
one. "Six different federated topics, with five subscribers and five publishers connected randomly"
is read as five and five per topic.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial

from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import (
    Action,
    Crash,
    Heal,
    Partition,
    Publish,
    Restart,
    Step,
    Subscribe,
)
from hansa.simulator.options import LinkOptions, Options, Phases, Workload
from hansa.simulator.papers.spohn import SIX
from hansa.simulator.scenarios.scenario import (
    Final,
    Recovery,
    Row,
    Scenario,
    duration,
    pause_s,
    recoveries,
)
from hansa.simulator.topologies import Link, Topology, graph, parse

TOPICS = tuple(f"topic/{number}" for number in range(6))
CLIENTS = 5
"""Subscribers of each topic, and as many publishers."""

FINAL_S = 2.0
"""At the end every node publishes to every topic, and all must arrive."""

NEWS_S = 0.5
"""What converging may take once the news is there, with timers that do not wait for anything."""

FIFTEEN = graph(
    "machado-15",
    15,
    [
        *parse("ring:15", seed=0).links,
        *((0, 5), (5, 10), (0, 10), (2, 8), (4, 12), (7, 13)),
    ],
)


def _diagonals() -> list[Link]:
    cells = ((row, column) for row in range(4) for column in range(4) if (row + column) % 2 == 0)
    return [(5 * row + column, 5 * (row + 1) + column + 1) for row, column in cells]


TWENTY_FIVE = graph("machado-25", 25, [*parse("grid:5x5", seed=0).links, *_diagonals()])

PAPER = {6: "about 1 and 2 min", 15: "up to 2, 2 to 3 min", 25: "2 to 3, 2 to 5 min"}
"""What the thesis says of the overlay and of topic meshes, whatever failed."""


def _make(
    topology: Topology, failures: Sequence[int], settings: ProtocolSettings, seed: int
) -> Options:
    """Fail so many random nodes together, one lot after the other; then split and merge."""
    chance = random.Random(f"{topology.name} failures {seed}")
    lots = [chance.sample(range(topology.nodes), count) for count in failures]
    return _play(topology, lots, settings, seed)


def _make_six(settings: ProtocolSettings, seed: int) -> Options:
    """Fail the very nodes that the thesis names."""
    return _play(SIX, [[3], [1, 3]], settings, seed)


def _play(
    topology: Topology, lots: Sequence[Sequence[int]], settings: ProtocolSettings, seed: int
) -> Options:
    half = tuple(range(topology.nodes // 2))
    rest = tuple(range(topology.nodes // 2, topology.nodes))
    turns: list[list[Action]] = []
    for lot in lots:
        turns.append([Crash(node) for node in sorted(lot)])
        turns.append([Restart(node) for node in sorted(lot)])
    turns += [[Partition((half, rest))], [Heal()]]
    pause = pause_s(topology, settings, LinkOptions())
    faults = [Step(turn * pause, a) for turn, actions in enumerate(turns, 2) for a in actions]
    end = (len(turns) + 2) * pause
    return Options(
        topology,
        settings,
        seed,
        workload=Workload(topics=TOPICS),
        schedule=(*_clients(topology, pause, end, seed), *faults),
        phases=Phases(end, final_s=FINAL_S),
    )


def _clients(topology: Topology, pause: float, end: float, seed: int) -> list[Step]:
    """Everybody subscribes after the first pause and publishes five times per pause."""
    chance = random.Random(f"{topology.name} clients {seed}")
    places = range(topology.nodes)
    steps = []
    for topic in TOPICS:
        steps += [Step(pause, Subscribe(n, topic)) for n in chance.sample(places, CLIENTS)]
        for node in chance.sample(places, CLIENTS):
            interval = pause / 5
            start = 2 * pause + chance.uniform(0, interval)
            count = int((end - start) / interval)
            steps.append(Step(start, Publish(node, topic, count=count, interval_s=interval)))
    return steps


def _judge(final: Final) -> list[Row]:
    result = final.result
    share = result.delivered / result.expected if result.expected else 0
    ours = f"{share:.1%} of {result.expected}, {result.duplicates_delivered} twice"
    return [
        *(_recovery(final, recovery) for recovery in recoveries(final.result)),
        Row(
            "deliveries, outages included",
            "losses accepted; we promise none twice",
            ours,
            not result.duplicates_delivered,
        ),
    ]


def _recovery(final: Final, recovery: Recovery) -> Row:
    """The paper's times are no limit of ours: what is judged is what we promise, if we do."""
    took, limit = recovery.converged_s, _limit_s(final.options, recovery.after)
    paper = "" if recovery.after == "start" else PAPER[final.result.nodes]
    claims = [paper, "" if limit is None else f"we promise {duration(limit)}"]
    holds = False if took is None else None if limit is None else took <= limit
    what = f"converged after {recovery.after}"
    return Row(what, "; ".join(claim for claim in claims if claim), recovery.took, holds)


def _limit_s(options: Options, after: str) -> float | None:
    """Return the seconds that we promise; with the paper's timers we promise none.

    A crash is known at once, silence after the heartbeat limit, and a link that may be used again
    after it was dialled.
    """
    if not options.protocol.trust_close:
        return None
    if after.startswith("crash"):
        return NEWS_S
    if after.startswith("partition"):
        return options.protocol.heartbeat_limit + NEWS_S
    return options.links.redial_s[1] + NEWS_S


_MAKERS: dict[int, Callable[[ProtocolSettings, int], Options]] = {
    6: _make_six,
    15: partial(_make, FIFTEEN, (1, 2, 3, 4)),
    25: partial(_make, TWENTY_FIVE, (1, 4, 8)),
}


def _scenario(nodes: int, title: str, claim: str) -> Scenario:
    return Scenario(
        f"machado-{nodes}",
        title,
        claim,
        _MAKERS[nodes],
        _judge,
        (
            "The paper's two times are for the overlay and for topic meshes; ours is one, until"
            " both are right and every subscription is installed everywhere.",
            "Lost is what was published at a broker whose agent was down, or in the other part"
            " of a split federation. `--preset machado` runs the same with the paper's timers.",
        ),
    )


SCENARIOS = (
    _scenario(
        6,
        "six nodes; 3 fails, then 1 and 3 together; partition and merge",
        "The federation converges in about one minute, topic meshes in about two, whoever fails.",
    ),
    _scenario(
        15,
        "fifteen nodes; 1, 2, 3 and 4 random ones fail; partition and merge",
        "The overlay converges in up to two minutes, topic meshes in two to three.",
    ),
    _scenario(
        25,
        "twenty-five nodes; 1, 4 and 8 random ones fail; partition and merge",
        "The overlay converges in two to three minutes, topic meshes in two to five.",
    ),
)
