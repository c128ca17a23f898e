"""Inspection of successive connections from the bytes of client and broker."""

import asyncio
from pathlib import Path

import pytest

from hansa.agent.storage.proxy_sessions import SessionFile
from hansa.mqtt import packets
from hansa.mqtt.body_encoder import encode_body
from hansa.mqtt.properties import Properties, Property
from hansa.mqtt.types import Version
from hansa.observers.base import (
    NO_CHANGE,
    FilterNotAnnounced,
    ObservationComplete,
    ObservationIncomplete,
    ObserverOutput,
)
from hansa.observers.proxy.inspector import PENDING_BYTES_MAX, REQUEST_BYTES, ConnectionInspector
from hansa.observers.proxy.observer import (
    ADDED,
    DOUBTED,
    EARLIER_SESSIONS,
    ENDED,
    FILTER_BYTES,
    NEVER,
    OPENED,
    REMOVED,
    SESSION_BYTES,
    ProxyObserver,
)

UNKNOWN_SESSION = "client 'c': resumed a session that the proxy has never seen"


def encode(packet: packets.Packet, version: Version) -> bytes:
    kind, body = encode_body(packet, version)
    assert len(body) < 128
    return bytes([kind << 4, len(body)]) + body


class Proxy:
    """An observer and connections of clients with one MQTT version."""

    def __init__(self, version: Version = Version.V5, may_have_earlier_sessions: bool = False):
        self.version = version
        self.observer = ProxyObserver(may_have_earlier_sessions)
        self.now = 0.0
        self._count = 0

    def connect(
        self,
        client_id: str = "c",
        clean: bool = True,
        expiry: int | None = None,
        present: bool = False,
        answer: Properties = (),
    ) -> "Client":
        self._count += 1
        client = Client(self, ConnectionInspector(self.observer, self._count))
        given: Properties = ()
        if expiry is not None:
            given = ((Property.SESSION_EXPIRY_INTERVAL, expiry),)
        client.send(packets.ConnectPacket(client_id, self.version, clean, properties=given))
        client.answer(packets.ConnAckPacket(present, 0, answer))
        return client

    @property
    def filters(self) -> tuple[str, ...]:
        return self.observer.subscribed_filters()


class Client:
    def __init__(self, proxy: Proxy, inspector: ConnectionInspector) -> None:
        self.proxy, self.inspector = proxy, inspector
        self._packet_id = 0
        self.outputs: list[ObserverOutput] = []

    def send(self, packet: packets.Packet) -> None:
        data = encode(packet, self.proxy.version)
        self.outputs.append(self.inspector.receive_from_client(data, self.proxy.now))

    def answer(self, packet: packets.Packet) -> None:
        data = encode(packet, self.proxy.version)
        self.outputs.append(self.inspector.receive_from_broker(data, self.proxy.now))

    def subscribe(self, *filters: str, codes: bytes | None = None) -> "Client":
        self._packet_id += 1
        asked = tuple(map(packets.Subscription, filters))
        self.send(packets.SubscribePacket(self._packet_id, asked))
        self.answer(packets.SubAckPacket(self._packet_id, codes or bytes(len(filters))))
        return self

    def unsubscribe(self, *filters: str, codes: bytes | None = None) -> None:
        self._packet_id += 1
        self.send(packets.UnsubscribePacket(self._packet_id, filters))
        if self.proxy.version is Version.V311:
            codes = b""
        self.answer(
            packets.UnsubAckPacket(self._packet_id, bytes(len(filters)) if codes is None else codes)
        )

    def close(self) -> ObserverOutput:
        return self.inspector.close(self.proxy.now)


versions = pytest.mark.parametrize("version", [Version.V311, Version.V5])


@versions
def test_granted_filters_are_known_until_the_client_unsubscribes(version):
    proxy = Proxy(version)
    client = proxy.connect().subscribe("a", "b/#")
    assert client.outputs[-2:] == [ObserverOutput(added=("a", "b/#")), NO_CHANGE]
    client.unsubscribe("a")
    assert client.outputs[-1] == ObserverOutput(removed=("a",))
    assert proxy.filters == ("b/#",)
    assert proxy.observer.is_complete


@versions
def test_refused_filters_are_known_until_the_broker_refuses_them(version):
    proxy = Proxy(version)
    client = proxy.connect().subscribe("a", "b", codes=bytes([0x80, 1]))
    assert client.outputs[-2:] == [
        ObserverOutput(added=("a", "b")),
        ObserverOutput(removed=("a",)),
    ]
    assert proxy.filters == ("b",)


