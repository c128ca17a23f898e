"""Known errors inserted into the protocol: the checkers must detect each.

The first ones are errors of earlier federators of this kind. If a patched function changes, make
sure that the mutant is still one: `caught` then returns nothing and the test fails.
"""

import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Sequence

import pytest

from hansa.compiled_core import PURE
from hansa.protocol.forwarding.numbering import LocalSequencer
from hansa.protocol.forwarding.table import ForwardingTable, TopicPlan
from hansa.protocol.links.neighbours import Neighbours
from hansa.protocol.model import Publication
from hansa.protocol.routing.mesh.election import Election
from hansa.protocol.routing.mesh.members import MeshMembers
from hansa.protocol.routing.mesh.routes import CoreRoutes
from hansa.protocol.routing.paths import PathsStrategy
from hansa.protocol.routing.tree_subscriptions import TreeSubscriptions
from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import (
    ClientPublish,
    ClientSubscribe,
    ClientUnsubscribe,
    CrashAgent,
    Partition,
    RestartAgent,
    RestoreLink,
    ScheduledAction,
    SimulatedAction,
)
from hansa.simulator.options import LinkOptions, Phases, SimulationOptions
from hansa.simulator.run import simulate
from hansa.simulator.topologies import parse_topology


def caught(word: str, script: Sequence[tuple[float, SimulatedAction]], **options) -> set[str]:
    """Run a script; return the names of the violated invariants."""
    steps = tuple(ScheduledAction(at, action) for at, action in script)
    phases = options.pop("phases", Phases(warm_up_s=20.0))
    made = SimulationOptions(parse_topology(word, 0), schedule=steps, phases=phases, **options)
    return {violation.partition(":")[0] for violation in simulate(made).violations}


GRID = [
    (0.0, ClientSubscribe(2, "a/#")),
    (5.0, ClientSubscribe(7, "a/#")),
    (8.0, ClientPublish(6, "a/b")),
]
RESTART = [
    (0.0, ClientSubscribe(2, "a")),
    (5.0, ClientPublish(0, "a", count=3)),
    (6.0, RestartAgent(0)),
    (18.0, ClientPublish(0, "a", count=3)),
]
BURST = [
    *((0.0, ClientSubscribe(node, "a")) for node in range(8)),
    (5.0, ClientPublish(0, "a", count=50, interval_s=0.001)),
]
CORE_LOST = [(0.0, ClientSubscribe(2, "a")), (1.0, ClientSubscribe(4, "a")), (5.0, CrashAgent(2))]
HALVES = [
    (0.0, ClientSubscribe(0, "a")),
    (2.0, Partition(((0, 1, 2, 3), (4, 5, 6, 7)))),
    (2.5, RestoreLink(3, 4)),
    (3.0, RestoreLink(0, 7)),
]


@pytest.mark.parametrize(
    ("word", "script"),
    [
        ("grid:3x3", GRID),
        ("ring:4", RESTART),
        ("ring:8", BURST),
        ("ring:6", CORE_LOST),
        ("ring:8", HALVES),
    ],
)
def test_no_violation_without_mutant(word, script):
    assert caught(word, script) == set()


# ---------------------------------------------------------------- faults of the lineage


def test_mutant_announcements_forwarded_at_any_distance(monkeypatch):
    """A port of mqtt-fed: 492 frames instead of 56 on a grid of 5x5."""
    receive = CoreRoutes.receive_announcement

    def receive_and_forward(self, neighbour, frame):
        route = self.routes.get(frame.core)
        known = route.announcements.get(neighbour) if route else None
        return receive(self, neighbour, frame) or known != (
            (frame.incarnation, frame.sequence),
            frame.distance,
        )

    monkeypatch.setattr(CoreRoutes, "receive_announcement", receive_and_forward)
    assert "announcement cost" in caught("grid:5x5", GRID)


