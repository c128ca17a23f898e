"""Scenarios of guaranteed delivery: what clients publish at QoS 1 and 2, in trouble of every kind.

They are our own. Each is judged by how many publications were promised to a node (see
`checkers/guarantees`), how many of them came, and what was said of the others.
"""

from collections.abc import Callable

from hansa.simulator.actions import (
    AddLink,
    BackUp,
    Crash,
    Cut,
    CutSilently,
    Freeze,
    Heal,
    Mend,
    Partition,
    Publish,
    Restart,
    RestartBroker,
    RollBack,
    Stall,
    Subscribe,
    Unsubscribe,
)
from hansa.simulator.options import DiskOptions, LinkOptions
from hansa.simulator.scenarios.delivery_scenario import Trouble
from hansa.simulator.scenarios.scenario import Final, Row, Scenario, same

LOSSY = LinkOptions(loss=0.1, reorder=0.05)
LATE_LOSSY = LinkOptions(loss=0.3)
MINUTE = 60.0


def _stream(node: int, topic: str, seconds: float, per_s: float = 20.0, qos: int = 1) -> Publish:
    return Publish(node, topic, count=round(seconds * per_s), interval_s=1 / per_s, qos=qos)


# ---------------------------------------------------------------- filters, groups, members

COVERING = Trouble(
    "line:3",
    [(2, "plant/line1/temp")],
    [
        (0.0, _stream(0, "plant/line1/temp", 20)),
        *(
            (turn, action(2, "plant/#"))
            for pair in range(8)
            for turn, action in ((1 + 2.0 * pair, Subscribe), (2 + 2.0 * pair, Unsubscribe))
        ),
    ],
    LOSSY,
)

GROUPS = Trouble(
    "ring:5",
    [(2, "plant/+/temp"), (4, "plant/line1/#")],
    [
        (0.0, _stream(0, "plant/line1/temp", 20)),
        (0.0, _stream(1, "plant/line2/temp", 20, qos=2)),
        *((1.0 + n, Subscribe(n % 5, f"plant/{word}")) for n, word in enumerate(("#", "+/+") * 4)),
        *((9.0 + n, Unsubscribe(n % 5, f"plant/{w}")) for n, w in enumerate(("#", "+/+") * 4)),
    ],
    LOSSY,
)

NEW = (1, 2, 3, 4, 5, 6, 7)
JOINERS = Trouble(
    "grid:3x3",
    [(node, "plant/#") for node in (*NEW, 8)],
    [
        (0.0, _stream(0, "plant/temp", 36, per_s=10)),
        *((4.0 * turn, Restart(node)) for turn, node in enumerate(NEW)),
    ],
    LATE_LOSSY,
    late=NEW,
)

# ---------------------------------------------------------------- partitions and deaths

HALVES = Partition(((0, 1, 2), (3, 4, 5)))
SPLIT = Trouble(
    "ring:6",
    [(1, "plant/#"), (4, "plant/#")],
    [
        (0.0, _stream(0, "plant/a", MINUTE + 10, per_s=5)),
        (0.0, _stream(3, "plant/b", MINUTE + 10, per_s=5, qos=2)),
        (5.0, HALVES),
        (5.0 + MINUTE, Heal()),
    ],
)

PART_KILL = Trouble(
    "full:3",
    [(1, "plant/#"), (2, "plant/#")],
    [
        (0.0, Partition(((0,), (1, 2)))),
        (0.0, _stream(0, "plant/temp", 30, per_s=5)),
        (20.0, Crash(1)),
        (22.0, Heal()),
        (22.0, Partition(((0,), (2,)))),
        (23.0, Restart(1)),
    ],
)

PAUSE_KILL = Trouble(
    "line:3",
    [(1, "plant/#"), (2, "plant/#")],
    [
        (0.0, _stream(0, "plant/temp", 40, per_s=10, qos=2)),
        *(
            (5.0 + 10 * turn + after, action)
            for turn, node in enumerate((2, 0, 1))
            for after, action in ((0, Freeze(node, 8.0)), (1, Crash(node)), (3, Restart(node)))
        ),
    ],
)