def test_refused_repetition_does_not_end_a_subscription():
    proxy = Proxy()
    proxy.connect().subscribe("a").subscribe("a", codes=bytes([0x87]))
    assert proxy.filters == ("a",)


def test_filter_of_a_client_that_leaves_before_the_answer_is_known():
    proxy = Proxy(Version.V311)
    client = proxy.connect(clean=False)
    client.send(packets.SubscribePacket(1, (packets.Subscription("a"),)))
    client.close()
    assert proxy.filters == ("a",)
    assert proxy.observer.changes[-1] == ("c", ADDED, ["a"])


@versions
@pytest.mark.parametrize(("code", "known"), [(0, ("a",)), (0x80, ())])
def test_client_subscribes_again_before_the_answer_to_unsubscribe(version, code, known):
    proxy = Proxy(version)
    client = proxy.connect(clean=False, expiry=60 if version is Version.V5 else None)
    client.subscribe("a", "b")
    proxy.observer.changes.clear()
    client.send(packets.UnsubscribePacket(7, ("a", "b")))
    client.send(packets.SubscribePacket(8, (packets.Subscription("a"),)))
    client.answer(packets.UnsubAckPacket(7, bytes(2) if version is Version.V5 else b""))
    assert (proxy.filters, proxy.observer.changes) == (("a",), [("c", REMOVED, ["b"])])
    client.answer(packets.SubAckPacket(8, bytes([code])))
    assert proxy.filters == known
    client.unsubscribe("a")
    assert (proxy.filters, proxy.observer.is_complete) == ((), True)


def test_filter_stays_if_unsubscribe_is_refused():
    proxy = Proxy()
    proxy.connect().subscribe("a", "b").unsubscribe("a", "b", codes=bytes([0x80, 0x11]))
    assert proxy.filters == ("a",)


@versions
def test_clean_session_ends_with_its_connection(version):
    proxy = Proxy(version)
    client = proxy.connect().subscribe("a")
    assert client.close() == ObserverOutput(removed=("a",))
    assert client.close() == NO_CHANGE


def test_persistent_session_of_version_3_outlives_its_connection():
    proxy = Proxy(Version.V311)
    proxy.connect(clean=False).subscribe("a").close()
    assert (proxy.filters, proxy.observer.next_deadline()) == (("a",), None)
    proxy.connect(clean=False, present=True).subscribe("b")
    assert proxy.filters == ("a", "b")
    assert proxy.observer.is_complete


def test_persistent_session_of_version_5_ends_after_its_expiry_interval():
    proxy = Proxy()
    proxy.connect(expiry=60).subscribe("a").close()
    assert proxy.observer.next_deadline() == 60.0
    assert proxy.observer.handle_timer(59.0) == NO_CHANGE
    assert proxy.observer.handle_timer(60.0) == ObserverOutput(removed=("a",))
    assert proxy.observer.next_deadline() is None


def test_broker_and_disconnect_may_change_the_expiry_interval():
    proxy = Proxy()
    answer: Properties = ((Property.SESSION_EXPIRY_INTERVAL, NEVER),)
    client = proxy.connect(expiry=60, answer=answer).subscribe("a")
    proxy_two = proxy.connect("d", expiry=60).subscribe("b")
    proxy_two.send(packets.DisconnectPacket(0, ((Property.SESSION_EXPIRY_INTERVAL, 0),)))
    client.send(packets.DisconnectPacket())
    client.close()
    assert proxy_two.close() == ObserverOutput(removed=("b",))
    assert (proxy.filters, proxy.observer.next_deadline()) == (("a",), None)


def test_session_lost_by_broker_starts_empty():
    proxy = Proxy()
    proxy.connect(expiry=60).subscribe("a").close()
    client = proxy.connect(clean=False, expiry=60, present=False)
    assert client.outputs[-1] == ObserverOutput(removed=("a",))


def test_old_connection_does_not_end_session_taken_over():
    proxy = Proxy(Version.V311)
    old = proxy.connect(clean=False).subscribe("a")
    new = proxy.connect(clean=False, present=True)
    old.unsubscribe("a")
    assert proxy.filters == ("a",)
    assert old.close() == NO_CHANGE
    new.unsubscribe("a")
    assert new.outputs[-1] == ObserverOutput(removed=("a",))