def test_mutant_only_strictly_nearer_announcements(monkeypatch):
    init = CoreRoutes.__init__
    monkeypatch.setattr(CoreRoutes, "__init__", lambda self, _, *rest: init(self, 1, *rest))
    assert "redundancy filled" in caught("grid:3x3", GRID)


def test_mutant_no_feasible_distance(monkeypatch):
    """Without the feasible distance, a node adopts a route from neighbours that got it from this
    node."""
    choose = CoreRoutes._select_parents  # noqa: SLF001  # the seam is where the rule is

    def choose_anything(self, core, route):
        if route.distance != 0:
            route.feasible_distance = 1 << 32
        return choose(self, core, route)

    monkeypatch.setattr(CoreRoutes, "_select_parents", choose_anything)
    assert "parents nearer" in caught("ring:8", [*HALVES, (4.0, CrashAgent(0))])


def test_mutant_distance_counted_twice(monkeypatch):
    monkeypatch.setattr(Neighbours, "link_cost", lambda self, link: 2)
    assert "true distances" in caught("grid:3x3", GRID)


def test_mutant_ids_without_incarnation(monkeypatch):
    name = LocalSequencer.make_publication
    monkeypatch.setattr(
        LocalSequencer, "make_publication", lambda self, event, *_: name(self, event, 1)
    )
    assert "completeness" in caught("ring:4", RESTART)


def test_mutant_small_duplicate_cache(monkeypatch):
    """The last 8 ids instead of a window: a copy over the longer path arrives too late."""

    class Recent:
        def __init__(self, size):
            self._seen: OrderedDict[int, None] = OrderedDict()
            self._towards: OrderedDict[tuple[int, int], None] = OrderedDict()

        def add(self, number):
            return self._remember(self._seen, number)

        def mark_sent_towards(self, number, group):
            return self._remember(self._towards, (number, group))

        def _remember(self, seen, key):
            new = key not in seen
            seen[key] = None
            seen.move_to_end(key)
            if len(seen) > 8:
                seen.popitem(last=False)
            return new

    monkeypatch.setattr("hansa.protocol.forwarding.dedup.SequenceWindow", Recent)
    slow_side = LinkOptions(delays_ms=((0, 1, 30.0),))
    assert "at most once" in caught("ring:8", BURST, links=slow_side)


# ---------------------------------------------------------------- faults that anyone could make


def test_mutant_copy_changed_in_transit(monkeypatch):
    onward = Publication.forwarded_copy

    def spoilt(self, hops, named):
        return replace_payload(onward(self, hops, named))

    def replace_payload(copy):
        return Publication(copy.origin, copy.epoch, copy.sequence, copy.qos, "b", copy.payload)

    monkeypatch.setattr(Publication, "forwarded_copy", spoilt)
    assert "no phantom" in caught(
        "line:2", [(0.0, ClientSubscribe(1, "#")), (5.0, ClientPublish(0, "a"))]
    )


def test_mutant_lost_core_is_not_replaced(monkeypatch):
    evaluate = Election.evaluate

    def give_up(self, group, now):
        effects = evaluate(self, group, now)
        if now > 5.0:
            self.own_claims.pop(group, None)
            self.cores.pop(group, None)
        return effects

    monkeypatch.setattr(Election, "evaluate", give_up)
    assert "convergence" in caught("ring:6", CORE_LOST)


PLANS = [
    (0.0, ClientSubscribe(1, "#")),
    *((5.0, ClientPublish(0, f"a/{number}")) for number in range(5)),
    (8.0, ClientSubscribe(0, "b")),
]


def test_mutant_unbounded_plans(monkeypatch):
    """A check at the end would be too late: the next change of the table drops all plans."""
    tight = ProtocolSettings(plans_max=2)
    assert caught("line:2", PLANS, protocol=tight) == set()

    def plan_and_keep(self, topic):
        entries, local = self._entries.match(topic), self._local_filters.match(topic)
        return self.plans.setdefault(topic, TopicPlan(entries, bool(local)))

    monkeypatch.setattr(ForwardingTable, "plan", plan_and_keep)
    assert caught("line:2", PLANS, protocol=tight) == {"bounded"}


