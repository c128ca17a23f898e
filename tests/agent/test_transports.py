"""Live federations linked by datagrams, lossy or slow links, or through brokers."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.agent.live import Live, eventually

from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LinkProfile, LocalFederation

CABLES = {
    "udp": LinkProfile("udp"),
    "udp, a tenth lost": LinkProfile("udp", 0.002, 0.1),
    "tcp, 30 ms": LinkProfile("tcp", 0.03),
    "mqtt": LinkProfile("mqtt"),
}


@pytest.fixture(scope="module", params=[*CABLES.values()], ids=[*CABLES])
def ring(request: pytest.FixtureRequest, mosquitto: str) -> Iterator[tuple[Live, LinkProfile]]:
    with Live(LocalFederation(parse_topology("ring:3", 1), {}, None, request.param)) as live:
        yield live, request.param


def neighbours(live: Live, number: int) -> list[Any]:
    found: Any = live.nodes[number].status()["neighbours"]
    return [*found.values()]


def test_publications_arrive_once_or_are_lost(ring):
    live, cable = ring
    subscribers = [live.subscriber(number, "t/#") for number in range(3)]
    publisher = live.client(0)
    publisher.publish("t/a", *[b"%d" % number for number in range(200)])
    for subscriber in subscribers:
        arrived = publish_until_heard(publisher, subscriber)
        assert len(arrived) == len(set(arrived))
        numbers = [int(payload) for payload in arrived if not payload.startswith(b"end")]
        # With a tenth lost, control frames are lost too: the number that arrives depends on the
        # time at which paths are installed.
        assert len(numbers) == 200 or cable.loss


def publish_until_heard(publisher: Any, subscriber: Any) -> list[bytes]:
    """Publish until a last payload arrives; return all payloads."""
    arrived: list[bytes] = []
    for attempt in range(100):
        publisher.publish("t/a", b"end %d %d" % (subscriber.port, attempt))
        while not subscriber.silent():
            arrived += [each.payload for each in subscriber.received]
            subscriber.received.clear()
        if arrived and arrived[-1].startswith(b"end"):
            return arrived
    raise AssertionError("nothing gets through")


def test_large_control_frames_arrive(ring):
    live, _ = ring
    filters = [f"large/{number}/{'x' * 100}" for number in range(1_000)]  # 100 kB in one record
    subscriber = live.client(1).subscribe(*filters)
    live.wait_installed(1, *filters, patience=60)
    subscriber.kill()

    def withdrawn() -> bool:
        remote: Any = live.nodes[2].status()["interest"]
        return not any(name.startswith("large/") for f in remote["remote"].values() for name in f)

    eventually(withdrawn, "withdrawn everywhere", patience=60)


def test_round_trip_times_match_link_delay(ring):
    live, cable = ring

    def all_seen() -> list[dict[str, Any]]:
        return [seen for number in range(3) for seen in neighbours(live, number)]

    eventually(lambda: all(seen["rtt_ms"] for seen in all_seen()), "every link is measured")
    least = 2_000 * cable.delay_s
    measured = [seen["rtt_ms"] for seen in all_seen() if seen["rtt_ms"]]  # a lossy link may be new
    assert min(measured) > least

    def all_short() -> bool:
        return all(0 < (seen["rtt_ms"] or 0) < least + 1_000 for seen in all_seen())

    eventually(all_short, "no more: on busy cores one may take long by chance, but not each time")


def test_publication_too_large_for_datagram_is_counted(ring):
    live, cable = ring
    if cable.transport != "udp":
        pytest.skip("a stream takes it")
    live.subscriber(1, "big/#")
    live.client(0).publish("big/a", b"x" * 2_000)
    eventually(
        lambda: live.counter(0, "dropped: too large for a datagram link"), "counted as dropped"
    )
