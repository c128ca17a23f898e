"""MQTT bytes in WebSocket connections that are split anywhere."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.observers.proxy.inspector import ConnectionInspector
from hansa.observers.proxy.observer import NEVER, ProxyObserver
from hansa.observers.proxy.scanner import PACKET_BYTES_MAX, InvalidStream
from hansa.observers.proxy.websocket import HEAD_BYTES_MAX, ConnectGate, WebSocketDecoder

REQUEST = b"GET /mqtt HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"
RESPONSE = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"
BINARY, CONTINUATION, TEXT, PING, FINAL = 0x2, 0x0, 0x1, 0x9, 0x80
CONNECT = bytes.fromhex("100d00044d51545404000000000171")  # client "q", persistent
SUBSCRIBE = bytes.fromhex("820800010003742f3101")
CONNACK, SUBACK = bytes.fromhex("20020000"), bytes.fromhex("9003000101")


def frame(payload: bytes, opcode: int = BINARY | FINAL, mask: bytes = b"") -> bytes:
    """Return a frame; `mask` is empty for those of brokers."""
    size, bit = len(payload), 0x80 if mask else 0
    if size < 126:
        length = bytes([bit | size])
    elif size < 1 << 16:
        length = bytes([bit | 126]) + size.to_bytes(2, "big")
    else:
        length = bytes([bit | 127]) + size.to_bytes(8, "big")
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload)) if mask else payload
    return bytes([opcode]) + length + mask + masked


MASKS = st.one_of(st.just(b""), st.binary(min_size=4, max_size=4))
FRAMES = st.tuples(
    st.one_of(st.binary(max_size=9), st.binary(min_size=124, max_size=300)),
    st.sampled_from([BINARY, BINARY | FINAL, CONTINUATION, PING | FINAL]),
    MASKS,
)


@given(st.lists(FRAMES), st.data())
def test_mqtt_bytes_do_not_depend_on_chunks(frames, data):
    stream = REQUEST + b"".join(frame(*each) for each in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    decoder = WebSocketDecoder()
    found = b"".join(decoder.feed(chunk) for chunk in chunks)
    assert found == b"".join(body for body, opcode, _ in frames if opcode & 0xF != PING)
    assert decoder.is_between_frames


def test_frame_with_a_long_length_is_read():
    body = os.urandom(70_000)
    decoder = WebSocketDecoder()
    assert decoder.feed(RESPONSE + frame(body, mask=b"abcd")) == body


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no WebSocket"),
        (CONNECT, "no WebSocket"),
        (b"GET /" + bytes(HEAD_BYTES_MAX), "HTTP head"),
        (RESPONSE + frame(b"x", TEXT | FINAL), "text"),
        (RESPONSE + frame(b"x", BINARY | FINAL | 0x40), "compression"),
        (RESPONSE + b"\x82\x7f" + b"\xff" * 8, "frame of"),
    ],
)
def test_other_streams_are_refused(stream, reason):
    with pytest.raises(InvalidStream, match=reason):
        WebSocketDecoder().feed(stream)


def test_gate_holds_what_follows_connect():
    gate = ConnectGate(is_websocket=False)
    assert gate.find_end(CONNECT[:5]) == (0, False)
    assert gate.find_end(CONNECT + SUBSCRIBE) == (len(CONNECT), True)


def test_gate_lets_the_request_and_frames_of_connect_pass():
    gate = ConnectGate(is_websocket=True)
    assert gate.find_end(REQUEST[:10]) == (10, False)
    first, second = frame(CONNECT[:4], mask=b"abcd"), frame(CONNECT[4:], mask=b"efgh")
    rest = REQUEST[10:] + first
    assert gate.find_end(rest) == (len(rest), False)
    assert gate.find_end(second + frame(SUBSCRIBE, mask=b"ijkl")) == (len(second), True)


@pytest.mark.parametrize("is_websocket", [False, True])
def test_gate_refuses_a_connect_that_is_too_large(is_websocket):
    header = b"\x10\xff\xff\x7f"
    assert PACKET_BYTES_MAX < 1 << 21
    with pytest.raises(InvalidStream, match="CONNECT of"):
        ConnectGate(is_websocket).find_end(REQUEST + frame(header) if is_websocket else header)


class Connection:
    """A client with WebSocket, seen by the proxy."""

    def __init__(self) -> None:
        self.observer = ProxyObserver(may_have_earlier_sessions=False)
        self.inspector = ConnectionInspector(self.observer, 1, is_websocket=True)
        self.client(REQUEST)
        self.broker(RESPONSE)

    def client(self, data: bytes) -> None:
        self.inspector.receive_from_client(data, 0.0)

    def broker(self, data: bytes) -> None:
        self.inspector.receive_from_broker(data, 0.0)


def test_subscriptions_of_websocket_clients_are_known():
    connection = Connection()
    connection.client(frame(CONNECT, mask=b"abcd"))
    was_answered = connection.inspector.is_answered
    connection.broker(frame(CONNACK))
    assert (was_answered, connection.inspector.is_answered) == (False, True)
    connection.client(frame(SUBSCRIBE, mask=b"abcd"))
    connection.broker(frame(SUBACK))
    assert connection.observer.subscribed_filters() == ("t/1",)
    assert connection.observer.is_complete


def test_refused_upgrade_leaves_nothing():
    observer = ProxyObserver(may_have_earlier_sessions=False)
    inspector = ConnectionInspector(observer, 1, is_websocket=True)
    inspector.receive_from_client(REQUEST, 0.0)
    inspector.receive_from_broker(b"HTTP/1.1 404 Not Found\r\n\r\n", 0.0)
    assert inspector.is_answered
    inspector.close(0.0)
    assert observer.is_complete


@pytest.mark.parametrize("is_answered", [False, True])
def test_subscription_in_the_frame_of_connect_makes_the_observer_incomplete(is_answered):
    """It reaches the broker before the proxy knows whether the client is accepted."""
    connection = Connection()
    connection.client(frame(CONNECT + SUBSCRIBE, mask=b"abcd"))
    if is_answered:
        connection.broker(frame(CONNACK))
    else:
        connection.inspector.close(0.0)
    assert not connection.observer.is_complete
    assert ("q", "open", [str(NEVER)]) in connection.observer.changes


def test_refused_client_leaves_no_doubt():
    connection = Connection()
    connection.client(frame(CONNECT + SUBSCRIBE, mask=b"abcd"))
    connection.broker(frame(bytes.fromhex("20020005")))
    connection.inspector.close(0.0)
    assert connection.observer.is_complete
