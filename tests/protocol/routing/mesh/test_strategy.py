"""The mesh strategy at one node: the frames and entries that each input causes.

The node is 5. Its neighbours are 2, 4 and 6; behind 2 are 1, the management core, and 3; behind 6
is 9.
"""

import pytest

from hansa.protocol.effects import (
    CoreElected,
    CoreLost,
    Ignored,
    MeshJoined,
    MeshLeft,
    ParentsChanged,
)
from hansa.protocol.forwarding.table import GroupEntry
from hansa.protocol.interest.groups import GroupIndex
from hansa.protocol.links.neighbours import NeighbourLink
from hansa.protocol.membership.graph import Graph
from hansa.protocol.membership.records import ClaimsRecord
from hansa.protocol.model import HOPS_MAX, MANAGEMENT_GROUP, LinkId, NodeId, group_id
from hansa.protocol.routing.base import CoreStatus, GroupStatus, StrategyContext
from hansa.protocol.routing.mesh.strategy import GROUPS_PER_FRAME_MAX, MeshStrategy
from hansa.protocol.routing.output import SendToNeighbour, StrategyOutput
from hansa.protocol.settings import Metric, ProtocolSettings
from hansa.protocol.wire.bounds import FLAGS_MAX
from hansa.protocol.wire.frames import (
    UNREACHABLE,
    AnnouncementRequest,
    CoreAnnouncement,
    Fetch,
    MeshMembership,
    OrderedFrame,
)

ME = NodeId(5)
NEIGHBOURS = (2, 4, 6)
SETTINGS = ProtocolSettings(
    announcement_interval_min=1.0,
    management_claim_delay=10.0,
    linger=2.0,
    announcement_request_interval_max=8.0,
    takeover_fallback_delay=20.0,
)


class Place:
    """A mesh strategy with its context; its methods change the context and then report the
    change."""

    def __init__(self, settings: ProtocolSettings = SETTINGS) -> None:
        self.claims: dict[int, dict[str, None]] = {}
        self.interest: dict[int, dict[str, None]] = {}
        self.costs: dict[int, int] = {}
        self.version = 0
        self.graph = Graph(ME, Metric.HOPS)
        self.index = GroupIndex(depth=0)
        self.links = {NodeId(n): NeighbourLink(LinkId(10 * n), True, None, 0.0) for n in NEIGHBOURS}
        self.mesh = MeshStrategy(
            StrategyContext(
                node=ME,
                settings=settings,
                graph=self.graph,
                index=self.index,
                neighbours=self.links,
                cost=lambda node: self.costs.get(node, 1),
                least_distance=lambda node, core: 0,
                capacity=lambda node: 1.0,
                incarnation=lambda: 7,
                claims_of=lambda node: self.claims.get(node, {}),
                groups_of=lambda node: self.interest.get(node, {}),
                claim=self._claim,
                sign_announcement=lambda core, stamp: b"",
                may_be_core=lambda node: True,
            )
        )
        links = {1: [2], 2: [1, 3, 5], 3: [2], 4: [5], 5: NEIGHBOURS, 6: [5, 9], 9: [6]}
        for node, others in links.items():
            self.graph.set_links(NodeId(node), {NodeId(other): 0 for other in others})
        self.mesh.nodes_changed(map(NodeId, links), (), 0.0)
        self.receive(2, announce(1, 1), now=1.0)
        self.mesh.drain_entries()

    def _claim(self, added: list[str], removed: list[str], _: float) -> list[ClaimsRecord]:
        mine = self.claims.setdefault(ME, {})
        mine.update(dict.fromkeys(added))
        for group in removed:
            del mine[group]
        if not added and not removed:
            return []
        self.version += 1
        return [ClaimsRecord(ME, 7, self.version, self.version - 1, tuple(added), tuple(removed))]

    def subscribe(self, node: int, *groups: str, now: float = 100.0) -> StrategyOutput:
        self.interest.setdefault(node, {}).update(dict.fromkeys(groups))
        return self.mesh.interest_changed(self.index.apply_change(NodeId(node), groups, ()), now)

    def unsubscribe(self, node: int, *groups: str, now: float = 100.0) -> StrategyOutput:
        for group in groups:
            del self.interest[node][group]
        return self.mesh.interest_changed(self.index.apply_change(NodeId(node), (), groups), now)

    def claim(self, node: int, *groups: str, now: float = 100.0) -> StrategyOutput:
        self.claims.setdefault(node, {}).update(dict.fromkeys(groups))
        return self.mesh.claims_changed(NodeId(node), groups, (), now)

    def receive(self, sender: int, frame: OrderedFrame, now: float = 100.0) -> StrategyOutput:
        return self.mesh.receive(NodeId(sender), frame, now)

    def lose(self, node: int, now: float = 100.0) -> StrategyOutput:
        """A neighbour is lost, and the nodes behind it."""
        del self.links[NodeId(node)]
        _, gone = self.graph.set_links(ME, {other: 0 for other in self.links})
        outcome = self.mesh.neighbour_down(NodeId(node), now)
        return outcome + self.mesh.nodes_changed((), gone, now)

    def entries(self) -> list[tuple[object, ...]]:
        return [
            (e.group, e.is_member, e.mesh_links, e.core_links)
            if isinstance(e, GroupEntry)
            else (e,)
            for e in self.mesh.drain_entries()
        ]