def test_mutant_no_leave_messages(monkeypatch):
    monkeypatch.setattr(MeshMembers, "pop_due_leaves", lambda self, now: [])
    monkeypatch.setattr(MeshMembers, "next_deadline", lambda self: None)
    script = [
        (0.0, ClientSubscribe(2, "a")),
        (1.0, ClientSubscribe(4, "a")),
        (5.0, ClientUnsubscribe(4, "a")),
    ]
    broken = caught("ring:6", script)
    assert broken & {"tables agree", "meshes minimal"}


# ---------------------------------------------------------------- faults of other strategies


def caught_with(strategy: str, **settings) -> set[str]:
    """Run on a grid with a strategy."""
    return caught("grid:3x3", GRID, protocol=ProtocolSettings(strategy=strategy, **settings))


@pytest.mark.parametrize("strategy", ["paths", "tree-subscriptions"])
def test_no_violation_of_other_strategies_without_mutant(strategy):
    assert caught_with(strategy) == set()


def test_mutant_subscription_table_misses_a_branch(monkeypatch):
    """Its status is correct, but its forwarding is not."""
    entry = TreeSubscriptions._make_entry  # noqa: SLF001  # the seam is where the rule is

    def forget_one(self, group, wanters):
        made = entry(self, group, wanters)
        made.mesh_links = made.mesh_links[1:]
        return made

    monkeypatch.setattr(TreeSubscriptions, "_make_entry", forget_one)
    assert "completeness" in caught_with("tree-subscriptions")


def test_mutant_subscription_table_has_every_branch(monkeypatch):
    def take_all(self, group, wanters):
        return dict.fromkeys(self._neighbour_towards.values())

    monkeypatch.setattr(TreeSubscriptions, "_tree_neighbours", take_all)
    assert caught_with("tree-subscriptions") & {"tables agree", "meshes minimal"}


def test_mutant_paths_flood(monkeypatch):
    def flood(self, origin, wanter):
        return tuple(self._context.graph.lengths(self._self))

    monkeypatch.setattr(PathsStrategy, "_next_hops", flood)
    assert "shortest paths from origin" in caught_with("paths", redundancy=1)


def test_mutant_paths_without_redundancy(monkeypatch):
    init = PathsStrategy.__init__

    def only_once(self, around):
        init(self, around)
        self._use_two_paths = False

    monkeypatch.setattr(PathsStrategy, "__init__", only_once)
    assert "shortest paths from origin" in caught_with("paths", redundancy=2)


HASH_ORDER = """
from hansa.protocol.interest.local import LocalInterest
from hansa.simulator.actions import ClientSubscribe, ScheduledAction
from hansa.simulator.options import Phases, SimulationOptions
from hansa.simulator.run import simulate
from hansa.simulator.topologies import parse_topology

pop_due_changes = LocalInterest.pop_due_changes

def unordered(self, installed, now):
    added, removed = pop_due_changes(self, installed, now)
    return list(set(added)), removed

LocalInterest.pop_due_changes = unordered
script = tuple(ScheduledAction(0.0, ClientSubscribe(0, f"topic/{n}")) for n in range(20))
topology, phases = parse_topology("ring:3", 0), Phases(warm_up_s=2.0)
options = SimulationOptions(topology, schedule=script, phases=phases)
print(simulate(options).fingerprint)
"""


def test_mutant_order_depends_on_hash_seed():
    """This is why test_run compares two processes with different hash seeds."""
    fingerprints = {
        subprocess.run(
            [sys.executable, "-c", HASH_ORDER],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, PURE: "1"},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2", "3")
    }
    assert len(fingerprints) > 1
