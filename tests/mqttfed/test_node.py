"""One node of mqtt-fed, and whole federations without brokers."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.mqttfed.effects import (
    MessageIgnored,
    PublishAtNeighbour,
    PublishToClients,
    TopicCoreChanged,
)
from hansa.mqttfed.events import BrokerMessageReceived, FedTimerFired, TopicInterestChanged
from hansa.mqttfed.messages import (
    BEACON_PREFIX,
    CORE_ANNOUNCEMENT_PREFIX,
    FEDERATED_PREFIX,
    PREFIXES,
    CoreAnnouncementMessage,
    MembershipMessage,
    RoutedMessage,
    encode_message,
)
from hansa.mqttfed.node import FedNode, TopicStatus
from hansa.mqttfed.settings import FedSettings


def node(**changes: int) -> FedNode:
    return FedNode(FedSettings(node=5, neighbours=(1, 2), **changes), wall_clock_s=1_000, now=0.0)


def received(
    message: CoreAnnouncementMessage | MembershipMessage | RoutedMessage,
) -> BrokerMessageReceived:
    return BrokerMessageReceived(*encode_message("t", message))


ANNOUNCED = received(CoreAnnouncementMessage(4, 7, 0, 1))


def test_as_core():
    core = node()
    core.handle(BrokerMessageReceived(BEACON_PREFIX + "t", b""), 0.0)
    core.handle(received(MembershipMessage(5, 1_000, 2)), 0.1)
    assert core.status(0.1) == {"t": TopicStatus(5, (), (2,), has_interest=True)}
    assert core.status(30.2) == {
        "t": TopicStatus(5, (), (), has_interest=True)
    }  # it was heard no more
    first, second = RoutedMessage(5, 1_000_000, 5, b"x"), RoutedMessage(5, 1_000_001, 5, b"y")
    assert core.handle(BrokerMessageReceived(FEDERATED_PREFIX + "t", b"x"), 0.2) == [
        PublishAtNeighbour(2, "t", first)
    ]
    assert core.handle(BrokerMessageReceived(FEDERATED_PREFIX + "t", b"y"), 0.2) == [
        PublishAtNeighbour(2, "t", second)
    ]
    assert core.handle(received(RoutedMessage(2, 9, 2, b"z")), 0.3) == [PublishToClients("t", b"z")]


def test_as_member():
    member = node()
    member.handle(ANNOUNCED, 0.0)
    assert member.handle(BrokerMessageReceived(BEACON_PREFIX + "t", b""), 0.1) == [
        PublishAtNeighbour(1, "t", MembershipMessage(4, 7, 5))
    ]
    assert member.handle(received(RoutedMessage(4, 0, 1, b"z")), 0.2) == [
        PublishToClients("t", b"z")
    ]
    assert member.handle(received(RoutedMessage(4, 0, 2, b"z")), 0.3) == [
        MessageIgnored("duplicate")
    ]


def test_as_publisher_outside_the_mesh():
    outside = node()
    outside.handle(ANNOUNCED, 0.0)
    sent = RoutedMessage(5, 1_000_000, 5, b"x")
    assert outside.handle(BrokerMessageReceived(FEDERATED_PREFIX + "t", b"x"), 0.1) == [
        PublishAtNeighbour(1, "t", sent)
    ]
    assert outside.handle(received(sent), 0.2) == [MessageIgnored("sender is not a neighbour", "5")]
    back = RoutedMessage(5, 1_000_000, 1, b"x")
    assert outside.handle(received(back), 0.2) == [MessageIgnored("duplicate")]


def test_as_interconnecting_node():
    between = node()
    between.handle(ANNOUNCED, 0.0)
    assert between.handle(received(MembershipMessage(4, 7, 2)), 0.1) == [
        PublishAtNeighbour(1, "t", MembershipMessage(4, 7, 5))
    ]
    onward = PublishAtNeighbour(2, "t", RoutedMessage(4, 0, 5, b"x"))
    assert between.handle(received(RoutedMessage(4, 0, 1, b"x")), 0.2) == [onward]
    onward = PublishAtNeighbour(1, "t", RoutedMessage(9, 0, 5, b"x"))
    assert between.handle(received(RoutedMessage(9, 0, 2, b"x")), 0.2) == [onward]


def test_observed_interest_counts_like_a_beacon():
    quiet = node()
    effects = quiet.handle(TopicInterestChanged(added=("t",)), 0.0)
    assert effects[0] == TopicCoreChanged("t", 5)
    assert quiet.handle(TopicInterestChanged(removed=("t",)), 1.0) == [TopicCoreChanged("t", None)]
    assert quiet.status(1.0) == {}


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (BrokerMessageReceived(FEDERATED_PREFIX + "t", b"x"), MessageIgnored("no core known")),
        (received(RoutedMessage(9, 0, 2, b"x")), MessageIgnored("no core known")),
        (received(MembershipMessage(4, 7, 2)), MessageIgnored("no mesh (or topics_max reached)")),
        (received(MembershipMessage(4, 7, 9)), MessageIgnored("sender is not a neighbour", "9")),
        (
            BrokerMessageReceived(CORE_ANNOUNCEMENT_PREFIX + "t", b""),
            MessageIgnored("invalid", "0 bytes are too few for federator/core_ann/"),
        ),
        (TopicInterestChanged(removed=("t",)), MessageIgnored("no mesh (or topics_max reached)")),
    ],
)
def test_ignored_messages_have_a_reason(event, reason):
    assert node().handle(event, 0.0) == [reason]


def test_topics_and_seen_publications_are_bounded():
    small = node(topics_max=1, seen_max=1)
    small.handle(BrokerMessageReceived(BEACON_PREFIX + "t", b""), 0.0)
    full = [MessageIgnored("no mesh (or topics_max reached)")]
    assert small.handle(BrokerMessageReceived(BEACON_PREFIX + "u", b""), 0.0) == full
    assert small.handle(TopicInterestChanged(added=("u",)), 0.0) == full
    for number in (0, 1, 0):  # the first one has been forgotten when it comes again
        assert small.handle(received(RoutedMessage(1, number, 1, b"")), 0.1) == [
            PublishToClients("t", b"")
        ]


def test_expired_state_is_not_used():
    late = node()
    late.handle(ANNOUNCED, 0.0)
    effects = late.handle(BrokerMessageReceived(FEDERATED_PREFIX + "t", b"x"), 30.0)
    assert effects == [TopicCoreChanged("t", None), MessageIgnored("no core known")]
    assert (late.status(30.0), late.next_deadline()) == ({}, None)


@given(st.lists(st.tuples(st.sampled_from(PREFIXES), st.binary(max_size=40)), max_size=30))
def test_no_message_makes_it_raise(message):
    anybody = node()
    for number, (prefix, payload) in enumerate(message):
        anybody.handle(BrokerMessageReceived(prefix + "t", payload), float(number))
        anybody.handle(FedTimerFired(), number + 0.5)
        anybody.next_deadline()


# ---------------------------------------------------------------- federations


class Federation:
    """Nodes whose messages arrive in random order, but in order between two neighbours."""

    def __init__(self, links: set[tuple[int, int]], redundancy: int, rng: random.Random) -> None:
        adjacent: dict[int, list[int]] = {}
        for a, b in links:
            adjacent.setdefault(a, []).append(b)
            adjacent.setdefault(b, []).append(a)
        self.rng = rng
        self.now = 0.0
        self.nodes = {
            name: FedNode(FedSettings(name, tuple(sorted(others)), redundancy), 1_000, 0.0)
            for name, others in adjacent.items()
        }
        self.queues: dict[tuple[int, int], list[BrokerMessageReceived]] = {}
        self.delivered: Counter[tuple[int, bytes]] = Counter()

    def do(self, name: int, event: BrokerMessageReceived | FedTimerFired) -> None:
        if name not in self.nodes:
            return  # it is dead
        for effect in self.nodes[name].handle(event, self.now):
            if isinstance(effect, PublishAtNeighbour):
                direction = (name, effect.neighbour)
                message = BrokerMessageReceived(*encode_message(effect.topic, effect.message))
                self.queues.setdefault(direction, []).append(message)
            elif isinstance(effect, PublishToClients):
                self.delivered[name, effect.payload] += 1

    def settle(self) -> None:
        while waiting := sorted(direction for direction, queue in self.queues.items() if queue):
            direction = self.rng.choice(waiting)
            self.do(direction[1], self.queues[direction].pop(0))

    def pass_time(self, seconds: float, wanting: list[int]) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 1.0
            for name in self.nodes:
                self.do(name, FedTimerFired())
                if name in wanting and self.now % 5 == 0:
                    self.do(name, BrokerMessageReceived(BEACON_PREFIX + "t", b""))
            self.settle()


def connected(count: int, extra: int, rng: random.Random) -> set[tuple[int, int]]:
    links = {(rng.randrange(number), number) for number in range(1, count)}
    links |= {(a, b) for a, b in (sorted(rng.sample(range(count), 2)) for _ in range(extra))}
    return links


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 8), st.integers(1, 3))
def test_every_subscriber_gets_every_publication_once(seed, count, redundancy):
    rng = random.Random(seed)
    world = Federation(connected(count, count // 2, rng), redundancy, rng)
    wanting = rng.sample(range(count), rng.randint(1, count))
    world.pass_time(25.0, wanting)
    cores = {view["t"].core for view in (node.status(world.now) for node in world.nodes.values())}
    assert cores == {min(wanting)}
    for name in world.nodes:
        world.do(name, BrokerMessageReceived(FEDERATED_PREFIX + "t", b"%d" % name))
        world.settle()
    expected = {(s, b"%d" % name) for s in wanting for name in world.nodes if name != s}
    assert world.delivered == dict.fromkeys(expected, 1)


def test_lost_core_is_replaced():
    world = Federation({(0, 1), (1, 2), (2, 3), (0, 3)}, 2, random.Random(1))
    world.pass_time(25.0, [0, 1, 3])
    del world.nodes[0]
    world.pass_time(60.0, [1, 3])
    assert {node.status(world.now)["t"].core for node in world.nodes.values()} == {1}
    world.do(2, BrokerMessageReceived(FEDERATED_PREFIX + "t", b"x"))
    world.settle()
    assert world.delivered == {(1, b"x"): 1, (3, b"x"): 1}