def announce(core: int, distance: int, sequence: int = 1, **more: object) -> CoreAnnouncement:
    return CoreAnnouncement(NodeId(core), 1, sequence, distance, **more)  # type: ignore[arg-type]


def sends(nodes: tuple[int, ...], frame: OrderedFrame) -> StrategyOutput:
    return [SendToNeighbour(NodeId(node), frame) for node in nodes]


def following(*groups: str, core: int = 3, parents: tuple[int, ...] = (2,)) -> Place:
    """A place with a route to a core of groups."""
    place = Place()
    place.subscribe(core, *groups)
    place.claim(core, *groups)
    for parent in parents:
        place.receive(parent, announce(core, 1))
    place.mesh.drain_entries()
    return place


def leading(*groups: str) -> Place:
    """A place that is core of groups, announced long ago."""
    place = Place()
    place.subscribe(ME, *groups, now=50.0)
    place.mesh.drain_entries()
    return place


# ---------------------------------------------------------------- being core


def test_first_interested_node_claims_and_announces_the_group_at_once():
    record = ClaimsRecord(ME, 7, 1, 0, ("g",))
    assert Place().subscribe(ME, "g") == [
        CoreElected("g", ME),
        *sends(NEIGHBOURS, CoreAnnouncement(ME, 7, 1, 0, (), record)),
        MeshJoined("g"),
    ]


def test_one_announcement_names_all_groups_that_changed():
    place = leading("g")
    place.unsubscribe(ME, "g", now=97.0)
    place.subscribe(ME, "h", now=98.0)
    assert place.subscribe(ME, "i", now=98.5) == [CoreElected("i", ME), MeshJoined("i")]
    assert place.mesh.next_deadline() == 99.0
    record = ClaimsRecord(ME, 7, 3, 2, ("i",), ("g",))
    flags = (group_id("h"), group_id("i"))
    assert place.mesh.handle_timer(99.0) == [
        CoreLost("g", ME),
        *sends(NEIGHBOURS, CoreAnnouncement(ME, 7, 3, 0, (), record, flags)),
        MeshLeft("g"),
    ]


def test_flags_are_kept_only_where_there_is_a_route():
    place = Place()
    place.receive(2, announce(77, UNREACHABLE, members=(1,)))
    place.receive(2, announce(9, 1, members=(1,)))
    place.receive(2, announce(9, UNREACHABLE, sequence=2, members=(2,)))
    assert {key: set(flags) for key, flags in place.mesh.flags.items() if flags} == {(9, 2): {2}}
    place.mesh.expire_node(NodeId(9))
    assert (9, 2) not in place.mesh.flags


