"""Random writes, deletions and partitions of retained messages on five brokers converge."""

import random
from collections.abc import Iterator

import pytest
from tests.agent.as_one.test_retained import kept, stored
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import Live, eventually

from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LinkProfile, LocalFederation

BROKERS = 5
TOPICS = [f"churn/{n}" for n in range(12)]
SETTLED_S = 60.0


@pytest.fixture
def ring_of_five(mosquitto: str) -> Iterator[Live]:
    live = Live(
        LocalFederation(
            parse_topology(f"ring:{BROKERS}", 1), {}, link_profile=LinkProfile(can_cut=True)
        )
    )
    with live:
        yield live


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_retained_churn_with_partitions_converges(ring_of_five, seed):
    live, chance = ring_of_five, random.Random(seed)
    subscribers = [
        live.client_of(GuaranteedClient, number).subscribe_qos2("churn/#")
        for number in range(BROKERS)
    ]
    for number in range(BROKERS):
        live.wait_installed(number, "churn/#")
    writers = [live.client_of(GuaranteedClient, number) for number in range(BROKERS)]
    links = list(live.federation.topology.links)
    for _ in range(3):
        cut = chance.sample(links, 2)
        for link in cut:
            live.federation.cut_link(*link)
        for step in range(60):
            payload = b"" if chance.random() < 0.25 else b"%d" % step
            writer = chance.choice(writers)
            writer.publish_as(kept(chance.choice(TOPICS), payload, chance.randrange(3)))
            for each in subscribers:
                each.read_for(0)
        for link in cut:
            live.federation.restore_link(*link)
        live.wait_converged()
    # Every broker must hold the last value of each single-writer topic and no deleted value.
    last = {topic: b"last" if number % 2 else b"" for number, topic in enumerate(TOPICS[:6])}
    eventually(lambda: _agree(live), "agreement after the last partition", SETTLED_S)
    for topic, payload in last.items():
        writers[0].publish_as(kept(topic, payload))

    def settled() -> bool:
        found = _held(live)[0]
        return _agree(live) and all(found.get(t, b"") == value for t, value in last.items())

    eventually(settled, "the last words held everywhere", SETTLED_S)
    held = _held(live)[0]
    for number in range(BROKERS):
        late = live.client_of(GuaranteedClient, number).subscribe_qos2("churn/#")
        late.read_until(len(held))
        assert sorted((e.topic, e.payload) for e in late.received) == sorted(held.items())


def _held(live: Live) -> list[dict[str, bytes]]:
    return [stored(live, number, "churn/#") for number in range(BROKERS)]


def _agree(live: Live) -> bool:
    first, *others = _held(live)
    return all(other == first for other in others)
