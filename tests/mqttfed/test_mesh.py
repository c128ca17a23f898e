"""The mesh of one topic, rule by rule."""

import pytest

from hansa.mqttfed.effects import MessageIgnored, PublishAtNeighbour, TopicCoreChanged
from hansa.mqttfed.mesh import DISTANCE_MAX, CoreState, FollowerState, TopicMesh
from hansa.mqttfed.messages import CoreAnnouncementMessage, MembershipMessage
from hansa.mqttfed.settings import FedSettings

SETTINGS = FedSettings(
    node=5, neighbours=(1, 2, 3), redundancy=2, announce_interval=10.0, beacon_interval=5.0
)


def mesh(**changes: object) -> TopicMesh:
    return TopicMesh("t", SETTINGS, clock_offset=1_000.0, **changes)  # type: ignore[arg-type]


def to_all(message: CoreAnnouncementMessage) -> list[PublishAtNeighbour]:
    return [PublishAtNeighbour(each, "t", message) for each in (1, 2, 3)]


def announced(core: int = 4, number: int = 7, distance: int = 2, sender: int = 1) -> object:
    return CoreAnnouncementMessage(core, number, distance, sender)


def follower(**changes: object) -> TopicMesh:
    """A node that has received an announcement of a core from neighbour 1."""
    made = mesh(**changes)
    made.receive_announcement(CoreAnnouncementMessage(4, 7, 2, 1), now=0.0)
    return made


# ---------------------------------------------------------------- being core


def test_first_beacon_makes_the_node_core():
    node = mesh()
    assert node.receive_beacon(3.0) == [
        TopicCoreChanged("t", 5),
        *to_all(CoreAnnouncementMessage(5, 1_003, 0, 5)),
    ]
    assert node.next_deadline() == 13.0


def test_core_announces_every_interval_with_a_higher_sequence():
    node = mesh(is_subscribed=True)
    node.handle_timer(0.0)
    assert node.handle_timer(9.9) == []
    assert node.handle_timer(10.0) == to_all(CoreAnnouncementMessage(5, 1_010, 0, 5))
    assert node.handle_timer(20.5) == to_all(CoreAnnouncementMessage(5, 1_020, 0, 5))


def test_sequence_grows_if_announcements_are_faster_than_seconds():
    node = mesh(is_subscribed=True)
    node.handle_timer(0.0)
    node.state = CoreState(announce_at=0.1)
    assert node.handle_timer(0.1) == to_all(CoreAnnouncementMessage(5, 1_001, 0, 5))


def test_core_ends_three_intervals_after_the_last_beacon():
    node = mesh()
    node.receive_beacon(0.0)
    node.handle_timer(10.0)
    assert node.next_deadline() == 15.0
    assert node.handle_timer(14.9) == []
    assert node.handle_timer(15.0) == [TopicCoreChanged("t", None)]
    assert (node.is_idle, node.next_deadline()) == (True, None)


def test_core_with_smaller_id_wins():
    node = mesh(is_subscribed=True)
    node.handle_timer(0.0)
    node.child_expiry = {3: 99.0}
    effects = node.receive_announcement(CoreAnnouncementMessage(4, 0, 0, 1), now=1.0)
    assert effects == [
        TopicCoreChanged("t", 4),
        PublishAtNeighbour(1, "t", MembershipMessage(4, 0, 5)),
        *[PublishAtNeighbour(each, "t", CoreAnnouncementMessage(4, 0, 2, 5)) for each in (2, 3)],
    ]
    assert node.child_expiry == {}


def test_core_with_larger_id_is_ignored():
    node = mesh(is_subscribed=True)
    node.handle_timer(0.0)
    assert node.receive_announcement(CoreAnnouncementMessage(9, 0, 0, 1), now=1.0) == []
    assert node.core == 5


# ---------------------------------------------------------------- following


def test_forwarded_announcement_counts_distance_at_both_ends():
    node = mesh()
    effects = node.receive_announcement(CoreAnnouncementMessage(4, 7, 2, 1), now=0.0)
    onward = CoreAnnouncementMessage(4, 7, 4, 5)
    assert effects == [
        TopicCoreChanged("t", 4),
        PublishAtNeighbour(2, "t", onward),
        PublishAtNeighbour(3, "t", onward),
    ]
    assert node.state == FollowerState(4, 7, distance=3, expires_at=30.0, parents=(1,))