def test_announcement_flags_a_bounded_number_of_memberships():
    groups = [f"g{number}" for number in range(FLAGS_MAX + 1)]
    place = leading(*groups)
    assert place.mesh.neighbour_up(NodeId(2), 100.0)[-1] == SendToNeighbour(
        NodeId(2), CoreAnnouncement(ME, 7, 1, 0, (), None, tuple(map(group_id, groups[:FLAGS_MAX])))
    )


def test_core_withdraws_its_claim_for_a_smaller_one():
    place = leading("g")
    record = ClaimsRecord(ME, 7, 2, 1, (), ("g",))
    assert place.claim(3, "g") == [
        CoreElected("g", NodeId(3)),
        *sends(NEIGHBOURS, CoreAnnouncement(ME, 7, 2, 0, (), record)),
    ]


def test_core_ignores_its_own_announcement():
    place = leading("g")
    assert place.receive(2, CoreAnnouncement(ME, 7, 1, 3)) == []
    assert place.mesh.core_statuses()[ME] == CoreStatus(7, 1, 0, 0, ())


def test_claim_of_the_management_group_means_nothing():
    place = Place()
    assert place.claim(9, MANAGEMENT_GROUP) == []
    assert place.mesh.claims_changed(NodeId(9), (), (MANAGEMENT_GROUP,), 100.0) == []
    assert place.mesh.group_status(MANAGEMENT_GROUP).core == 1


# ---------------------------------------------------------------- the management group


def test_best_reachable_node_announces_itself_after_the_delay():
    place = Place()
    assert place.lose(2)[-1] == CoreElected(MANAGEMENT_GROUP, NodeId(4))
    assert place.lose(4, now=101.0) == [CoreElected(MANAGEMENT_GROUP, ME)]
    assert place.mesh.next_deadline() == 111.0
    assert place.mesh.handle_timer(110.0) == []
    flags = (group_id(MANAGEMENT_GROUP),)
    assert place.mesh.handle_timer(111.0) == sends(
        (6,), CoreAnnouncement(ME, 7, 1, 0, (), None, flags)
    )


def test_every_node_joins_the_management_mesh():
    place = Place()
    assert place.receive(4, announce(1, 1)) == [
        ParentsChanged(NodeId(1), 1, 1, 2, (NodeId(2), NodeId(4))),
        *sends((4,), MeshMembership(NodeId(1), 1, (MANAGEMENT_GROUP,))),
    ]


# ---------------------------------------------------------------- announcements of others


def test_announcement_is_forwarded_with_its_claims_to_all_but_its_sender():
    record = ClaimsRecord(NodeId(9), 1, 1, 0, ("g",))
    assert Place().receive(6, announce(9, 1, claims=record)) == [
        ParentsChanged(NodeId(9), 1, 1, 2, (NodeId(6),)),
        *sends((2, 4), announce(9, 2, parents=(6,), claims=record)),
    ]


def test_second_parent_is_reported_and_not_announced():
    place = following("g", core=9, parents=(6,))
    assert place.receive(4, announce(9, 1)) == [
        ParentsChanged(NodeId(9), 1, 1, 2, (NodeId(6), NodeId(4)))
    ]


def test_announcement_without_a_change_is_not_forwarded():
    place = following("g", core=9, parents=(6,))
    assert place.receive(2, announce(9, 4)) == []


def test_older_announcement_does_not_forward_its_claims():
    place = following("g", core=9, parents=(6,))
    record = ClaimsRecord(NodeId(9), 1, 1, 0, ("g",))
    assert place.receive(6, announce(9, 1, sequence=0, claims=record))[1:] == sends(
        NEIGHBOURS, announce(9, UNREACHABLE)
    )


