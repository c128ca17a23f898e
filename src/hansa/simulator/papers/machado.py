"""Machado 2023: convergence of 6, 15 and 25 wrappers after failures.

The six are Spohn's. The thesis shows the 15 and 25 only as figures, so the graphs are ours: 15 in a
ring with six chords, 25 in a 5x5 grid with a diagonal in every second cell, which is denser. "Six
different federated topics, with five subscribers and five publishers connected randomly" is read as
five and five per topic.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial

from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import (
    ClientPublish,
    ClientSubscribe,
    CrashAgent,
    HealAll,
    Partition,
    RestartAgent,
    ScheduledAction,
    SimulatedAction,
)
from hansa.simulator.options import LinkOptions, Phases, SimulationOptions, Workload
from hansa.simulator.papers.spohn import SIX
from hansa.simulator.scenarios.scenario import (
    ClaimRow,
    FinalSnapshot,
    Recovery,
    SimulationScenario,
    format_duration,
    recoveries,
    settle_pause_s,
)
from hansa.simulator.topologies import Topology, TopologyLink, make_topology, parse_topology

TOPICS = tuple(f"topic/{number}" for number in range(6))
CLIENTS_PER_TOPIC = 5
"""Subscribers of each topic, and as many publishers."""

FINAL_S = 2.0
"""At the end every node publishes to every topic, and all must arrive."""

CONVERGENCE_LIMIT_S = 0.5
"""Time to converge once all updates have arrived, with immediate timers."""

FIFTEEN = make_topology(
    "machado-15",
    15,
    [
        *parse_topology("ring:15", seed=0).links,
        *((0, 5), (5, 10), (0, 10), (2, 8), (4, 12), (7, 13)),
    ],
)


def _diagonals() -> list[TopologyLink]:
    cells = ((row, column) for row in range(4) for column in range(4) if (row + column) % 2 == 0)
    return [(5 * row + column, 5 * (row + 1) + column + 1) for row, column in cells]


TWENTY_FIVE = make_topology(
    "machado-25", 25, [*parse_topology("grid:5x5", seed=0).links, *_diagonals()]
)

PAPER_TIMES = {6: "about 1 and 2 min", 15: "up to 2, 2 to 3 min", 25: "2 to 3, 2 to 5 min"}
"""The times in the thesis for the overlay and for topic meshes, for any failure."""


def _random_failures_options(
    topology: Topology, failures: Sequence[int], settings: ProtocolSettings, seed: int
) -> SimulationOptions:
    """Fail random nodes together, group by group; then partition and heal."""
    rng = random.Random(f"{topology.name} failures {seed}")
    groups = [rng.sample(range(topology.nodes), count) for count in failures]
    return _failures_options(topology, groups, settings, seed)


def _six_options(settings: ProtocolSettings, seed: int) -> SimulationOptions:
    """Fail the nodes that the thesis names."""
    return _failures_options(SIX, [[3], [1, 3]], settings, seed)


def _failures_options(
    topology: Topology, groups: Sequence[Sequence[int]], settings: ProtocolSettings, seed: int
) -> SimulationOptions:
    half = tuple(range(topology.nodes // 2))
    rest = tuple(range(topology.nodes // 2, topology.nodes))
    phases: list[list[SimulatedAction]] = []
    for lot in groups:
        phases.append([CrashAgent(node) for node in sorted(lot)])
        phases.append([RestartAgent(node) for node in sorted(lot)])
    phases += [[Partition((half, rest))], [HealAll()]]
    pause = settle_pause_s(topology, settings, LinkOptions())
    faults = [
        ScheduledAction(turn * pause, a) for turn, actions in enumerate(phases, 2) for a in actions
    ]
    end = (len(phases) + 2) * pause
    return SimulationOptions(
        topology,
        settings,
        seed,
        workload=Workload(topics=TOPICS),
        schedule=(*_clients(topology, pause, end, seed), *faults),
        phases=Phases(end, final_s=FINAL_S),
    )


def _clients(topology: Topology, pause: float, end: float, seed: int) -> list[ScheduledAction]:
    """All clients subscribe after the first pause and publish five times per pause."""
    rng = random.Random(f"{topology.name} clients {seed}")
    places = range(topology.nodes)
    steps = []
    for topic in TOPICS:
        steps += [
            ScheduledAction(pause, ClientSubscribe(n, topic))
            for n in rng.sample(places, CLIENTS_PER_TOPIC)
        ]
        for node in rng.sample(places, CLIENTS_PER_TOPIC):
            interval = pause / 5
            start = 2 * pause + rng.uniform(0, interval)
            count = int((end - start) / interval)
            steps.append(
                ScheduledAction(start, ClientPublish(node, topic, count=count, interval_s=interval))
            )
    return steps


def _evaluate(final: FinalSnapshot) -> list[ClaimRow]:
    result = final.result
    share = result.delivered / result.expected if result.expected else 0
    ours = f"{share:.1%} of {result.expected}, {result.duplicates_delivered} twice"
    return [
        *(_recovery_row(final, recovery) for recovery in recoveries(final.result)),
        ClaimRow(
            "deliveries, outages included",
            "losses accepted; we guarantee no duplicates",
            ours,
            not result.duplicates_delivered,
        ),
    ]


def _recovery_row(final: FinalSnapshot, recovery: Recovery) -> ClaimRow:
    """The paper's times are not our limit; the row holds if our own limit holds, where we have
    one."""
    took, limit = recovery.converged_s, _limit_s(final.options, recovery.after)
    paper = "" if recovery.after == "start" else PAPER_TIMES[final.result.nodes]
    claims = [paper, "" if limit is None else f"our limit: {format_duration(limit)}"]
    holds = False if took is None else None if limit is None else took <= limit
    what = f"converged after {recovery.after}"
    return ClaimRow(
        what, "; ".join(claim for claim in claims if claim), recovery.duration_text, holds
    )


def _limit_s(options: SimulationOptions, after: str) -> float | None:
    """Return our limit in seconds; None with the paper's timers.

    A crash is detected at once, silence after the heartbeat limit, and a restored link after it was
    dialled.
    """
    if not options.protocol.trust_close:
        return None
    if after.startswith("crash"):
        return CONVERGENCE_LIMIT_S
    if after.startswith("partition"):
        return options.protocol.heartbeat_limit + CONVERGENCE_LIMIT_S
    return options.links.redial_wait_s[1] + CONVERGENCE_LIMIT_S


_MAKERS: dict[int, Callable[[ProtocolSettings, int], SimulationOptions]] = {
    6: _six_options,
    15: partial(_random_failures_options, FIFTEEN, (1, 2, 3, 4)),
    25: partial(_random_failures_options, TWENTY_FIVE, (1, 4, 8)),
}


def _scenario(nodes: int, title: str, claim: str) -> SimulationScenario:
    return SimulationScenario(
        f"machado-{nodes}",
        title,
        claim,
        _MAKERS[nodes],
        _evaluate,
        (
            "The paper's two times are for the overlay and for topic meshes; ours is one, until"
            " both have converged and every subscription is installed everywhere.",
            "Lost is what was published at a broker whose agent was down, or in the other part"
            " of a split federation. `--preset machado` runs the same with the paper's timers.",
        ),
    )


SCENARIOS = (
    _scenario(
        6,
        "six nodes; 3 fails, then 1 and 3 together; partition and merge",
        "The federation converges in about one minute, topic meshes in about two, for any failure.",
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