def test_nothing_is_dropped_while_another_connection_of_the_client_is_open():
    proxy = Proxy()
    first = proxy.connect().subscribe("a")
    second = proxy.connect().subscribe("b")
    assert first.close() == NO_CHANGE
    assert second.close() == ObserverOutput(removed=("a", "b"))


def test_second_connect_is_not_taken_for_another_client():
    proxy = Proxy(Version.V311)
    proxy.connect("victim", clean=False).subscribe("a").close()
    attacker = Client(proxy, ConnectionInspector(proxy.observer, 9))
    attacker.send(packets.ConnectPacket("attacker", Version.V311, True))
    attacker.send(packets.ConnectPacket("victim", Version.V311, True))
    attacker.answer(packets.ConnAckPacket(False, 0))
    assert proxy.filters == ("a",)
    assert not proxy.observer.is_complete
    attacker.close()
    assert (proxy.filters, proxy.observer.is_complete) == (("a",), True)


def test_persistent_session_of_version_3_1_continues_without_session_present():
    observer = ProxyObserver(False)
    connect = b"\x10\x0f\x00\x06MQIsdp\x03\x00\x00\x00\x00\x01c"
    for number in (1, 2):
        inspector = ConnectionInspector(observer, number)
        inspector.receive_from_client(connect, 0.0)
        inspector.receive_from_broker(b"\x20\x02\x00\x00", 0.0)
        if number == 1:
            inspector.receive_from_client(b"\x82\x06\x00\x01\x00\x01a\x00", 0.0)
            inspector.receive_from_broker(b"\x90\x03\x00\x01\x00", 0.0)
        inspector.close(0.0)
    assert (observer.subscribed_filters(), observer.is_complete) == (("a",), True)


def test_session_that_becomes_persistent_is_saved_whole():
    proxy = Proxy()
    first = proxy.connect().subscribe("a")
    proxy.connect(clean=False, expiry=60, present=True)
    first.close()
    assert proxy.observer.changes == [("c", OPENED, ["60"]), ("c", ADDED, ["a"])]


def restarted(proxy: Proxy, directory: Path) -> ProxyObserver:
    """Return the observer of the next run, at time 0: it knows what was saved."""
    file = SessionFile(directory / "proxy-sessions", True, lambda text: None)
    asyncio.run(file.save(proxy.observer.changes))
    later = ProxyObserver(False)
    for client_id, session in file.sessions.items():
        later.load_session(client_id, session.filters, session.expiry_s)
    later.on_connected(session_lost=True, now=0.0)
    return later


def test_longer_expiry_interval_of_a_resumed_session_counts_after_a_restart(tmp_path):
    proxy = Proxy()
    proxy.connect(expiry=60).subscribe("a").close()
    proxy.connect(clean=False, expiry=3_600, present=True)
    later = restarted(proxy, tmp_path)
    assert (later.subscribed_filters(), later.next_deadline()) == (("a",), 3_600.0)


def test_longer_expiry_interval_is_saved_before_the_broker_gets_disconnect(tmp_path):
    proxy = Proxy()
    client = proxy.connect(expiry=60).subscribe("a")
    client.send(packets.DisconnectPacket(0, ((Property.SESSION_EXPIRY_INTERVAL, NEVER),)))
    later = restarted(proxy, tmp_path)
    assert (later.subscribed_filters(), later.next_deadline()) == (("a",), None)
    client.close()
    assert proxy.observer.next_deadline() is None


def test_connection_that_was_taken_over_does_not_decide_about_the_end(tmp_path):
    """Its end may be seen late: bytes for a client that does not answer any more wait there."""
    proxy = Proxy()
    old = proxy.connect()
    proxy.connect(clean=False, expiry=60).subscribe("a").close()
    old.close()
    assert (proxy.filters, proxy.observer.next_deadline()) == (("a",), 60.0)
    assert restarted(proxy, tmp_path).subscribed_filters() == ("a",)


def test_client_without_id_gets_id_assigned_by_broker():
    proxy = Proxy()
    answer: Properties = ((Property.ASSIGNED_CLIENT_IDENTIFIER, "auto-1"),)
    proxy.connect("", expiry=60, answer=answer).subscribe("a").close()
    assert proxy.observer.changes == [("auto-1", OPENED, ["60"]), ("auto-1", ADDED, ["a"])]