@pytest.mark.parametrize(
    ("message", "parents"),
    [
        (announced(number=6, sender=2), (1,)),
        (announced(distance=3, sender=2), (1,)),
        (announced(distance=2, sender=2), (1, 2)),
        (announced(distance=1, sender=2), (2,)),
        (announced(number=8, distance=9, sender=2), (2,)),
        (announced(core=5, sender=2), (1,)),
        (announced(sender=5), (1,)),
    ],
    ids=["older", "longer", "as long", "shorter", "newer", "of our own", "from ourselves"],
)
def test_newer_or_shorter_announcement_is_accepted(message, parents):
    node = follower()
    node.receive_announcement(message, now=1.0)
    assert node.parents == parents


def test_parents_with_smallest_ids_are_kept():
    node = mesh()
    for sender in (3, 2, 1):
        node.receive_announcement(CoreAnnouncementMessage(4, 7, 2, sender), now=0.0)
    assert node.parents == (1, 2)


def test_member_notifies_each_parent_once_per_sequence():
    node = follower(is_subscribed=True)
    assert node.receive_announcement(CoreAnnouncementMessage(4, 7, 2, 2), now=0.0) == [
        PublishAtNeighbour(2, "t", MembershipMessage(4, 7, 5))
    ]
    assert node.receive_beacon(1.0) == []
    assert PublishAtNeighbour(1, "t", MembershipMessage(4, 8, 5)) in node.receive_announcement(
        CoreAnnouncementMessage(4, 8, 2, 1), now=2.0
    )


def test_later_interest_is_sent_to_all_parents():
    node = follower()
    node.receive_announcement(CoreAnnouncementMessage(4, 7, 2, 2), now=0.0)
    assert node.set_subscribed(True, 1.0) == [
        PublishAtNeighbour(each, "t", MembershipMessage(4, 7, 5)) for each in (1, 2)
    ]
    assert node.set_subscribed(False, 2.0) == []


def test_silent_core_is_replaced_by_an_interested_node():
    node = follower(is_subscribed=True)
    assert node.next_deadline() == 30.0
    assert node.handle_timer(29.9) == []
    assert node.handle_timer(30.0) == [
        TopicCoreChanged("t", 5),
        *to_all(CoreAnnouncementMessage(5, 1_030, 0, 5)),
    ]


def test_silent_core_expires_at_other_nodes():
    node = follower()
    assert node.handle_timer(30.0) == [TopicCoreChanged("t", None)]
    assert node.is_idle


def test_excessive_distance_is_ignored():
    node = mesh()
    message = CoreAnnouncementMessage(4, 7, DISTANCE_MAX + 1, 1)
    assert node.receive_announcement(message, now=0.0) == [
        MessageIgnored("invalid", f"a distance of {DISTANCE_MAX + 1}")
    ]


# ---------------------------------------------------------------- members


def test_child_makes_a_node_interconnect():
    node = follower()
    assert node.receive_membership(MembershipMessage(4, 7, 3), now=1.0) == [
        PublishAtNeighbour(1, "t", MembershipMessage(4, 7, 5))
    ]
    assert node.next_hops(None, now=2.0) == [1, 3]
    assert node.next_hops(3, now=2.0) == [1]
    assert node.next_hops(None, now=31.0) == [1]


def test_second_parent_of_interconnecting_node_is_notified():
    node = follower()
    node.receive_membership(MembershipMessage(4, 7, 3), now=1.0)
    assert node.receive_announcement(CoreAnnouncementMessage(4, 7, 2, 2), now=1.0) == [
        PublishAtNeighbour(2, "t", MembershipMessage(4, 7, 5))
    ]


@pytest.mark.parametrize(
    "message",
    [MembershipMessage(9, 7, 3), MembershipMessage(4, 6, 3), MembershipMessage(4, 7, 5)],
    ids=str,
)
def test_membership_of_another_mesh_is_ignored(message):
    node = follower()
    assert node.receive_membership(message, now=1.0) == []
    assert node.child_expiry == {}


def test_children_expire_after_three_announcements():
    node = mesh(is_subscribed=True)
    node.handle_timer(0.0)
    assert node.receive_membership(MembershipMessage(5, 1, 3), now=0.0) == []
    assert node.child_expiry == {3: 30.0}
    node.handle_timer(30.0)
    assert node.child_expiry == {}