def test_frames_of_other_strategies_are_ignored():
    assert Place().receive(2, Fetch(())) == []


# ---------------------------------------------------------------- links


def test_new_neighbour_gets_every_route():
    place = following("g", core=9, parents=(6,))
    place.subscribe(ME, "h")
    assert place.mesh.neighbour_up(NodeId(4), 100.0) == [
        SendToNeighbour(
            NodeId(4), announce(1, 2, parents=(2,), members=(group_id(MANAGEMENT_GROUP),))
        ),
        SendToNeighbour(NodeId(4), announce(9, 2, parents=(6,))),
        SendToNeighbour(NodeId(4), CoreAnnouncement(ME, 7, 1, 0, (), None, (group_id("h"),))),
    ]


def test_new_neighbour_does_not_get_lost_routes():
    place = following("g", parents=(4,))
    place.lose(4)
    sent = place.mesh.neighbour_up(NodeId(6), 100.0)
    assert [
        t.frame.core
        for t in sent
        if isinstance(t, SendToNeighbour)
        if isinstance(t.frame, CoreAnnouncement)
    ] == [1]


def test_remaining_parent_continues_without_an_announcement():
    place = following("g", parents=(2, 4))
    assert place.lose(4) == [ParentsChanged(NodeId(3), 1, 1, 2, (NodeId(2),))]
    assert place.mesh.next_deadline() is None


def test_loss_of_the_last_parent_is_announced_and_the_core_is_asked_at_once():
    place = following("g", parents=(4,))
    assert place.lose(4) == [
        ParentsChanged(NodeId(3), 1, 1, UNREACHABLE, ()),
        *sends((2, 6), announce(3, UNREACHABLE)),
    ]
    assert place.mesh.next_deadline() == 100.0
    assert place.mesh.handle_timer(100.0) == sends((2,), AnnouncementRequest(NodeId(3), 1, 1, 0))


def test_route_to_a_node_without_groups_is_not_requested():
    place = Place()
    place.receive(4, announce(9, 1))
    place.lose(4)
    assert place.mesh.next_deadline() is None


def test_lost_route_of_the_parent_causes_a_request():
    place = following("g")
    assert place.receive(2, announce(3, UNREACHABLE)) == [
        ParentsChanged(NodeId(3), 1, 1, UNREACHABLE, ()),
        *sends(NEIGHBOURS, announce(3, UNREACHABLE)),
    ]
    assert place.mesh.handle_timer(100.0) == sends((2,), AnnouncementRequest(NodeId(3), 1, 1, 0))


def test_longer_link_changes_the_parent():
    place = following("g", core=9, parents=(6, 4))
    place.costs = {6: 9, 4: 5}
    assert place.mesh.costs_changed(100.0) == [
        ParentsChanged(NodeId(9), 1, 1, 6, (NodeId(4), NodeId(6))),
        *sends(NEIGHBOURS, announce(9, 6, parents=(4, 6))),
    ]


# ---------------------------------------------------------------- nodes


def test_nearest_interested_node_takes_over_a_lost_core():
    place = following("g", core=9, parents=(6,))
    place.subscribe(ME, "g")
    record = ClaimsRecord(ME, 7, 1, 0, ("g",))
    assert place.lose(6)[3:] == [
        CoreElected("g", ME),
        *sends((2, 4), CoreAnnouncement(ME, 7, 1, 0, (), record, (group_id("g"),))),
    ]


def test_node_takes_over_when_no_other_does():
    place = following("g", core=9, parents=(6,))
    place.subscribe(2, "g")
    place.subscribe(ME, "g")
    place.graph.set_links(NodeId(9), {NodeId(2): 0, NodeId(6): 0})
    assert place.lose(6)[-1] == CoreLost("g", NodeId(9))
    assert place.mesh.next_deadline() == 120.0
    assert place.mesh.handle_timer(120.0)[0] == CoreElected("g", ME)


