"""A live federation as clients see it: three Mosquittos in a ring with an agent each."""

import os
import signal
import socket
from typing import Any

import pytest
from tests.agent.live import assert_each_once, eventually

from hansa.mqtt.types import Version

TOO_LARGE = "dropped: larger than packet_bytes_max"


@pytest.mark.parametrize(
    ("filters", "topic"),
    [
        (("exact/a/b",), "exact/a/b"),
        (("plus/+/b",), "plus/a/b"),
        (("hash/#",), "hash/a/b"),
        (("#",), "all/a/b"),
        (("over/#", "over/+/b", "over/a/b"), "over/a/b"),
    ],
    ids=["exact", "plus", "hash", "everything", "overlapping"],
)
def test_every_subscriber_gets_every_publication_once(ring, filters, topic):
    # One client per filter at each broker: brokers differ in copies for one client.
    subscribers = [ring.client(n).subscribe(f) for n in range(3) for f in filters]
    for number in range(3):
        ring.wait_installed(number, *filters)
    for number in range(3):
        payloads = [b"%d-%d" % (number, each) for each in range(20)]
        assert_each_once(ring.client(number), subscribers, topic, payloads)


def test_overlapping_filters_at_different_brokers_are_distinguished(ring):
    one, two = ring.subscriber(1, "o/#"), ring.subscriber(2, "o/+")
    publisher = ring.client(0)
    publisher.publish("o/x", b"1", b"2", b"end")
    expected = [("o/x", b"1"), ("o/x", b"2"), ("o/x", b"end")]
    assert [one.wait_for(b"end"), two.wait_for(b"end")] == [expected, expected]


def test_mqtt_5_and_3_1_1_clients_exchange_publications(ring):
    subscriber = ring.subscriber(1, "five/#", version=Version.V5)
    ring.client(2, version=Version.V311).publish("five/a", b"end")
    assert subscriber.wait_for(b"end") == [("five/a", b"end")]


def test_unsubscribing_stops_the_traffic(ring):
    subscriber = ring.subscriber(1, "stop/a", "stop/fence")
    publisher = ring.client(0)
    publisher.publish("stop/a", b"before")
    subscriber.wait_for(b"before")
    subscriber.unsubscribe("stop/a")
    node = ring.nodes[1].status()["node"]

    def withdrawn() -> bool:
        interest: Any = ring.nodes[0].status()["interest"]
        return "stop/a" not in interest["remote"][str(node)]

    eventually(withdrawn, "interest withdrawn")
    publisher.publish("stop/a", b"x")
    publisher.publish("stop/fence", b"x")
    subscriber.wait_for(b"x")
    eventually(lambda: _subscribed(ring, 0, "stop/a") is False, "agent unsubscribed")
    captured = ring.counter(0, "captured")
    publisher.publish("stop/a", *[b"y"] * 100)
    publisher.publish("stop/fence", b"end")
    subscriber.wait_for(b"end")
    assert ring.counter(0, "captured") == captured + 1  # the fence alone


def _subscribed(ring: Any, number: int, name: str) -> bool:
    """Whether the agent's last request for a filter was SUBSCRIBE."""
    lines = ring.nodes[number].broker.log_file.read_text().splitlines()
    words = [line.split(": ", 1)[1] for line in lines if line.endswith(f" {name}")]
    own = [word for word in words if word.startswith("hansa-")]
    return bool(own) and len(own[-1].split(" ")) == 3


def test_vanished_client_ends_interest(ring):
    subscriber = ring.subscriber(2, "gone/#")
    subscriber.kill()

    def noticed() -> bool:
        interest: Any = ring.nodes[2].status()["interest"]
        return "gone/#" not in interest["local"]

    eventually(noticed, "interest of the client that vanished withdrawn")


def test_dollar_topics_are_not_forwarded(ring):
    subscriber = ring.subscriber(1, "#")
    subscriber.subscribe("$SYS/#", "$other/#")
    publisher = ring.client(0)
    publisher.publish("$other/a", b"no")
    publisher.publish("dollar", b"end")
    seen = subscriber.wait_for(b"end")
    assert ("dollar", b"end") in seen
    assert not [topic for topic, payload in seen if topic.startswith("$other")]
    for node in ring.nodes:
        interest: Any = node.status()["interest"]
        for filters in interest["remote"].values():
            assert not [name for name in filters if name.startswith("$")]


def test_topic_of_200_levels_is_forwarded_and_of_201_ignored(ring):
    subscriber = ring.subscriber(1, "l/#")
    publisher = ring.client(0)
    publisher.publish("l/" + "/".join("x" * 200), b"201 levels")
    publisher.publish("l/" + "/".join("x" * 199), b"200 levels")
    assert [payload for _, payload in subscriber.wait_for(b"200 levels")] == [b"200 levels"]
    assert ring.counter(0, "dropped: topic with too many levels") >= 1


def test_payload_above_the_limit_is_dropped_and_the_next_is_forwarded(ring):
    subscriber = ring.subscriber(1, "big/#")
    publisher = ring.client(0)
    publisher.publish("big/a", b"x" * (2 << 20))
    publisher.publish("big/a", b"y" * (1 << 19))
    publisher.publish("big/a", b"end")
    sizes = [len(payload) for _, payload in subscriber.wait_for(b"end")]
    assert sizes == [1 << 19, 3]
    eventually(lambda: ring.counter(0, TOO_LARGE), "counted, as the broker says so in its log")
    assert "publication too large bytes=2097" in ring.log(0)