CLOGGED = ((0, 1), (4, 5), (3, 4), (7, 8), (1, 4), (5, 8), (0, 3))
UNCLOGGED = ((7, 8), (0, 1), (1, 4), (5, 8), (0, 3), (4, 5), (3, 4))
SWIZZLE = Trouble(
    "grid:3x3",
    [(2, "plant/#"), (4, "plant/#"), (8, "plant/#")],
    [
        (0.0, _stream(0, "plant/a", 40, per_s=5)),
        (0.0, _stream(6, "plant/b", 40, per_s=5, qos=2)),
        *((2.0 + 2 * turn, CutSilently(*link)) for turn, link in enumerate(CLOGGED)),
        *((20.0 + 2 * turn, Mend(*link)) for turn, link in enumerate(UNCLOGGED)),
    ],
)

ONLY_COPY = Trouble(
    "line:3",
    [(1, "plant/#"), (2, "plant/#")],
    [
        (0.0, Freeze(1, 1.0)),
        (0.1, Publish(0, "plant/temp", qos=1)),
        (0.5, Crash(1)),
        (1.0, AddLink(0, 2)),
    ],
)

CAPTURED = Trouble(
    "line:2",
    [(1, "plant/#")],
    [
        (0.0, Partition(((0,), (1,)))),
        (10.0, Publish(0, "plant/temp", qos=2)),
        (10.001, Crash(0)),
        (11.0, Publish(0, "plant/temp", qos=1, count=5)),
        (20.0, Heal()),
        (20.0, Restart(0)),
    ],
)

ROLLED_BACK = Trouble(
    "line:3",
    [(1, "plant/#"), (2, "plant/#")],
    [
        (0.0, _stream(0, "plant/temp", 50, per_s=5, qos=2)),
        (5.0, BackUp(0)),
        (15.0, RollBack(0)),  # others are there, and know more
        (25.0, BackUp(0)),
        (27.0, Partition(((0,), (1, 2)))),
        (29.0, RollBack(0)),  # it captures more alone than it has lost
        (45.0, Heal()),
    ],
)

RETENTION = Trouble(
    "line:2",
    [(1, "plant/#")],
    [
        (0.0, Partition(((0,), (1,)))),
        (10.0, Publish(0, "plant/temp", qos=1, count=30)),
        (20.0, Heal()),
    ],
    disk=DiskOptions(keep_max=10),
)

FORMER_QUESTION = Trouble(
    "line:3",
    [(2, "plant/#")],
    [
        (0.0, Publish(0, "plant/temp", qos=2)),
        (5.0, Stall(2, 10.0)),
        (5.0, Publish(0, "plant/temp", qos=2, count=5, interval_s=0.01)),  # taken, not on disk
        (5.2, Publish(0, "plant/temp", qos=2)),
        (6.15, Cut(1, 2)),  # lost there
        (6.3, Mend(1, 2)),
        (7.0, Publish(0, "plant/temp", qos=2)),  # shows the hole
        (9.0, Restart(2)),  # while the answer is on its way
        (30.0, Publish(0, "plant/temp", qos=2)),
    ],
    LinkOptions(delays_ms=((0, 1, 1000.0),)),
)

LEASE = Trouble(
    "line:3",
    [(1, "plant/#"), (2, "plant/#")],
    [
        (0.0, _stream(0, "plant/temp", 100, per_s=5, qos=2)),
        (5.0, Partition(((0,), (1, 2)))),
        (10.0, Heal()),
        (20.0, Partition(((0,), (1, 2)))),
        (60.0, Heal()),
        (80.0, Restart(0)),  # when all must know each other again, without its help
    ],
    lease_s=15.0,
)

SESSION = Trouble(
    "line:2",
    [(1, "plant/#")],
    [
        (0.0, Stall(0, 2.0)),
        (0.5, Publish(0, "plant/temp", qos=1, count=5)),
        (1.5, RestartBroker(0)),
        (3.0, Publish(0, "plant/temp", qos=1, count=5)),
    ],
)

# ---------------------------------------------------------------- judging


def _all_came(final: Final) -> list[Row]:
    """Whatever was promised has come, once, and no gap was reported."""
    got = final.result.guaranteed
    assert got is not None
    ours = f"{got.delivered} of {got.promised}"
    kept = got.delivered == got.promised > 0
    return [
        Row("publications promised to nodes, delivered", "all", ours, kept),
        same("delivered twice", "0", str(final.result.duplicates_delivered)),
        same("gaps reported", "0", str(got.gaps)),
        Row("repaired from the origins' journals", "", str(got.repaired)),
    ]


def _all_repaired(final: Final) -> list[Row]:
    """As before, and it took repair."""
    *rows, repaired = _all_came(final)
    return [*rows, Row(repaired.what, "some", repaired.ours, repaired.ours != "0")]