def test_claims_of_a_newly_reachable_node_count():
    place = following("g", core=9, parents=(6,))
    place.lose(6)
    place.links[NodeId(6)] = NeighbourLink(LinkId(61), True, None, 0.0)
    joined, _ = place.graph.set_links(ME, {node: 0 for node in place.links})
    assert place.mesh.nodes_changed(joined, (), 101.0) == [CoreElected("g", NodeId(9))]


def test_expired_node_leaves_no_state():
    place = following("g", core=9, parents=(6,))
    place.mesh.expire_node(NodeId(9))
    assert list(place.mesh.core_statuses()) == [1]
    place.receive(6, announce(9, 3))
    assert place.mesh.core_statuses()[NodeId(9)] == CoreStatus(1, 1, 4, 4, (NodeId(6),))


# ---------------------------------------------------------------- asking for announcements


def test_missing_announcement_is_requested():
    place = Place()
    place.claim(9, "g", now=100.0)
    assert place.mesh.next_deadline() == 108.0
    assert place.mesh.handle_timer(108.0) == sends((6,), AnnouncementRequest(NodeId(9), 0, 0, 0))


def test_silent_management_core_is_asked():
    place = Place()
    place.lose(2)
    assert place.mesh.next_deadline() == 108.0
    assert place.mesh.handle_timer(108.0) == sends((4,), AnnouncementRequest(NodeId(4), 0, 0, 0))


def test_infeasible_announcement_without_a_route_causes_a_request_at_once():
    place = following("g", parents=(4,))
    place.lose(4)
    place.mesh.handle_timer(100.0)
    assert place.mesh.next_deadline() == 101.0
    assert place.receive(6, announce(3, 4), now=100.5) == []
    assert place.mesh.next_deadline() == 100.5


def test_nothing_is_requested_once_the_announcement_arrived():
    place = Place()
    place.claim(9, "g", now=100.0)
    place.receive(6, announce(9, 1), now=101.0)
    assert place.mesh.next_deadline() is None


def test_request_is_forwarded_towards_its_core():
    assert Place().receive(2, AnnouncementRequest(NodeId(9), 1, 4, 0)) == sends(
        (6,), AnnouncementRequest(NodeId(9), 1, 4, 1)
    )


def test_only_one_of_many_requests_is_forwarded():
    place = Place()
    place.receive(2, AnnouncementRequest(NodeId(9), 1, 4, 0))
    assert place.receive(4, AnnouncementRequest(NodeId(9), 1, 4, 0)) == []


@pytest.mark.parametrize(
    ("sender", "frame"),
    [
        (6, AnnouncementRequest(NodeId(9), 1, 4, 0)),
        (2, AnnouncementRequest(NodeId(77), 1, 4, 0)),
        (2, AnnouncementRequest(NodeId(9), 1, 4, HOPS_MAX)),
    ],
    ids=["back where it came from", "to a node out of reach", "beyond the hop limit"],
)
def test_request_is_not_forwarded(sender, frame):
    assert Place().receive(sender, frame) == [Ignored("announcement request without a route")]


def test_requested_core_announces_itself_again():
    place = leading("g")
    assert place.receive(2, AnnouncementRequest(ME, 7, 1, 3)) == sends(
        NEIGHBOURS, CoreAnnouncement(ME, 7, 2, 0, (), None, (group_id("g"),))
    )


def test_core_does_not_announce_again_while_a_newer_announcement_is_in_flight():
    place = leading("g")
    place.receive(2, AnnouncementRequest(ME, 7, 1, 3), now=100.0)
    assert place.receive(4, AnnouncementRequest(ME, 7, 1, 3), now=107.0) == []
    assert place.receive(4, AnnouncementRequest(ME, 7, 1, 3), now=108.0) != []


