"""A client that carries MQTT in WebSocket frames."""

import base64
import os
import socket

from hansa.observers.proxy.websocket import WebSocketDecoder

TIMEOUT_S = 60.0
REQUEST = (
    "GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Key: {}\r\n\r\n"
)


class WebSocketClient:
    """A connection whose frames hold the bytes of one `send` each."""

    def __init__(self, connected: socket.socket) -> None:
        """Ask for WebSocket; raise InvalidStream if the server refuses."""
        self._socket = connected
        self._socket.settimeout(TIMEOUT_S)
        self._decoder = WebSocketDecoder()
        self._received = b""
        self._socket.sendall(REQUEST.format(base64.b64encode(os.urandom(16)).decode()).encode())
        while not self._decoder.is_between_frames:
            self._received += self._decoder.feed(self._read())

    def _read(self) -> bytes:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionError("closed by the other side")
        return data

    def send(self, data: bytes) -> None:
        assert len(data) < 126
        mask = os.urandom(4)
        body = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
        self._socket.sendall(bytes([0x82, 0x80 | len(data)]) + mask + body)

    def receive(self, size: int) -> bytes:
        """Return the next bytes of MQTT."""
        while len(self._received) < size:
            self._received += self._decoder.feed(self._read())
        found, self._received = self._received[:size], self._received[size:]
        return found

    def close(self) -> None:
        self._socket.close()


def connect_packet(client_id: str, is_clean: bool = True) -> bytes:
    """Return a CONNECT of MQTT 3.1.1."""
    name = client_id.encode()
    flags = 2 if is_clean else 0
    body = b"\0\x04MQTT\x04" + bytes([flags]) + b"\0\0" + len(name).to_bytes(2, "big") + name
    return bytes([0x10, len(body)]) + body


def subscribe_packet(topic_filter: str) -> bytes:
    """Return a SUBSCRIBE of MQTT 3.1.1 at QoS 1."""
    name = topic_filter.encode()
    body = b"\0\x01" + len(name).to_bytes(2, "big") + name + b"\x01"
    return bytes([0x82, len(body)]) + body