def _given_up(final: Final) -> list[Row]:
    """What was promised has come, or was given up when the lease had ended."""
    got = final.result.guaranteed
    assert got is not None
    ours = f"{got.delivered} and {got.reported} of {got.promised}"
    kept = got.delivered > 0 < got.reported == got.promised - got.delivered
    return [
        Row("publications promised to nodes, delivered or given up", "all", ours, kept),
        same("delivered twice", "0", str(final.result.duplicates_delivered)),
    ]


def _numbers(delivered: int, reported: int, uncaptured: int) -> Callable[[Final], list[Row]]:
    def judge(final: Final) -> list[Row]:
        got = final.result.guaranteed
        assert got is not None
        return [
            same("delivered", str(delivered), str(got.delivered)),
            same("reported as a gap", str(reported), str(got.reported)),
            same(
                "lost by the broker before they were captured", str(uncaptured), str(got.uncaptured)
            ),
            same("promised, and neither", "0", str(got.promised - got.delivered - got.reported)),
            same("delivered twice", "0", str(final.result.duplicates_delivered)),
        ]

    return judge


def _scenario(
    name: str, title: str, claim: str, trouble: Trouble, judge: Callable[[Final], list[Row]]
) -> Scenario:
    return Scenario(name, title, claim, trouble.options, judge)


SCENARIOS = (
    _scenario(
        "changing-filters",
        "a client adds a filter that covers another and takes it back, again and again",
        "Filters that come and go change the way of a publication, never whether it comes, though"
        " every tenth copy is lost.",
        COVERING,
        _all_repaired,
    ),
    _scenario(
        "passing-groups",
        "groups that come and go around two that stay",
        "Groups that others want for a while cost those that stay nothing, though every tenth"
        " copy is lost.",
        GROUPS,
        _all_repaired,
    ),
    _scenario(
        "late-joiners",
        "seven agents start for the first time, one by one, at 30 % datagram loss",
        "From the moment its interest is confirmed a node gets everything, once and in order.",
        JOINERS,
        _all_repaired,
    ),
    _scenario(
        "split-minute",
        "a partition of one minute, with traffic on both sides",
        "A partition is only a long delay.",
        SPLIT,
        _all_repaired,
    ),
    _scenario(
        "part-kill",
        "the origin is cut off, a receiver is killed, and then is the only bridge",
        "It does not matter who is left to pass it on, nor who was there when it was published.",
        PART_KILL,
        _all_repaired,
    ),
    _scenario(
        "pause-kill",
        "a receiver, the origin and the node between them are killed while they are suspended",
        "Who is suspended knows nothing that would be missed when it is killed.",
        PAUSE_KILL,
        _all_repaired,
    ),
    _scenario(
        "swizzle-clog",
        "links fall silent one by one, and come back in another order",
        "Whatever ways there are meanwhile, everything comes once and in order.",
        SWIZZLE,
        _all_repaired,
    ),
    _scenario(
        "only-copy",
        "the core dies with the only copy",
        "Nodes in between hold nothing that would be missed.",
        ONLY_COPY,
        _all_repaired,
    ),
    _scenario(
        "crash-after-capture",
        "the origin dies right after capture, with nobody in reach",
        "What the broker acknowledged to its clients is in the journal or still in its session.",
        CAPTURED,
        _all_repaired,
    ),
    _scenario(
        "rolled-back",
        "an old copy of the origin's state is put back, in reach of others and alone",
        "What is published from then on comes, though its positions were used before.",
        ROLLED_BACK,
        lambda final: _all_came(final)[:1],  # of what came before some comes twice, or is a gap
    ),
    _scenario(
        "former-question",
        "a receiver asks, dies with what it had taken, and its next life gets the answer",
        "What counts is what was on disk, whatever a former life said it had.",
        FORMER_QUESTION,
        _all_repaired,
    ),
    _scenario(
        "retention",
        "a partition outlasts a journal of ten publications",
        "What the journal had to drop is reported, to the last one; the rest comes.",
        RETENTION,
        _numbers(delivered=10, reported=20, uncaptured=0),
    ),
    _scenario(
        "lease-ended",
        "a partition outlasts the lease, and the origin starts again after it",
        "What a node is owed when its lease ends is given up, and told; what is published before"
        " and after comes.",
        LEASE,
        _given_up,
    ),
    _scenario(
        "session-lost",
        "a broker forgets its agent's session while the agent's disk hangs",
        "What a broker loses before it was captured is not promised; all that follows is.",
        SESSION,
        _numbers(delivered=5, reported=0, uncaptured=5),
    ),
)