def test_clients_without_id_are_distinguished():
    proxy = Proxy(Version.V311)
    one, two = proxy.connect("").subscribe("a"), proxy.connect("").subscribe("a")
    assert one.close() == NO_CHANGE
    assert two.close() == ObserverOutput(removed=("a",))


def test_unknown_session_makes_proxy_incomplete_until_it_ends():
    proxy = Proxy(Version.V311)
    client = proxy.connect(clean=False, present=True)
    assert client.outputs[-1].findings == (ObservationIncomplete(UNKNOWN_SESSION),)
    client.close()
    assert proxy.observer.incomplete_reason == UNKNOWN_SESSION
    client = proxy.connect(clean=True)
    assert client.outputs[-1].findings == (ObservationComplete(),)


def test_earlier_sessions_are_unknown_unless_operator_declares_none():
    observer = Proxy(may_have_earlier_sessions=True).observer
    assert (observer.is_complete, observer.incomplete_reason) == (False, EARLIER_SESSIONS)


def test_saved_sessions_are_restored():
    observer = ProxyObserver(False)
    observer.load_session("c", ["a", "$SYS/x"], 60)
    assert observer.on_connected(session_lost=True, now=10.0) == ObserverOutput(added=("a",))
    assert observer.next_deadline() == 70.0
    assert observer.changes == []


def test_changes_of_persistent_sessions_are_listed_for_saving():
    proxy = Proxy()
    client = proxy.connect("p", expiry=60).subscribe("a", "b")
    client.unsubscribe("a")
    proxy.connect("q").subscribe("c").close()
    client.send(packets.DisconnectPacket(0, ((Property.SESSION_EXPIRY_INTERVAL, 0),)))
    client.close()
    assert proxy.observer.changes == [
        ("p", OPENED, ["60"]),
        ("p", ADDED, ["a", "b"]),
        ("p", REMOVED, ["a"]),
        ("p", ENDED, []),
    ]


def test_resumed_session_without_expiry_is_no_longer_saved():
    proxy = Proxy()
    proxy.connect(expiry=60).subscribe("a").close()
    proxy.observer.changes.clear()
    client = proxy.connect(clean=False, present=True)
    assert proxy.observer.changes == [("c", ENDED, [])]
    assert client.close() == ObserverOutput(removed=("a",))


def test_uncertainty_of_saved_session_survives_restart():
    proxy = Proxy(Version.V311)
    proxy.connect(clean=False, present=True)
    reason = "resumed a session that the proxy has never seen"
    assert proxy.observer.changes == [("c", OPENED, [str(NEVER)]), ("c", DOUBTED, [reason])]
    later = ProxyObserver(False)
    later.load_session("c", [], NEVER, reason)
    assert later.incomplete_reason == UNKNOWN_SESSION


def test_memory_for_sessions_and_filters_is_bounded(monkeypatch):
    room = SESSION_BYTES + len("c") + 2 * (FILTER_BYTES + 5)
    monkeypatch.setattr("hansa.observers.proxy.observer.MEMORY_MAX", room)
    proxy = Proxy()
    client = proxy.connect().subscribe("12345", "67890", "x")
    assert (proxy.filters, proxy.observer.is_complete) == (("12345", "67890"), False)
    proxy.connect("d").subscribe("y").close()
    client.close()
    assert proxy.filters == ()
    assert (
        proxy.observer.incomplete_reason == "sessions of the proxy's clients need too much memory"
    )


def test_local_or_too_long_filters_are_not_announced():
    proxy = Proxy()
    client = proxy.connect().subscribe("$SYS/#", "$share/g/a", "/".join("x" * 40))
    assert proxy.filters == ("$share/g/a",)
    assert [type(finding) for finding in client.outputs[-2].findings] == [FilterNotAnnounced]
    assert client.close() == ObserverOutput(removed=("$share/g/a",))


def test_refused_connection_changes_nothing():
    proxy = Proxy()
    client = Client(proxy, ConnectionInspector(proxy.observer, 1))
    client.send(packets.ConnectPacket("c", Version.V5, True))
    client.answer(packets.ConnAckPacket(False, 0x87))
    assert (client.outputs, client.close()) == ([NO_CHANGE, NO_CHANGE], NO_CHANGE)