def test_largest_payload_of_mqtt_is_dropped_and_counted(ring):
    subscriber, before = ring.subscriber(1, "huge/#"), ring.counter(0, TOO_LARGE)
    with socket.create_connection(("127.0.0.1", ring.nodes[0].broker.port)) as raw:
        raw.sendall(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01h")
        raw.recv(4)
        raw.sendall(b"\x30\xff\xff\xff\x7f\x00\x06huge/a")
        left = (1 << 28) - 1 - len(b"\x00\x06huge/a")
        while left:
            left -= raw.send(bytes(min(left, 1 << 20)))
        raw.sendall(b"\xc0\x00")
        assert raw.recv(2) == b"\xd0\x00"  # the broker has received it
    eventually(lambda: ring.counter(0, TOO_LARGE) > before, "counted")
    ring.client(0).publish("huge/a", b"end")
    assert subscriber.wait_for(b"end") == [("huge/a", b"end")]


def test_announced_payload_of_300_mb_has_no_effect(ring):
    subscriber = ring.subscriber(1, "vast/#")
    port = ring.nodes[0].broker.port
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01h")
        raw.recv(4)
        # PUBLISH with the largest remaining length of MQTT, 256 MB less one byte.
        raw.sendall(b"\x30\xff\xff\xff\x7f\x00\x06vast/a" + b"x" * 100_000)
    ring.client(0).publish("vast/a", b"end")
    assert subscriber.wait_for(b"end") == [("vast/a", b"end")]


@pytest.mark.parametrize(
    ("name", "garbage"),
    [
        ("http", b"GET / HTTP/1.1\r\n\r\n"),
        ("300 MB frame", (300 << 20).to_bytes(4, "big") + b"x" * 1000),
        ("unreadable", b"\x00\x00\x00\x02??"),
    ],
)
def test_garbage_on_the_link_port_has_no_effect(ring, name, garbage):
    topic = f"garbage/{name}"  # unique: earlier interest may still be withdrawn
    with socket.create_connection(("127.0.0.1", ring.nodes[0].link_port)) as raw:
        raw.sendall(garbage * 3)
        subscriber = ring.subscriber(1, topic)
        ring.client(0).publish(topic, b"end")
        assert subscriber.wait_for(b"end") == [(topic, b"end")]
        refused = "peer refused, not authenticated remote=127.0.0.1"
        eventually(lambda: refused in ring.log(0), "a line in the log")


def test_ten_thousand_filters_of_one_client(ring):
    filters = [f"many/{number}" for number in range(9_900)]
    subscriber = ring.client(1).subscribe(*filters)
    ring.wait_installed(1, filters[0], filters[-1], patience=120)
    publisher = ring.client(0)
    for topic in (filters[0], filters[5_000], filters[-1]):
        publisher.publish(topic, b"end " + topic.encode())
        assert subscriber.wait_for(b"end " + topic.encode()) == [(topic, b"end " + topic.encode())]
    subscriber.kill()

    def gone() -> bool:
        interest: Any = ring.nodes[1].status()["interest"]
        return not [name for name in interest["local"] if name.startswith("many/")]

    eventually(gone, "all filters withdrawn", patience=120)


# ---------------------------------------------------------------- healing


def test_killed_agent_restarts_with_the_interest_of_its_clients(ring):
    subscriber = ring.subscriber(1, "heal/agent")
    before = ring.nodes[1].status()
    os.kill(ring.nodes[1].agent.pid, signal.SIGKILL)
    ring.run(ring.nodes[1].agent.wait())
    ring.run(ring.federation.start_agent(1))
    ring.wait_converged()
    ring.wait_installed(1, "heal/agent")
    after = ring.nodes[1].status()
    assert after["node"] == before["node"]
    assert after["incarnation"] > before["incarnation"]
    ring.client(0).publish("heal/agent", b"end")
    assert subscriber.wait_for(b"end") == [("heal/agent", b"end")]


def test_other_agents_continue_without_a_killed_one(ring):
    subscriber = ring.subscriber(1, "heal/others")
    os.kill(ring.nodes[2].agent.pid, signal.SIGKILL)
    ring.run(ring.nodes[2].agent.wait())
    publisher = ring.client(0)
    for number in range(200):
        publisher.publish("heal/others", b"%d" % number)
        if not subscriber.silent(0.05):
            break
    else:
        pytest.fail("nothing crossed between the two that were left")
    ring.run(ring.federation.start_agent(2))
    ring.wait_converged()
    publisher.publish("heal/others", b"end")
    payloads = [payload for _, payload in subscriber.wait_for(b"end")]
    assert len(payloads) == len(set(payloads))


def test_agent_reconnects_to_restarted_broker(ring):
    node = ring.nodes[1]
    ring.run(node.broker.stop())
    eventually(lambda: not node.status()["broker"]["connected"], "broker missed")
    assert "broker lost, still trying" in ring.log(1)
    ring.run(node.broker.start())
    ring.wait_converged()
    subscriber = ring.subscriber(1, "heal/broker")
    other = ring.subscriber(0, "heal/back")
    ring.client(0).publish("heal/broker", b"end")
    assert subscriber.wait_for(b"end") == [("heal/broker", b"end")]
    ring.client(1).publish("heal/back", b"end")
    assert other.wait_for(b"end") == [("heal/back", b"end")]
