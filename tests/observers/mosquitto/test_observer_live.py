"""The observer at a real Mosquitto, over plain sockets."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.mqtt.mosquitto import Broker, Client
from tests.websocket import WebSocketClient, connect_packet, subscribe_packet

from hansa.mqtt import inputs
from hansa.mqtt.effects import Connected, PublishReceived, Subscribed, Unsubscribed
from hansa.mqtt.options import ConnectOptions
from hansa.mqtt.packets import Subscription
from hansa.mqtt.types import Version
from hansa.observers.base import (
    BridgeDetected,
    ObservationComplete,
    ObservationIncomplete,
    ObserverFinding,
    ObserverOutput,
    SubscriptionCountMismatch,
)
from hansa.observers.history import BrokerLogFile
from hansa.observers.mosquitto.observer import MosquittoObserver
from hansa.testbed.mosquitto import free_port

LOG = (
    "log_dest topic",
    "log_type subscribe",
    "log_type unsubscribe",
    "log_type notice",
    "log_type error",
    "log_type information",
    "sys_interval 1",
)
V4, V5 = Version.V311, Version.V5


class Process(Broker):
    """A broker whose output the tests read."""

    def terminate(self) -> None:
        """Stop it with SIGTERM; it saves its state."""
        self._process.terminate()
        self._process.wait()

    def printed_tree(self) -> str:
        """Return its output after SIGUSR2; a new connection ensures that it is printed."""
        os.kill(self._process.pid, signal.SIGUSR2)
        join(self, "hansa-flush").do(inputs.Disconnect())
        return Path(self._log.name).read_text()


Start = Callable[..., Process]


@pytest.fixture
def start(mosquitto: str, tmp_path: Path) -> Iterator[Start]:
    """Start successive brokers in one directory."""
    started: list[Process] = []

    def start_one(*settings: str) -> Process:
        started.append(Process(printing(mosquitto, tmp_path), tmp_path, *LOG, *settings))
        return started[-1]

    yield start_one
    for one in started:
        one.close()


def printing(mosquitto: str, directory: Path) -> str:
    """Return a Mosquitto with line-buffered output; 2.0.11 buffers blocks without a terminal."""
    stdbuf = shutil.which("stdbuf")
    if stdbuf is None:
        return mosquitto
    script = directory / "mosquitto"
    script.write_text(f'#!/bin/sh\nexec {stdbuf} -oL {mosquitto} "$@"\n')
    script.chmod(0o755)
    return str(script)


def join(broker: Broker, name: str, version: Version = V4, *, clean: bool = True, **more) -> Client:
    client = Client(
        broker, ConnectOptions(client_id=name, version=version, clean_start=clean, **more)
    )
    client.wait(Connected)
    return client


def subscribe(client: Client, *filters: str) -> None:
    client.do(inputs.Subscribe(tuple(Subscription(name, 1) for name in filters)))
    assert set(client.wait(Subscribed).reasons) <= {0, 1}


class Watch:
    """A minimal shell for an observer."""

    def __init__(
        self, broker: Broker, observer: MosquittoObserver | None = None, name: str = "hansa-watch"
    ) -> None:
        self.observer = observer or MosquittoObserver("hansa-")
        self.findings: list[ObserverFinding] = []
        self.expected_filters = set(self.observer.subscribed_filters())
        self._client = join(broker, name, V5)
        self.observer.on_connected(session_lost=True, now=0.0)
        self.observer.begin_resync(now=0.0)
        wishes = tuple(Subscription(name, 0) for name in self.observer.topics_to_subscribe())
        self._client.do(inputs.Subscribe(wishes))
        self._client.wait(Subscribed)

    def until(self, condition: Callable[[], bool]) -> None:
        """Feed the observer until a condition holds or the socket times out."""
        while not condition():
            for publication in self._client.wait(PublishReceived).batch:
                self.learn(
                    self.observer.receive_publication(
                        publication.topic, publication.payload, now=0.0
                    )
                )
        assert self.expected_filters == set(self.observer.subscribed_filters())

    def until_subscribed(self, *filters: str) -> None:
        self.until(lambda: set(self.observer.subscribed_filters()) == set(filters))

    def until_at_least(self, *filters: str) -> None:
        self.until(lambda: set(self.observer.subscribed_filters()).issuperset(filters))

    def learn(self, change: ObserverOutput) -> None:
        assert self.expected_filters.isdisjoint(change.added)
        assert self.expected_filters.issuperset(change.removed)
        self.expected_filters.update(change.added)
        self.expected_filters.difference_update(change.removed)
        self.findings += change.findings

    def resync(self, text: str) -> None:
        self.learn(self.observer.resync(text, now=0.0))


@pytest.mark.parametrize(
    "more",
    [(), ("log_timestamp false",), ("log_timestamp_format %a %d/%b/%Y:%H:%M:%S %Z",)],
    ids=["seconds", "none", "own"],
)
def test_subscribe_unsubscribe_and_every_end_of_clean_session(start, tmp_path, more):
    log_file = tmp_path / "mosquitto.log"
    broker = start(f"log_dest file {log_file}", *more)
    watch = Watch(broker)
    watch.until(lambda: watch.observer.version != "")  # after lines that show the timestamp
    watch.resync(log_file.read_text())  # all clients are known: no line is ambiguous
    ann, bob = join(broker, "ann"), join(broker, "b 1 ob")
    subscribe(ann, "a/+", "same", "$share/g/a", "$SYS/broker/uptime")
    subscribe(bob, "same", "two 0 words/#")
    watch.until_subscribed("a/+", "same", "$share/g/a", "two 0 words/#")
    ann.do(inputs.Unsubscribe(("a/+", "never")))
    ann.wait(Unsubscribed)
    watch.until_subscribed("same", "$share/g/a", "two 0 words/#")
    ann.do(inputs.Disconnect())
    watch.until_subscribed("same", "two 0 words/#")
    bob.drop()
    watch.until_subscribed()
    assert (watch.observer.unparsed_count, watch.observer.uncertain_count) == (0, 0)


HOSTILE_IDS = (
    "bob 0 t/1",
    "bob 0",
    "bob disconnected: x",
    "bob [127.0.0.1:1]",
    "bob already connected, closing old connection.",
    "Expiring client",
    "Client bob",
    "New client connected from h:1 as",
    "'bob', \"bob\"",
    "1794789600: bob",
    "bob\u3000\u00e9 1 \U0001f980",
)
HOSTILE_FILTERS = ("x", "0 y", "bob due to timeout.", "bob disconnected.", "\u00e9 1 '\U0001f980'")


@pytest.mark.parametrize("is_early", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("more", [(), ("log_timestamp false",)], ids=["seconds", "none"])
def test_hostile_ids_and_filters_hide_no_interest(start, tmp_path, more, is_early):
    """Clients connect before the observer or after it, and a second one reads the log file."""
    log_file = tmp_path / "mosquitto.log"
    broker = start(f"log_dest file {log_file}", *more)
    hostile = [join(broker, name) for name in HOSTILE_IDS] if is_early else []
    watch = Watch(broker)
    bob = join(broker, "bob", clean=False)
    subscribe(bob, "victim", "0 victim")
    watch.until_at_least("victim", "0 victim")
    hostile = hostile or [join(broker, name) for name in HOSTILE_IDS]
    for number, client in enumerate(hostile):
        subscribe(client, f"own/{number}", *HOSTILE_FILTERS)
        client.do(inputs.Unsubscribe((*HOSTILE_FILTERS[1:], "victim", "0 victim")))
        client.wait(Unsubscribed)
    expected = {"x", "victim", "0 victim", *(f"own/{n}" for n in range(len(hostile)))}
    late = Watch(broker, name="hansa-late")
    late.until(lambda: late.observer.version != "")
    late.resync(log_file.read_text())
    for each in (watch, late):
        each.until_at_least(*expected)
    for client in hostile:
        client.do(inputs.Disconnect())
    subscribe(bob, "last")
    for each in (watch, late):
        each.until_at_least("victim", "0 victim", "last")


@pytest.mark.parametrize("name", ["a\nb", "a\tb", "a\x7fb", "a\x85b"])
def test_broker_refuses_ids_with_control_characters(start, name):
    """Otherwise an id could end its line of the log and begin another one."""
    client = Client(start(), ConnectOptions(client_id=name, version=V4))
    with pytest.raises(OSError, match=r"."):
        client.wait(Connected)


def test_killed_client_ends_its_interest(start):
    broker = start()
    watch = Watch(broker)
    connect = b"\x10\x0f\0\x04MQTT\x04\x02\0\x1e\0\x03eve"
    ask = b"\x82\x06\0\x01\0\x01e\0"
    script = (
        "import socket, sys, time\n"
        "made = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "made.sendall(bytes.fromhex(sys.argv[2]))\n"
        "time.sleep(60)\n"
    )
    arguments = [sys.executable, "-S", "-c", script, str(broker.port), (connect + ask).hex()]
    with subprocess.Popen(arguments) as eve:
        watch.until_subscribed("e")
        eve.kill()
        watch.until_subscribed()


def test_persistent_session_stays_until_clean_start(start):
    broker = start()
    watch = Watch(broker)
    ann = join(broker, "ann", clean=False)
    subscribe(ann, "a", "b")
    watch.until_subscribed("a", "b")
    ann.drop()
    ann = join(broker, "ann", clean=False)
    subscribe(ann, "c")
    watch.until_subscribed("a", "b", "c")
    subscribe(join(broker, "ann", clean=False), "d")
    watch.until_subscribed("a", "b", "c", "d")
    join(broker, "ann")
    watch.until_subscribed()


def test_restored_sessions_are_known_from_the_persistence_file(start, tmp_path):
    """A session of MQTT 5 that is disconnected: the log does not show whether it lasts."""
    log_file, database = tmp_path / "broker.log", tmp_path / "mosquitto.db"
    settings = (
        f"log_dest file {log_file}",
        "persistence true",
        f"persistence_location {tmp_path}/",
    )
    broker = start(*settings)
    subscribe(join(broker, "ann", V5, clean=False, session_expiry=3600), "a/1", "b 2")
    broker.terminate()
    log_file.unlink()
    broker = start(*settings)
    watch = Watch(broker)
    watch.resync(asyncio.run(BrokerLogFile(log_file).read()))
    assert "may have restored sessions" in watch.observer.incomplete_reason
    watch.observer.begin_resync(now=0.0)
    watch.resync(asyncio.run(BrokerLogFile(log_file, database).read()))
    watch.until(lambda: watch.observer.is_complete)
    assert watch.observer.subscribed_filters() == ("a/1", "b 2")


@pytest.mark.parametrize("is_clean", [True, False])
def test_takeover_with_websocket_keeps_the_filters_of_the_new_connection(start, is_clean):
    """Mosquitto 2.0 logs the end of the old connection after the begin of the new one."""
    port = free_port()
    broker = start("allow_anonymous true", f"listener {port} 127.0.0.1", "protocol websockets")
    watch = Watch(broker)
    clients = []
    for name in ("old", "new"):
        clients.append(WebSocketClient(socket.create_connection(("127.0.0.1", port))))
        clients[-1].send(connect_packet("ann", is_clean))
        assert clients[-1].receive(4)[3] == 0
        clients[-1].send(subscribe_packet(name))
        assert clients[-1].receive(5)[4] == 1
    expected_filters = ("new",) if is_clean else ("new", "old")
    seen = watch.observer.sample_count
    watch.until(lambda: watch.observer.is_complete and watch.observer.sample_count > seen + 1)
    assert watch.observer.subscribed_filters() == expected_filters
    clients[-1].close()
    watch.until_subscribed(*(() if is_clean else expected_filters))
    clients[0].close()


def test_session_of_mqtt_5_stays_until_it_expires(start):
    broker = start()
    watch = Watch(broker)
    ann = join(broker, "ann", V5, session_expiry=1)
    subscribe(ann, "a")
    ann.do(inputs.Disconnect())
    watch.until(lambda: watch.observer.uncertain_count == 1)
    assert watch.observer.subscribed_filters() == ("a",)
    watch.until_subscribed()


def test_counts_confirm_the_table_and_remove_uncertain_subscriptions(start):
    broker = start()
    watch = Watch(broker)
    ann = join(broker, "ann", V5)
    subscribe(ann, "a", "$share/g/a")
    watch.until(lambda: watch.observer.is_complete)
    ann.do(inputs.Disconnect())
    watch.until(lambda: watch.observer.uncertain_count == 2)
    watch.until_subscribed()
    assert watch.observer.is_complete
    assert watch.findings == [ObservationComplete()]


def test_burst_of_ten_thousand_filters_is_observed(start):
    broker = start()
    watch = Watch(broker)
    subscribe(join(broker, "ann"), *(f"burst/{n}" for n in range(10_000)))
    watch.until(lambda: len(watch.expected_filters) == 10_000)


def test_filter_longer_than_log_line_leaves_gap(start):
    broker = start()
    watch = Watch(broker)
    watch.until(lambda: watch.observer.is_complete)
    ann = join(broker, "ann")
    subscribe(ann, "x" * 1_000)
    watch.until(lambda: not watch.observer.is_complete)
    ann.do(inputs.Unsubscribe(("x" * 1_000,)))
    watch.until(lambda: watch.observer.is_complete)
    reason = "filters that are too long for a line of the log"
    assert watch.findings == [
        ObservationComplete(),
        ObservationIncomplete(reason),
        ObservationComplete(),
    ]


def test_equal_count_proves_nothing_if_the_broker_logs_no_connections(start):
    """ann leaves without a line; the count of subscriptions is as if bob had none."""
    broker = start("connection_messages false")
    bob = join(broker, "bob")
    subscribe(bob, "b")
    watch = Watch(broker)
    ann = join(broker, "ann")
    subscribe(ann, "a")
    watch.until(lambda: "a" in watch.observer.subscribed_filters())
    ann.do(inputs.Disconnect())
    own = len(watch.observer.topics_to_subscribe())
    watch.until(lambda: watch.observer.counted == own + 1)
    seen = watch.observer.sample_count
    watch.until(lambda: watch.observer.sample_count > seen + 1)
    assert not watch.observer.is_complete


def test_bridge_is_reported(start):
    broker = start()
    watch = Watch(broker)
    join(broker, "north", bridge=True)
    watch.until(lambda: watch.findings == [BridgeDetected("north", is_up=True)])


# ---------------------------------------------------------------- earlier subscriptions


def crowd(broker: Broker) -> list[Client]:
    """Subscribe with clients of all kinds, some of which disconnect."""
    ann, bob = join(broker, "a n n", V5), join(broker, "bob", clean=False)
    subscribe(ann, "a/+", "/", "trail/", "$share/g/s/1", "$SYS/x")
    subscribe(bob, "a/+", "b 1 c/#")
    bob.drop()
    eve = join(broker, "eve")
    subscribe(eve, "e")
    eve.do(inputs.Disconnect())
    ann.do(inputs.Unsubscribe(("/",)))
    ann.wait(Unsubscribed)
    return [ann]


def test_late_observer_learns_from_the_log_file(start, tmp_path):
    file = tmp_path / "broker.log"
    broker = start(f"log_dest file {file}")
    (ann,) = crowd(broker)
    watch = Watch(broker)
    watch.resync(file.read_text())
    assert watch.expected_filters == {"a/+", "trail/", "$share/g/s/1", "b 1 c/#"}
    watch.until(lambda: watch.observer.is_complete)
    assert watch.findings == [ObservationComplete()]
    ann.do(inputs.Disconnect())
    watch.until_subscribed("a/+", "b 1 c/#")
    assert watch.findings == [ObservationComplete()]


@pytest.mark.skipif(shutil.which("stdbuf") is None, reason="stdbuf (coreutils) is not installed")
@pytest.mark.parametrize("has_shared", [True, False])
def test_late_observer_learns_from_the_tree(start, has_shared):
    broker = start()
    (ann,) = crowd(broker)
    if not has_shared:
        ann.do(inputs.Unsubscribe(("$share/g/s/1",)))
        ann.wait(Unsubscribed)
    watch = Watch(broker)
    watch.resync(broker.printed_tree())
    # The tree shows neither the group nor whether levels above are shared.
    shared = {"s", "s/1"} if has_shared else set()
    assert watch.expected_filters == {"a/+", "trail/", "b 1 c/#"} | shared
    assert watch.observer.is_complete is not has_shared
    assert watch.findings == ([] if has_shared else [ObservationComplete()])


def test_restored_sessions_are_detected_from_counts(start, tmp_path):
    kept = ("persistence true", f"persistence_location {tmp_path}/")
    first = start(*kept)
    watch = Watch(first)
    subscribe(join(first, "ann", clean=False), "a")
    subscribe(join(first, "eve"), "e")
    watch.until_subscribed("a", "e")
    saved = watch.observer.snapshot()
    first.terminate()

    second = start(*kept)
    stranger = Watch(second)
    stranger.until(
        lambda: any(isinstance(each, SubscriptionCountMismatch) for each in stranger.findings)
    )
    assert not stranger.observer.is_complete
    restored = MosquittoObserver("hansa-")
    restored.restore(saved, now=0.0)
    watch = Watch(second, restored)
    assert watch.expected_filters == {"a", "e"}
    subscribe(join(second, "ann", clean=False), "a")
    watch.until_subscribed("a")
    assert watch.observer.is_complete