def test_garbage_from_unknown_client_has_no_effect():
    proxy = Proxy()
    inspector = ConnectionInspector(proxy.observer, 1)
    assert inspector.receive_from_client(b"\x10\xff\xff\xff\xff\xff", 0.0) == NO_CHANGE
    assert inspector.receive_from_client(b"more", 0.0) == NO_CHANGE
    assert inspector.close(0.0) == NO_CHANGE
    assert proxy.observer.is_complete


def test_unparsable_connect_makes_observer_incomplete():
    proxy = Proxy()
    inspector = ConnectionInspector(proxy.observer, 1)
    inspector.receive_from_client(b"\x10\x02\x00\x09", 0.0)
    output = inspector.receive_from_broker(b"\x20\x02\x00\x00", 0.0)
    assert [type(finding) for finding in output.findings] == [ObservationIncomplete]
    assert inspector.close(0.0) == NO_CHANGE
    assert proxy.observer.incomplete_reason.startswith("unknown client: ")
    assert [change[1] for change in proxy.observer.changes] == [OPENED, DOUBTED]


def test_unparsable_answer_to_connect_makes_the_session_doubtful():
    proxy = Proxy()
    client = Client(proxy, ConnectionInspector(proxy.observer, 1))
    client.send(packets.ConnectPacket("c", Version.V5, True))
    client.inspector.receive_from_broker(b"\x20\x03\x00\x00\x07", 0.0)
    assert not proxy.observer.is_complete
    assert client.close().findings == (ObservationComplete(),)


def test_subscribe_before_the_answer_to_connect_is_not_followed():
    """The shell does not forward it before."""
    proxy = Proxy()
    client = Client(proxy, ConnectionInspector(proxy.observer, 1))
    client.send(packets.ConnectPacket("c", Version.V5, True))
    client.send(packets.SubscribePacket(1, (packets.Subscription("a"),)))
    client.answer(packets.ConnAckPacket(False, 0))
    assert (proxy.filters, proxy.observer.is_complete) == ((), False)


def test_long_client_ids_and_filters_are_truncated_in_reports():
    observer = ProxyObserver(False)
    observer.on_opened("x" * 60_000, 1, is_present=True, expiry_s=0)
    assert len(observer.incomplete_reason) < 200
    observer.on_subscribed("x" * 60_000, ["y" * 60_000])
    (finding,) = (f for f in observer.drain(0.0).findings if isinstance(f, FilterNotAnnounced))
    assert len(finding.topic_filter) + len(finding.reason) < 300


@pytest.mark.parametrize(
    ("from_client", "from_broker"),
    [
        (b"\x82\x03\x00\x01\xff", b""),
        (b"", b"\x90\x04\x00\x09\x00\x00"),
        (b"", b"\xb0\x04\x00\x09\x00\x00"),
    ],
    ids=["malformed SUBSCRIBE", "SUBACK without a request", "UNSUBACK without a request"],
)
def test_unparsable_connection_makes_observer_incomplete(from_client, from_broker):
    proxy = Proxy()
    client = proxy.connect().subscribe("a")
    client.inspector.receive_from_client(from_client, 0.0)
    client.inspector.receive_from_broker(from_broker, 0.0)
    assert not proxy.observer.is_complete
    client.unsubscribe("a")
    assert proxy.filters == ("a",)  # it is no longer inspected
    assert client.close() == ObserverOutput(removed=("a",), findings=(ObservationComplete(),))


def test_unanswered_requests_are_bounded():
    proxy = Proxy(Version.V311)
    client = proxy.connect()
    asked = (packets.Subscription("a"),)
    for packet_id in range(1, PENDING_BYTES_MAX // (REQUEST_BYTES + 1) + 1):
        client.send(packets.SubscribePacket(packet_id, asked))
    assert proxy.observer.is_complete
    client.send(packets.SubscribePacket(65_535, asked))
    assert not proxy.observer.is_complete


def test_clients_that_cannot_be_read_make_the_observer_incomplete():
    observer = ProxyObserver(may_have_earlier_sessions=False, opaque_filters=())
    assert not observer.is_complete
    assert "passthrough_filters" in observer.incomplete_reason


def test_declared_filters_of_clients_that_cannot_be_read_are_known():
    observer = ProxyObserver(may_have_earlier_sessions=False, opaque_filters=("a", "b/#"))
    assert observer.is_complete
    assert observer.on_connected(session_lost=True, now=0.0) == ObserverOutput(added=("a", "b/#"))
    assert observer.subscribed_filters() == ("a", "b/#")