def test_core_announces_again_if_the_newest_announcement_did_not_help():
    place = leading("g")
    place.receive(2, AnnouncementRequest(ME, 7, 1, 3), now=100.0)
    assert place.receive(4, AnnouncementRequest(ME, 7, 2, 3), now=102.0) == sends(
        NEIGHBOURS, CoreAnnouncement(ME, 7, 3, 0, (), None, (group_id("g"),))
    )


def test_node_without_groups_does_not_answer_requests():
    assert Place().receive(2, AnnouncementRequest(ME, 7, 1, 3)) == []


def test_future_management_core_answers_requests_early():
    place = Place()
    place.lose(2)
    place.lose(4)
    assert place.receive(6, AnnouncementRequest(ME, 7, 1, 3)) == sends(
        (6,), CoreAnnouncement(ME, 7, 1, 0, (), None, (group_id(MANAGEMENT_GROUP),))
    )


# ---------------------------------------------------------------- members


def test_interested_node_notifies_its_parents():
    place = following("g", parents=(2, 4))
    assert place.subscribe(ME, "g") == [
        MeshJoined("g"),
        *sends((2, 4), MeshMembership(NodeId(3), 1, ("g",))),
    ]


def test_memberships_of_one_core_share_a_frame():
    place = following("g", "h")
    assert place.subscribe(ME, "g", "h")[2:] == sends(
        (2,), MeshMembership(NodeId(3), 1, ("g", "h"))
    )


def test_frame_names_a_bounded_number_of_groups():
    groups = [f"g{number}" for number in range(GROUPS_PER_FRAME_MAX + 1)]
    frames = [
        t.frame for t in following(*groups).subscribe(ME, *groups) if isinstance(t, SendToNeighbour)
    ]
    assert frames == [
        MeshMembership(NodeId(3), 1, tuple(groups[:GROUPS_PER_FRAME_MAX])),
        MeshMembership(NodeId(3), 1, tuple(groups[GROUPS_PER_FRAME_MAX:])),
    ]


def test_child_makes_its_parent_a_member_that_notifies_its_own_parents():
    place = following("g")
    assert place.receive(6, MeshMembership(NodeId(3), 1, ("g",))) == [
        MeshJoined("g"),
        *sends((2,), MeshMembership(NodeId(3), 1, ("g",))),
    ]


def test_second_child_is_no_change():
    place = following("g")
    place.receive(6, MeshMembership(NodeId(3), 1, ("g",)))
    assert place.receive(4, MeshMembership(NodeId(3), 1, ("g",))) == []


def test_leaving_member_notifies_its_parents_after_the_linger():
    place = following("g")
    place.receive(6, MeshMembership(NodeId(3), 1, ("g",)))
    assert place.receive(6, MeshMembership(NodeId(3), 1, (), ("g",))) == [MeshLeft("g")]
    assert place.mesh.next_deadline() == 102.0
    assert place.mesh.handle_timer(102.0) == sends((2,), MeshMembership(NodeId(3), 1, (), ("g",)))


def test_lost_child_ends_the_membership():
    place = following("g")
    place.receive(4, MeshMembership(NodeId(3), 1, ("g",)))
    assert place.lose(4) == [MeshLeft("g")]


def test_member_moves_to_the_parents_of_a_new_core():
    place = following("g", core=9, parents=(6,))
    place.subscribe(ME, "g")
    place.receive(2, announce(3, 1))
    assert place.claim(3, "g") == [
        CoreElected("g", NodeId(3)),
        *sends((2,), MeshMembership(NodeId(3), 1, ("g",))),
    ]
    assert place.mesh.handle_timer(102.0) == sends((6,), MeshMembership(NodeId(3), 1, (), ("g",)))


def test_leaving_a_group_without_a_core_names_this_node_as_core():
    place = following("g")
    place.subscribe(ME, "g")
    place.unsubscribe(3, "g")
    place.unsubscribe(ME, "g")
    place.mesh.claims_changed(NodeId(3), (), ("g",), 100.0)
    assert place.mesh.handle_timer(102.0) == sends((2,), MeshMembership(ME, 0, (), ("g",)))


