"""Shared subscriptions across brokers: each publication reaches one consumer of the group."""

from collections import Counter
from itertools import cycle

import pytest
from tests.agent.as_one.conftest import SideBySide
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import eventually

WITH_CONSUMERS = (0, 1, 3)
WITHOUT = 2
EACH = 60


def consumers(live: SideBySide, share: str, *numbers: int) -> list[GuaranteedClient]:
    made = [live.client_of(GuaranteedClient, number).subscribe_qos2(share) for number in numbers]
    for number in dict.fromkeys(numbers):
        live.wait_installed(number, share)
    return made


def drain(clients: list[GuaranteedClient], count: int) -> Counter[bytes]:
    """Read until `count` messages have arrived, and a little longer; count each payload."""

    def came() -> int:
        for each in clients:
            each.read_for(0.01)
        return sum(len(each.received) for each in clients)

    eventually(lambda: came() >= count, f"{count} publications")
    for each in clients:
        each.read_for(0.2)
    return Counter(packet.payload for each in clients for packet in each.received)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_publication_goes_to_one_of_six_consumers_at_three_brokers(line, qos):
    topic = f"work/{qos}"
    group = consumers(line, f"$share/team/{topic}", *(2 * WITH_CONSUMERS))
    payloads = [b"%d-%d" % (n, each) for n in range(4) for each in range(EACH)]
    for number in range(4):
        mine = [each for each in payloads if each.startswith(b"%d-" % number)]
        line.client_of(GuaranteedClient, number).publish_guaranteed(qos, topic, *mine)
    assert drain(group, len(payloads)) == Counter(payloads)
    # Each broker has the messages of its own publisher and a third of those of the fourth.
    # Brokers and nodes alternate, so no consumer is more than two messages ahead.
    fair = len(payloads) / len(group)
    assert [abs(len(each.received) - fair) <= 2 for each in group] == [True] * len(group)


def test_shares_are_served_while_consumers_change(line):
    """A consumer unsubscribes, reads its remaining messages and disconnects."""
    share, topic = "$share/crew/churn", "churn"
    group = consumers(line, share, *(2 * WITH_CONSUMERS))
    publishers = [line.client_of(GuaranteedClient, number) for number in range(4)]
    leaving = cycle(range(len(group)))
    gone: list[GuaranteedClient] = []
    payloads: list[bytes] = []
    for step in range(12):
        for number, publisher in enumerate(publishers):
            some = [b"%d-%d-%d" % (step, number, each) for each in range(10)]
            payloads += some
            publisher.publish_guaranteed(1, topic, *some)
        place = next(leaving)
        group[place].unsubscribe(share)
        gone.append(group[place])
        group[place] = line.client_of(GuaranteedClient, WITH_CONSUMERS[place % 3])
        group[place].subscribe_qos2(share)
    assert drain([*group, *gone], len(payloads)) == Counter(payloads)
    # Each broker has the messages of its own publisher and a third of the fourth's.
    shares = Counter({line.nodes[number].broker.port: 0 for number in WITH_CONSUMERS})
    for each in (*group, *gone):
        shares[each.port] += len(each.received)
    fair = len(payloads) / len(WITH_CONSUMERS)
    assert [abs(count - fair) <= 2 for count in shares.values()] == [True] * len(WITH_CONSUMERS)


def test_several_groups_and_a_plain_subscriber_each_get_all(line):
    groups = {
        name: consumers(line, f"$share/{name}/many", *where)
        for name, where in {"one": (1, 3), "two": (1, 3), "three": (0, 0)}.items()
    }
    plain = consumers(line, "many", 3)
    payloads = [b"%d" % each for each in range(EACH)]
    overlaps = line.counter(WITHOUT, "share_overlap")
    line.client_of(GuaranteedClient, WITHOUT).publish_guaranteed(1, "many", *payloads)
    for group in (*groups.values(), plain):
        assert drain(group, EACH) == Counter(payloads)
    assert line.counter(WITHOUT, "share_overlap") == overlaps


def test_unavoidable_share_overlap_is_counted(line):
    group = consumers(line, "$share/lap/twice", 1, 3)
    plain = consumers(line, "twice", 1, 3)
    overlaps = line.counter(WITHOUT, "share_overlap")
    line.client_of(GuaranteedClient, WITHOUT).publish_guaranteed(1, "twice", b"x")
    assert drain(group, 2) == Counter([b"x", b"x"])
    assert drain(plain, 2) == Counter([b"x", b"x"])
    assert line.counter(WITHOUT, "share_overlap") == overlaps + 1


def test_disconnected_consumer_keeps_its_share(line):
    """Its session and the interest of its node persist, so its share waits for it."""
    lasting = {"name": "away-consumer", "clean": False, "session_expiry": 600}
    away = line.client_of(GuaranteedClient, 3, **lasting).subscribe_qos2("$share/away/late")
    line.wait_installed(3, "$share/away/late")
    away.close()
    line.client_of(GuaranteedClient, 0).publish_guaranteed(1, "late", b"1", b"2")
    back = line.client_of(GuaranteedClient, 3, **lasting)
    assert back.read_until(2) == [b"1", b"2"]
    back.unsubscribe("$share/away/late")
