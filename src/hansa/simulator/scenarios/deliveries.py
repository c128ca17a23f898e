"""Scenarios of guaranteed delivery: QoS 1 and 2 under faults of every kind.

Each is evaluated by the number of guaranteed publications (see `checkers/guarantees`), how many
arrived, and what was reported of the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import (
    AddLink,
    BackUpState,
    ClientPublish,
    ClientSubscribe,
    ClientUnsubscribe,
    CrashAgent,
    CutLink,
    CutSilently,
    FreezeAgent,
    HealAll,
    Partition,
    RestartAgent,
    RestartBroker,
    RestoreLink,
    RollBackState,
    ScheduledAction,
    SimulatedAction,
    StallDisk,
)
from hansa.simulator.options import DiskOptions, LinkOptions, Phases, SimulationOptions
from hansa.simulator.scenarios.scenario import (
    ClaimRow,
    FinalSnapshot,
    SimulationScenario,
    equality_row,
    settle_pause_s,
)
from hansa.simulator.topologies import Topology, parse_topology

TimedActions = list[tuple[float, SimulatedAction]]
"""Seconds after convergence, and the action."""


@dataclass(frozen=True, slots=True)
class DeliveryScenario:
    topology_text: str
    subscriptions: Sequence[tuple[int, str]]
    """Place and filter of the subscriptions made before anything else."""
    script: TimedActions
    links: LinkOptions = LinkOptions()
    disk: DiskOptions = DiskOptions()
    lease_s: float | None = None
    late_places: tuple[int, ...] = ()
    """Places that start only when the script says `restart`."""

    def make_options(self, settings: ProtocolSettings, seed: int) -> SimulationOptions:
        """Return the run: all subscribe, the federation converges, then the script runs."""
        topology = parse_topology(self.topology_text, seed=0)
        if self.links.loss:  # a neighbour is lost only after many lost heartbeats in a row
            settings = replace(settings, heartbeat_interval=0.5, heartbeat_limit=5.0)
        time_scale = settings.heartbeat_limit / ProtocolSettings().heartbeat_limit
        if self.lease_s is not None:
            settings = replace(settings, interest_lease=time_scale * self.lease_s)
        start = 2 * self._pause(topology, settings)
        steps = [
            ScheduledAction(0.0, ClientSubscribe(node, name)) for node, name in self.subscriptions
        ]
        steps += [
            ScheduledAction(start + time_scale * at, _scale_duration(what, time_scale))
            for at, what in self.script
        ]
        last = max(step.at_s + _duration_s(step.action) for step in steps)
        patience = 20 * settings.repair_retry_interval
        phases = Phases(last + 2 * self._pause(topology, settings) + patience)
        return SimulationOptions(
            topology,
            settings,
            seed,
            self.links,
            schedule=tuple(steps),
            phases=phases,
            disk=self.disk,
            late_places=self.late_places,
        )

    def _pause(self, topology: Topology, settings: ProtocolSettings) -> float:
        return settle_pause_s(topology, settings, self.links)


def _scale_duration(action: SimulatedAction, time_scale: float) -> SimulatedAction:
    """Lengthen an action where neighbours are detected as lost later."""
    match action:
        case ClientPublish():
            return replace(action, interval_s=time_scale * action.interval_s)
        case FreezeAgent(node, seconds):
            return FreezeAgent(node, time_scale * seconds)
        case StallDisk(node, seconds):
            return StallDisk(node, time_scale * seconds)
    return action


def _duration_s(action: SimulatedAction) -> float:
    return action.count * action.interval_s if isinstance(action, ClientPublish) else 0.0


LOSSY = LinkOptions(loss=0.1, reorder=0.05)
LATE_LOSSY = LinkOptions(loss=0.3)
MINUTE = 60.0


def _publish_stream(
    node: int, topic: str, seconds: float, per_s: float = 20.0, qos: int = 1
) -> ClientPublish:
    return ClientPublish(node, topic, count=round(seconds * per_s), interval_s=1 / per_s, qos=qos)


# ---------------------------------------------------------------- filters, groups, members

COVERING = DeliveryScenario(
    "line:3",
    [(2, "plant/line1/temp")],
    [
        (0.0, _publish_stream(0, "plant/line1/temp", 20)),
        *(
            (turn, action(2, "plant/#"))
            for pair in range(8)
            for turn, action in (
                (1 + 2.0 * pair, ClientSubscribe),
                (2 + 2.0 * pair, ClientUnsubscribe),
            )
        ),
    ],
    LOSSY,
)

GROUPS = DeliveryScenario(
    "ring:5",
    [(2, "plant/+/temp"), (4, "plant/line1/#")],
    [
        (0.0, _publish_stream(0, "plant/line1/temp", 20)),
        (0.0, _publish_stream(1, "plant/line2/temp", 20, qos=2)),
        *(
            (1.0 + n, ClientSubscribe(n % 5, f"plant/{word}"))
            for n, word in enumerate(("#", "+/+") * 4)
        ),
        *(
            (9.0 + n, ClientUnsubscribe(n % 5, f"plant/{w}"))
            for n, w in enumerate(("#", "+/+") * 4)
        ),
    ],
    LOSSY,
)

LATE_PLACES = (1, 2, 3, 4, 5, 6, 7)
JOINERS = DeliveryScenario(
    "grid:3x3",
    [(node, "plant/#") for node in (*LATE_PLACES, 8)],
    [
        (0.0, _publish_stream(0, "plant/temp", 36, per_s=10)),
        *((4.0 * turn, RestartAgent(node)) for turn, node in enumerate(LATE_PLACES)),
    ],
    LATE_LOSSY,
    late_places=LATE_PLACES,
)

# ---------------------------------------------------------------- partitions and crashes

HALVES = Partition(((0, 1, 2), (3, 4, 5)))
SPLIT = DeliveryScenario(
    "ring:6",
    [(1, "plant/#"), (4, "plant/#")],
    [
        (0.0, _publish_stream(0, "plant/a", MINUTE + 10, per_s=5)),
        (0.0, _publish_stream(3, "plant/b", MINUTE + 10, per_s=5, qos=2)),
        (5.0, HALVES),
        (5.0 + MINUTE, HealAll()),
    ],
)

PART_KILL = DeliveryScenario(
    "full:3",
    [(1, "plant/#"), (2, "plant/#")],
    [
        (0.0, Partition(((0,), (1, 2)))),
        (0.0, _publish_stream(0, "plant/temp", 30, per_s=5)),
        (20.0, CrashAgent(1)),
        (22.0, HealAll()),
        (22.0, Partition(((0,), (2,)))),
        (23.0, RestartAgent(1)),
    ],
)

PAUSE_KILL = DeliveryScenario(
    "line:3",
    [(1, "plant/#"), (2, "plant/#")],
    [
        (0.0, _publish_stream(0, "plant/temp", 40, per_s=10, qos=2)),
        *(
            (5.0 + 10 * turn + after, action)
            for turn, node in enumerate((2, 0, 1))
            for after, action in (
                (0, FreezeAgent(node, 8.0)),
                (1, CrashAgent(node)),
                (3, RestartAgent(node)),
            )
        ),
    ],
)

SILENCED_LINKS = ((0, 1), (4, 5), (3, 4), (7, 8), (1, 4), (5, 8), (0, 3))
RESTORED_LINKS = ((7, 8), (0, 1), (1, 4), (5, 8), (0, 3), (4, 5), (3, 4))
SWIZZLE = DeliveryScenario(
    "grid:3x3",
    [(2, "plant/#"), (4, "plant/#"), (8, "plant/#")],
    [
        (0.0, _publish_stream(0, "plant/a", 40, per_s=5)),
        (0.0, _publish_stream(6, "plant/b", 40, per_s=5, qos=2)),
        *((2.0 + 2 * turn, CutSilently(*link)) for turn, link in enumerate(SILENCED_LINKS)),
        *((20.0 + 2 * turn, RestoreLink(*link)) for turn, link in enumerate(RESTORED_LINKS)),
    ],
)

ONLY_COPY = DeliveryScenario(
    "line:3",
    [(1, "plant/#"), (2, "plant/#")],
    [
        (0.0, FreezeAgent(1, 1.0)),
        (0.1, ClientPublish(0, "plant/temp", qos=1)),
        (0.5, CrashAgent(1)),
        (1.0, AddLink(0, 2)),
    ],
)

CAPTURED = DeliveryScenario(
    "line:2",
    [(1, "plant/#")],
    [
        (0.0, Partition(((0,), (1,)))),
        (10.0, ClientPublish(0, "plant/temp", qos=2)),
        (10.001, CrashAgent(0)),
        (11.0, ClientPublish(0, "plant/temp", qos=1, count=5)),
        (20.0, HealAll()),
        (20.0, RestartAgent(0)),
    ],
)

ROLLED_BACK = DeliveryScenario(
    "line:3",
    [(1, "plant/#"), (2, "plant/#")],
    [
        (0.0, _publish_stream(0, "plant/temp", 50, per_s=5, qos=2)),
        (5.0, BackUpState(0)),
        (15.0, RollBackState(0)),  # others are connected, and know more
        (25.0, BackUpState(0)),
        (27.0, Partition(((0,), (1, 2)))),
        (29.0, RollBackState(0)),  # it captures more alone than it lost
        (45.0, HealAll()),
    ],
)

RETENTION = DeliveryScenario(
    "line:2",
    [(1, "plant/#")],
    [
        (0.0, Partition(((0,), (1,)))),
        (10.0, ClientPublish(0, "plant/temp", qos=1, count=30)),
        (20.0, HealAll()),
    ],
    disk=DiskOptions(journal_max=10),
)

STALE_REPAIR_REQUEST = DeliveryScenario(
    "line:3",
    [(2, "plant/#")],
    [
        (0.0, ClientPublish(0, "plant/temp", qos=2)),
        (5.0, StallDisk(2, 10.0)),
        (
            5.0,
            ClientPublish(0, "plant/temp", qos=2, count=5, interval_s=0.01),
        ),  # received, not on disk
        (5.2, ClientPublish(0, "plant/temp", qos=2)),
        (6.15, CutLink(1, 2)),  # lost there
        (6.3, RestoreLink(1, 2)),
        (7.0, ClientPublish(0, "plant/temp", qos=2)),  # reveals the gap
        (9.0, RestartAgent(2)),  # while the repair is in flight
        (30.0, ClientPublish(0, "plant/temp", qos=2)),
    ],
    LinkOptions(delays_ms=((0, 1, 1000.0),)),
)

LEASE = DeliveryScenario(
    "line:3",
    [(1, "plant/#"), (2, "plant/#")],
    [
        (0.0, _publish_stream(0, "plant/temp", 100, per_s=5, qos=2)),
        (5.0, Partition(((0,), (1, 2)))),
        (10.0, HealAll()),
        (20.0, Partition(((0,), (1, 2)))),
        (60.0, HealAll()),
        (80.0, RestartAgent(0)),  # all must be connected again by then, without its help
    ],
    lease_s=15.0,
)

SESSION = DeliveryScenario(
    "line:2",
    [(1, "plant/#")],
    [
        (0.0, StallDisk(0, 2.0)),
        (0.5, ClientPublish(0, "plant/temp", qos=1, count=5)),
        (1.5, RestartBroker(0)),
        (3.0, ClientPublish(0, "plant/temp", qos=1, count=5)),
    ],
)

# ---------------------------------------------------------------- evaluation


def _evaluate_all_delivered(final: FinalSnapshot) -> list[ClaimRow]:
    """All guaranteed publications arrived, once, and no gap was reported."""
    summary = final.result.guaranteed
    assert summary is not None
    ours = f"{summary.delivered} of {summary.promised}"
    holds = summary.delivered == summary.promised > 0
    return [
        ClaimRow("guaranteed deliveries, made", "all", ours, holds),
        equality_row("delivered twice", "0", str(final.result.duplicates_delivered)),
        equality_row("gaps reported", "0", str(summary.gaps)),
        ClaimRow("repaired from the origins' journals", "", str(summary.repaired)),
    ]


def _evaluate_all_repaired(final: FinalSnapshot) -> list[ClaimRow]:
    """The same, and repair was needed."""
    *rows, repaired = _evaluate_all_delivered(final)
    return [*rows, ClaimRow(repaired.what, "some", repaired.ours, repaired.ours != "0")]


def _evaluate_abandoned(final: FinalSnapshot) -> list[ClaimRow]:
    """Guaranteed publications arrived, or were abandoned after the lease had ended."""
    summary = final.result.guaranteed
    assert summary is not None
    ours = f"{summary.delivered} and {summary.reported} of {summary.promised}"
    holds = summary.delivered > 0 < summary.reported == summary.promised - summary.delivered
    return [
        ClaimRow("guaranteed deliveries, made or abandoned", "all", ours, holds),
        equality_row("delivered twice", "0", str(final.result.duplicates_delivered)),
    ]


def _evaluate_counts(
    delivered: int, reported: int, uncaptured: int
) -> Callable[[FinalSnapshot], list[ClaimRow]]:
    def evaluate(final: FinalSnapshot) -> list[ClaimRow]:
        summary = final.result.guaranteed
        assert summary is not None
        missing = summary.promised - summary.delivered - summary.reported
        return [
            equality_row("delivered", str(delivered), str(summary.delivered)),
            equality_row("reported as a gap", str(reported), str(summary.reported)),
            equality_row("lost before capture", str(uncaptured), str(summary.uncaptured)),
            equality_row("guaranteed, and neither", "0", str(missing)),
            equality_row("delivered twice", "0", str(final.result.duplicates_delivered)),
        ]

    return evaluate


def _make_scenario(
    name: str,
    title: str,
    claim: str,
    scenario: DeliveryScenario,
    evaluate: Callable[[FinalSnapshot], list[ClaimRow]],
) -> SimulationScenario:
    return SimulationScenario(name, title, claim, scenario.make_options, evaluate)


SCENARIOS = (
    _make_scenario(
        "changing-filters",
        "a client repeatedly adds and removes a filter that covers another",
        "Changing filters changes the path of a publication, but never its delivery, although every"
        " tenth copy is lost.",
        COVERING,
        _evaluate_all_repaired,
    ),
    _make_scenario(
        "passing-groups",
        "groups are created and removed around two stable ones",
        "Short-lived groups of other nodes do not affect stable ones, although every tenth copy is"
        " lost.",
        GROUPS,
        _evaluate_all_repaired,
    ),
    _make_scenario(
        "late-joiners",
        "seven agents start for the first time, one by one, at 30 % datagram loss",
        "From the acknowledgement of its interest on, a node gets everything, once and in order.",
        JOINERS,
        _evaluate_all_repaired,
    ),
    _make_scenario(
        "split-minute",
        "a partition of one minute, with traffic on both sides",
        "A partition is only a long delay.",
        SPLIT,
        _evaluate_all_repaired,
    ),
    _make_scenario(
        "part-kill",
        "the origin is cut off, a receiver is killed, and then is the only bridge",
        "Delivery depends neither on the relays nor on who was connected at publication.",
        PART_KILL,
        _evaluate_all_repaired,
    ),
    _make_scenario(
        "pause-kill",
        "a receiver, the origin and the node between them are killed while they are suspended",
        "A suspended agent holds no state that is lost when it is killed.",
        PAUSE_KILL,
        _evaluate_all_repaired,
    ),
    _make_scenario(
        "swizzle-clog",
        "links fail silently one by one and are restored in another order",
        "Whatever paths exist meanwhile, everything arrives once and in order.",
        SWIZZLE,
        _evaluate_all_repaired,
    ),
    _make_scenario(
        "only-copy",
        "the core crashes with the only copy",
        "Relays hold no state whose loss matters.",
        ONLY_COPY,
        _evaluate_all_repaired,
    ),
    _make_scenario(
        "crash-after-capture",
        "the origin crashes right after capture, without neighbours",
        "A message that the broker acknowledged is in the journal or still in the agent's session.",
        CAPTURED,
        _evaluate_all_repaired,
    ),
    _make_scenario(
        "rolled-back",
        "the origin's state is rolled back, while connected and while isolated",
        "Later publications arrive, although their positions were used before.",
        ROLLED_BACK,
        lambda final: _evaluate_all_delivered(final)[
            :1
        ],  # earlier publications may be duplicated or reported as gaps
    ),
    _make_scenario(
        "stale-repair-request",
        "a receiver requests a repair, crashes, and its next incarnation gets the response",
        "Only synced progress counts, whatever the previous incarnation reported.",
        STALE_REPAIR_REQUEST,
        _evaluate_all_repaired,
    ),
    _make_scenario(
        "retention",
        "a partition outlasts a journal of ten publications",
        "Every publication that the journal dropped is reported; the rest arrives.",
        RETENTION,
        _evaluate_counts(delivered=10, reported=20, uncaptured=0),
    ),
    _make_scenario(
        "lease-ended",
        "a partition outlasts the lease, and the origin restarts after it",
        "Publications pending when a lease ends are abandoned and reported; earlier and later ones"
        " arrive.",
        LEASE,
        _evaluate_abandoned,
    ),
    _make_scenario(
        "session-lost",
        "a broker loses its agent's session while the agent's disk stalls",
        "Messages that a broker loses before capture are not guaranteed; all later ones are.",
        SESSION,
        _evaluate_counts(delivered=5, reported=0, uncaptured=5),
    ),
)