# ---------------------------------------------------------------- entries


def test_member_sends_to_parents_and_children():
    place = following("g")
    place.receive(6, MeshMembership(NodeId(3), 1, ("g",)))
    assert place.entries() == [("g", True, (20, 60), ())]


def test_entries_are_drained_once():
    place = following("g")
    place.subscribe(ME, "g")
    place.entries()
    assert place.entries() == []


def test_outside_the_mesh_publications_go_to_the_parents():
    place = following("g", parents=(4, 2))
    place.subscribe(9, "g")
    assert place.entries() == [("g", False, (), (40, 20))]


def test_interested_parent_comes_first():
    place = following("g", parents=(4, 2))
    place.subscribe(2, "g")
    assert place.entries() == [("g", False, (), (20, 40))]


def test_parent_flagged_as_member_comes_first():
    place = Place()
    place.subscribe(3, "g")
    place.claim(3, "g")
    place.receive(4, announce(3, 1))
    place.receive(2, announce(3, 1, members=(group_id("g"),)))
    assert place.entries()[-1] == ("g", False, (), (20, 40))


def test_member_flag_of_a_parent_survives_changes_of_others():
    place = following("g", core=9, parents=(6,))
    place.receive(4, announce(9, 1, members=(group_id("g"),)))
    place.lose(2)
    place.mesh.expire_node(NodeId(77))
    place.subscribe(77, "g")
    assert place.entries()[-1] == ("g", False, (), (40, 60))


def test_group_without_a_core_has_no_links():
    place = Place()
    place.subscribe(9, "g")
    assert place.entries() == [("g", False, (), ())]


def test_group_without_reachable_interest_is_forgotten():
    place = following("g", core=9, parents=(6,))
    place.lose(6)
    assert place.entries() == [("g",)]


def test_lost_former_parent_is_not_a_mesh_neighbour():
    place = following("g", core=9, parents=(6, 4))
    place.subscribe(ME, "g")
    place.receive(4, announce(9, UNREACHABLE))
    assert place.entries() == [("g", True, (60, 40), ())]
    place.lose(4)
    assert place.entries() == [("g", True, (60,), ())]


def test_mesh_neighbour_without_a_link_is_left_out():
    place = following("g", core=9, parents=(6, 4))
    del place.links[NodeId(4)]
    place.subscribe(ME, "g")
    assert place.entries() == [("g", True, (60,), ())]


# ---------------------------------------------------------------- views


def test_group_status_shows_core_interest_and_mesh():
    place = following("g", parents=(4, 2))
    place.subscribe(ME, "g")
    place.subscribe(77, "g")
    place.receive(6, MeshMembership(NodeId(3), 1, ("g",)))
    assert place.mesh.group_status("g") == GroupStatus(
        core=NodeId(3),
        interested_nodes=(NodeId(3), ME),
        is_member=True,
        parents=(NodeId(2), NodeId(4)),
        children=(NodeId(6),),
    )


def test_all_reachable_nodes_are_interested_in_the_management_group():
    assert Place().mesh.group_status(MANAGEMENT_GROUP) == GroupStatus(
        core=NodeId(1),
        interested_nodes=tuple(map(NodeId, (1, 2, 3, 4, 5, 6, 9))),
        is_member=True,
        parents=(NodeId(2),),
        children=(),
    )


def test_unknown_group_has_no_core_and_no_members():
    assert Place().mesh.group_status("g") == GroupStatus(None, (), False, (), ())


def test_groups_with_interest_or_a_core_are_listed():
    place = Place()
    place.subscribe(9, "g")
    place.claim(9, "h")
    assert place.mesh.groups() == [MANAGEMENT_GROUP, "g", "h"]
