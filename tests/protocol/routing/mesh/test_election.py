"""Election of cores: the first interested node, the smallest claimant, the nearest to a lost
core."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.protocol.effects import CoreElected, CoreLost, Effect
from hansa.protocol.interest.groups import GroupIndex
from hansa.protocol.membership.graph import Graph
from hansa.protocol.model import MANAGEMENT_GROUP, NodeId
from hansa.protocol.routing.mesh.election import Election
from hansa.protocol.settings import ManagementBy, Metric, ProtocolSettings

SETTINGS = ProtocolSettings(takeover_delay=1.0, takeover_fallback_delay=10.0, linger=2.0)


class Scene:
    """An election at node 5 of the line 1-2-3-…-9, with its context."""

    def __init__(self, settings: ProtocolSettings = SETTINGS, me: int = 5) -> None:
        self.graph = Graph(NodeId(me), Metric.HOPS)
        self.index = GroupIndex(depth=0)
        self.capacities: dict[int, float] = {}
        self.election = Election(
            NodeId(me),
            settings,
            self.graph,
            self.index,
            lambda node: self.capacities.get(node, 1),
            lambda node: True,
        )
        for node in range(1, 10):
            self.link(node, *(other for other in (node - 1, node + 1) if 1 <= other <= 9))

    def link(self, node: int, *others: int) -> None:
        self.graph.set_links(NodeId(node), {NodeId(other): 0 for other in others})

    def subscribe(self, *nodes: int) -> None:
        for node in nodes:
            self.index.apply_change(NodeId(node), ["g"], [])

    def unsubscribe(self, node: int) -> None:
        self.index.apply_change(NodeId(node), [], ["g"])

    def claim(self, node: int, now: float = 0.0) -> list[Effect]:
        self.election.apply_claims(NodeId(node), ["g"], [])
        return self.evaluate(now)

    def disclaim(self, node: int, now: float = 0.0) -> list[Effect]:
        self.election.apply_claims(NodeId(node), [], ["g"])
        return self.evaluate(now)

    def lose(self, node: int, now: float = 0.0) -> list[Effect]:
        """The neighbours of a node lose it."""
        for other in (node - 1, node + 1):
            self.link(other, *(n for n in (other - 1, other + 1) if n != node))
        return self.evaluate(now)

    def evaluate(self, now: float = 0.0) -> list[Effect]:
        return self.election.evaluate("g", now)

    @property
    def claims(self) -> bool:
        return "g" in self.election.own_claims


def elected(core: int) -> list[Effect]:
    return [CoreElected("g", NodeId(core))]


def lost(core: int) -> list[Effect]:
    return [CoreLost("g", NodeId(core))]


# ---------------------------------------------------------------- the first core


def test_group_without_interest_has_no_core():
    scene = Scene()
    assert scene.evaluate() == []
    assert scene.election.cores == {MANAGEMENT_GROUP: 5}


def test_first_interested_node_claims_the_group_at_once():
    scene = Scene()
    scene.subscribe(5)
    assert scene.evaluate() == elected(5)
    assert scene.claims
    assert scene.election.groups_by_core == {5: {MANAGEMENT_GROUP: None, "g": None}}


def test_group_without_local_interest_is_not_claimed():
    scene = Scene()
    scene.subscribe(7)
    assert scene.evaluate() == []
    assert (scene.claims, scene.election.next_deadline()) == (False, None)


def test_smallest_of_several_interested_nodes_claims_at_once():
    scene = Scene()
    scene.subscribe(5, 7)
    assert scene.evaluate() == elected(5)


def test_other_interested_nodes_wait_with_their_claim():
    scene = Scene()
    scene.subscribe(3, 5)
    assert scene.evaluate(now=100.0) == []
    assert scene.election.next_deadline() == 110.0
    assert scene.election.due_groups(109.0) == []
    assert scene.election.due_groups(110.0) == ["g"]
    assert scene.evaluate(110.0) == elected(5)
    assert scene.election.next_deadline() is None


def test_claim_delay_counts_from_the_beginning():
    scene = Scene()
    scene.subscribe(3, 5)
    scene.evaluate(now=100.0)
    scene.evaluate(now=104.0)
    assert scene.election.next_deadline() == 110.0


def test_next_deadline_is_that_of_the_first_group():
    scene = Scene()
    for group, since in (("g", 100.0), ("h", 101.0)):
        scene.index.apply_change(NodeId(3), [group], [])
        scene.index.apply_change(NodeId(5), [group], [])
        scene.election.evaluate(group, since)
    assert scene.election.next_deadline() == 110.0


def test_node_without_interest_does_not_wait_to_claim():
    scene = Scene()
    scene.subscribe(3, 5)
    scene.evaluate()
    scene.unsubscribe(5)
    assert scene.evaluate() == []
    assert scene.election.next_deadline() is None


# ---------------------------------------------------------------- several claimants


def test_claimant_is_core():
    assert Scene().claim(7) == elected(7)


def test_smaller_claimant_is_core():
    scene = Scene()
    scene.claim(7)
    assert scene.claim(3) == elected(3)
    assert scene.election.groups_by_core == {5: {MANAGEMENT_GROUP: None}, 3: {"g": None}}


def test_larger_claimant_changes_nothing():
    scene = Scene()
    scene.claim(3)
    assert scene.claim(7) == []


def test_core_withdraws_for_a_smaller_claimant():
    scene = Scene()
    scene.subscribe(5)
    scene.evaluate()
    assert scene.claim(3) == elected(3)
    assert not scene.claims


def test_core_stays_when_a_larger_claimant_appears():
    scene = Scene()
    scene.subscribe(5)
    scene.evaluate()
    assert scene.claim(7) == []
    assert scene.claims


def test_claim_by_another_node_cancels_a_waiting_claim():
    scene = Scene()
    scene.subscribe(3, 5)
    scene.evaluate()
    assert scene.claim(7) == elected(7)
    assert scene.election.next_deadline() is None


def test_unreachable_claimant_does_not_count():
    scene = Scene()
    scene.lose(8)
    assert scene.claim(9) == []
    assert scene.claim(7) == elected(7)


def test_next_claimant_follows_when_the_core_withdraws():
    scene = Scene()
    scene.claim(3)
    scene.claim(7)
    assert scene.disclaim(3) == elected(7)


def test_withdrawing_an_unknown_claim_changes_nothing():
    assert Scene().disclaim(3) == []


events = st.lists(
    st.tuples(st.sampled_from(["claim", "disclaim"]), st.sampled_from([1, 3, 5, 7, 9])), max_size=30
)


@given(events, st.booleans())
def test_smallest_claimant_is_core_in_any_order_of_changes(changes, is_interested):
    scene = Scene()
    if is_interested:
        scene.subscribe(5)
        scene.evaluate()
    claimants = {5} if is_interested else set()
    for kind, node in changes:
        if node == 5:
            scene.evaluate()  # no other node can claim for this node
        elif kind == "claim":
            scene.claim(node)
            claimants.add(node)
            if min(claimants) != 5:
                claimants.discard(5)
        else:
            scene.disclaim(node)
            claimants.discard(node)
            if is_interested and not claimants:  # lost long ago: no node is nearer
                scene.evaluate(now=100.0)
                claimants = {5}
    assert scene.election.cores.get("g") == min(claimants, default=None)
    assert scene.claims == (min(claimants, default=None) == 5)


# ---------------------------------------------------------------- a core is lost


def test_nearest_interested_node_takes_over_after_the_delay():
    scene = Scene()
    scene.subscribe(3, 5)
    scene.claim(7)
    assert scene.lose(7, now=100.0) == lost(7)
    assert scene.election.next_deadline() == 101.0
    assert scene.evaluate(101.0) == elected(5)


def test_nearest_node_takes_over_at_once_without_a_delay():
    scene = Scene(ProtocolSettings(takeover_delay=0.0))
    scene.subscribe(3, 5)
    scene.claim(7)
    assert scene.lose(7, now=100.0) == elected(5)


def test_farther_node_waits_for_the_nearest():
    scene = Scene()
    scene.subscribe(3, 5, 6)
    scene.claim(7)
    assert scene.lose(7, now=100.0) == lost(7)
    assert scene.election.next_deadline() == 111.0
    assert scene.evaluate(111.0) == elected(5)


@pytest.mark.parametrize(("me", "due"), [(3, 101.0), (5, 111.0)])
def test_smaller_of_two_equally_near_nodes_takes_over(me, due):
    scene = Scene(me=me)
    scene.link(1, 2, 9)
    scene.link(9, 8, 1)
    scene.subscribe(3, 5)
    scene.claim(4)
    assert scene.lose(4, now=100.0) == lost(4)
    assert scene.election.next_deadline() == due


def test_node_without_interest_does_not_take_over():
    scene = Scene()
    scene.claim(7)
    assert scene.lose(7) == lost(7)
    assert scene.election.next_deadline() is None


def test_core_that_comes_back_in_time_is_core_again():
    scene = Scene()
    scene.subscribe(5)
    scene.claim(7)
    scene.lose(7, now=100.0)
    scene.link(6, 5, 7)
    assert scene.evaluate(100.5) == elected(7)
    assert (scene.election.next_deadline(), scene.claims) == (None, False)


def test_newly_interested_node_claims_a_group_whose_core_was_lost():
    scene = Scene()
    scene.claim(7)
    scene.lose(7)
    scene.subscribe(5)
    assert scene.evaluate() == elected(5)


# ---------------------------------------------------------------- a core without a reason


def test_core_keeps_a_group_without_interest_for_the_linger():
    scene = Scene()
    scene.subscribe(5)
    scene.evaluate()
    scene.unsubscribe(5)
    assert scene.evaluate(100.0) == []
    assert scene.election.next_deadline() == 102.0
    assert scene.election.due_groups(101.0) == []
    assert scene.election.due_groups(102.0) == ["g"]
    assert scene.evaluate(102.0) == lost(5)
    assert (scene.claims, scene.election.next_deadline()) == (False, None)


def test_core_stays_while_another_node_is_interested():
    scene = Scene()
    scene.subscribe(5, 9)
    scene.evaluate()
    scene.unsubscribe(5)
    assert scene.evaluate() == []
    assert (scene.claims, scene.election.next_deadline()) == (True, None)


def test_core_stays_if_interest_returns_within_the_linger():
    scene = Scene()
    scene.subscribe(5)
    scene.evaluate()
    scene.unsubscribe(5)
    scene.evaluate(100.0)
    scene.subscribe(9)
    assert scene.evaluate(101.0) == []
    assert (scene.claims, scene.election.next_deadline()) == (True, None)


def test_core_that_withdraws_does_not_linger():
    scene = Scene()
    scene.subscribe(5)
    scene.evaluate()
    scene.unsubscribe(5)
    scene.evaluate(100.0)
    assert scene.claim(3, now=101.0) == elected(3)
    assert scene.election.next_deadline() is None


# ---------------------------------------------------------------- the management group


def test_node_alone_is_management_core():
    assert Scene().election.cores == {MANAGEMENT_GROUP: 5}


def test_smallest_reachable_node_is_management_core():
    scene = Scene()
    joined = [NodeId(8), NodeId(1), NodeId(0)]  # one of them has left again
    assert scene.election.evaluate_management(joined) == [CoreElected(MANAGEMENT_GROUP, NodeId(1))]
    assert scene.election.evaluate_management([]) == []
    assert scene.election.groups_by_core == {1: {MANAGEMENT_GROUP: None}}


def test_node_with_the_highest_capacity_is_management_core_if_configured():
    scene = Scene(ProtocolSettings(management_by=ManagementBy.CAPACITY))
    scene.capacities = {8: 4.0, 6: 4.0, 2: 2.0}
    assert scene.election.evaluate_management([]) == [CoreElected(MANAGEMENT_GROUP, NodeId(6))]


@pytest.mark.parametrize(("cut", "leader"), [(2, 3), (4, 5), (6, 1)])
def test_each_side_of_a_partition_has_a_management_core(cut, leader):
    scene = Scene()
    scene.election.evaluate_management(scene.graph.reachable)
    scene.lose(cut)
    scene.election.evaluate_management([])
    assert scene.election.cores[MANAGEMENT_GROUP] == leader
