"""Random runs with compromised members: every promise between honest nodes must hold.

The seed draws the same topology, links and clients as in the scenario `random`, but all brokers
have QoS 1 and 2 traffic and disks, and one or two members attack. Besides the drawn clients, whose
filters may match nothing, every node subscribes to one filter and publishes to it, at QoS 1 and 2
and retained: so there are promises between all honest nodes of every run.
"""

import random
from dataclasses import replace

from hansa.simulator.actions import ClientPublish, ClientSubscribe, ScheduledAction
from hansa.simulator.analysis.convergence import convergence_limit_s
from hansa.simulator.options import DiskOptions, FaultCounts, SimulationOptions
from hansa.simulator.scenarios.sampling import describe_draw, random_options
from hansa.simulator.scenarios.scenario import SimulationScenario

OTHER_FAULTS_SHARE = 0.5
"""Fraction of runs in which other faults occur as well."""

NODES_MAX = 8
"""Larger federations show nothing else, and take longer."""

DETOURS_S = 40.0
"""Additional time at the end: a member that drops frames makes others find detours by retrying."""

FINAL_S = 15.0
"""Time after the last publications: a member that drops frames delays them by up to 10 s."""


COMMON_FILTER = "common/#"
"""Every node subscribes to it."""

COMMON_INTERVAL_S = 1.0
"""Seconds between two publications of a node to each common topic."""


def byzantine_options(seed: int, strategy: str | None = None) -> SimulationOptions:
    """Return the run of a seed. A given strategy replaces the drawn one."""
    rng = random.Random(f"{seed} byzantine options")
    drawn = _small_options(seed, strategy)
    faults = drawn.faults if rng.random() < OTHER_FAULTS_SHARE else FaultCounts()
    workload = replace(
        drawn.workload,
        qos=(1.0, 1.0, 1.0),
        subscribers=max(drawn.workload.subscribers, drawn.topology.nodes),
        rate=min(drawn.workload.rate, 10.0),
    )
    options = replace(
        drawn,
        workload=workload,
        protocol=replace(
            drawn.protocol, filters_per_node_max=drawn.protocol.filters_per_node_max + 1
        ),
        disk=drawn.disk or DiskOptions(),
        derive_ids=True,
        certificates=True,
        faults=replace(faults, byzantine=rng.choice((1, 1, 1, 2)), clones=0, roll_backs=0),
    )
    settle_s = max(options.phases.settle_s, convergence_limit_s(options)) + DETOURS_S
    final_s = max(options.phases.final_s, FINAL_S)
    phases = replace(options.phases, settle_s=settle_s, final_s=final_s)
    options = replace(options, phases=phases)
    return replace(options, schedule=_common_clients(options))


def _common_clients(options: SimulationOptions) -> tuple[ScheduledAction, ...]:
    """Return clients at every node that subscribe to one filter and publish to it: two publishers
    of one topic, at QoS 1 and 2, and one of a retained value. At QoS 0 a member that drops frames
    may keep a retained value from others, so there is no promise to check. At the end, after all
    faults, every node publishes once more."""
    steps: list[ScheduledAction] = []
    count = max(1, round(options.phases.traffic_s / COMMON_INTERVAL_S))
    for place in range(options.topology.nodes):
        at = options.phases.warm_up_s + COMMON_INTERVAL_S * place / options.topology.nodes
        steps.append(ScheduledAction(0.0, ClientSubscribe(place, COMMON_FILTER)))
        for qos in (1, 2):
            publish = ClientPublish(
                place, "common/event", qos=qos, count=count, interval_s=COMMON_INTERVAL_S
            )
            steps.append(ScheduledAction(at, publish))
        value = ClientPublish(
            place,
            f"common/value/{place}",
            qos=1 + place % 2,
            count=count,
            interval_s=COMMON_INTERVAL_S,
            retain=True,
        )
        steps.append(ScheduledAction(at, value))
        last = ClientPublish(place, "common/event", qos=1 + place % 2)
        steps.append(ScheduledAction(options.phases.end_s - options.phases.final_s, last))
    return tuple(steps)


def _small_options(seed: int, strategy: str | None) -> SimulationOptions:
    """Return the run of the first seed from this one on that is small."""
    for turn in range(1_000):
        options = random_options(seed + 1_000_000 * turn, strategy)
        if options.topology.nodes <= NODES_MAX:
            return replace(options, seed=seed)
    raise AssertionError("no small run")


SCENARIO = SimulationScenario(
    "byzantine",
    "compromised members: they forge, replay, drop and alter",
    "For every seed all promises between honest nodes with an honest path hold.",
    lambda settings, seed: byzantine_options(seed, settings.strategy),
    describe_draw,
    is_drawn_from_seed=True,
)
