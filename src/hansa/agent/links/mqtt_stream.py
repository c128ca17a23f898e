"""A stream of bytes through a broker: numbered and acknowledged publications of QoS 0.

A broker silently drops messages that a client does not read in time. So the number of
unacknowledged publications is bounded, below the queue of a broker; waiting bytes are sent together
in larger publications. A missing number ends the stream: the link is opened again and the protocol
repairs the loss. Pure: no topics, no connections.

    OPEN                               the dialler requests a stream, until CHALLENGE arrives
    CHALLENGE     cookie (16)          the agent answers; it keeps no state yet
    CONFIRM       cookie (16), c (32)  proves that the dialler reads `down`
    ACCEPT        c (32), g (32)       the stream is open
    DATA          number (4)           the next bytes
    ACKNOWLEDGED  number (4)           so many DATA were handled, modulo 2^32
    CLOSE         token (16), text     the end, with the reason

Each side commits itself to a random token when the stream opens: c is the SHA-256 of the token
that its CLOSE will show, g that of the token in the agent's will. Other clients of the broker, even
those that read the link's topics, therefore cannot end a stream by publishing CLOSE or a will: a
wrong token is ignored and counted.
"""

import asyncio
import hashlib
import secrets
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hansa.agent.sockets import ByteProtocol
from hansa.errors import InvalidFrame

OPEN, ACCEPT, DATA, ACKNOWLEDGED, CLOSE, CHALLENGE, CONFIRM = range(7)
"""The first byte of a payload."""

TOKEN_BYTES = 16
COMMITMENT_BYTES = 32

FORGED_PUBLICATION = "ignored: a publication to a link's topic that is not the neighbour's"
"""Counter of publications that another client of the broker made."""

_SEQUENCE_HEADER = struct.Struct(">BI")
_SEQUENCE_MODULUS = 1 << 32

IN_FLIGHT_MAX = 64
"""Publications that may be unacknowledged. Mosquitto queues 1,000 for a client by default:
enough for 15 neighbours that all use their limit."""

ACK_INTERVAL = IN_FLIGHT_MAX // 4
"""Publications per acknowledgement."""

REASON_BYTES_MAX = 1_000


def commitment_of(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def close_payload(token: bytes, reason: str) -> bytes:
    """Return the publication that ends a stream."""
    return bytes((CLOSE,)) + token + reason.encode()[:REASON_BYTES_MAX]


def is_valid_close(payload: bytes, commitment: bytes) -> bool:
    """Whether a publication shows the token of a commitment."""
    token = payload[1 : 1 + TOKEN_BYTES]
    return payload[:1] == bytes((CLOSE,)) and secrets.compare_digest(
        commitment_of(token), commitment
    )


def close_reason(payload: bytes) -> str:
    """Return why the other side ended a stream."""
    said = payload[1 + TOKEN_BYTES :].decode(errors="replace")
    return f"closed by the other side: {said}".removesuffix(": ")


@dataclass(frozen=True, slots=True)
class CloseTokens:
    """Tokens by which each side proves its CLOSE."""

    peer_commitment: bytes
    """The other side's commitment."""
    own_token: bytes = field(default_factory=lambda: secrets.token_bytes(TOKEN_BYTES), repr=False)
    """This side's token, shown by its CLOSE."""

    @property
    def own_commitment(self) -> bytes:
        """Return the commitment to send when the stream opens."""
        return commitment_of(self.own_token)


class MqttStream(asyncio.Transport):
    """One stream, as the transport of a link."""

    def __init__(
        self,
        protocol: ByteProtocol,
        publish: Callable[[bytes], None],
        on_closed: Callable[[], None],
        chunk_bytes: int,
        tokens: CloseTokens,
        on_forged: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_closed` is called when the stream has ended, `on_forged` when a publication is not
        from the other side. One publication carries at most `chunk_bytes` of the stream."""
        super().__init__()
        self._protocol = protocol
        self._publish = publish
        self._on_closed = on_closed
        self._chunk_bytes = chunk_bytes
        self._tokens = tokens
        self._on_forged = on_forged
        self._unsent = bytearray()
        self._sent_count = 0
        self._acknowledged_count = 0
        self._received_count = 0
        self._acknowledgement_sent = 0  # of those received
        self._is_closing = False
        self._is_lost = False
        self._held: bytearray | None = None
        """During a pause, the received bytes that wait for its end."""

    def start(self) -> None:
        """Report to the link that the stream is open."""
        self._protocol.connection_made(self)

    # ------------------------------------------------------------ receiving

    def receive(self, payloads: Sequence[bytes]) -> None:
        """Process publications of this stream, in order."""
        data: list[bytes] = []
        reason: str | None = None
        for payload in payloads:
            try:
                reason = self._receive_payload(payload, data)
            except InvalidFrame as error:
                reason = str(error)
                self._publish(close_payload(self._tokens.own_token, reason))
            if reason is not None:
                break
        if self._held is not None and reason is None:
            self._held += b"".join(data)
            if self._received_count - self._acknowledgement_sent > 2 * IN_FLIGHT_MAX:
                reason = "more publications than may be unacknowledged"
                self._publish(close_payload(self._tokens.own_token, reason))
        elif data:
            self._deliver_bytes(b"".join(data))
        if reason is not None:
            self.close_silently(reason)

    def _receive_payload(self, payload: bytes, data: list[bytes]) -> str | None:
        """Process one publication; return why the stream has ended, if it has."""
        kind = payload[0] if payload else -1
        if kind == CLOSE and is_valid_close(payload, self._tokens.peer_commitment):
            return close_reason(payload)
        if kind in (OPEN, CHALLENGE, CONFIRM, ACCEPT):
            return None  # a repeated request
        if kind not in (DATA, ACKNOWLEDGED) or len(payload) < _SEQUENCE_HEADER.size:
            self._on_forged()
            return None
        _, sequence = _SEQUENCE_HEADER.unpack_from(payload)
        if kind == ACKNOWLEDGED:
            self._receive_ack(sequence)
            return None
        if sequence != self._received_count % _SEQUENCE_MODULUS:
            missing = (sequence - self._received_count) % _SEQUENCE_MODULUS
            raise InvalidFrame(
                f"the broker lost {missing} publications of this link: its max_queued_messages is"
                " too small, or its message_size_limit is below [link.mqtt] chunk_bytes"
            )
        self._received_count += 1
        data.append(payload[_SEQUENCE_HEADER.size :])
        return None

    def _receive_ack(self, sequence: int) -> None:
        count = (sequence - self._acknowledged_count) % _SEQUENCE_MODULUS
        if count > self._sent_count - self._acknowledged_count:
            self._on_forged()
            return
        self._acknowledged_count += count
        self._send_unsent()
        if not self._unsent and not self._is_closing:
            self._protocol.resume_writing()

    def _deliver_bytes(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._is_closing:
            room = memoryview(self._protocol.get_buffer(-1))
            count = min(len(room), len(view))
            room[:count] = view[:count]
            view = view[count:]
            self._protocol.buffer_updated(count)
        if self._received_count - self._acknowledgement_sent >= ACK_INTERVAL and not self._is_lost:
            self._acknowledgement_sent = self._received_count
            self._publish(
                _SEQUENCE_HEADER.pack(ACKNOWLEDGED, self._received_count % _SEQUENCE_MODULUS)
            )

    # ------------------------------------------------------------ called by the link

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send as much as may be unacknowledged; the rest follows acknowledgements."""
        if not self._is_closing:
            self._unsent += data
            self._send_unsent()

    def _send_unsent(self) -> None:
        while self._unsent and self._sent_count - self._acknowledged_count < IN_FLIGHT_MAX:
            header = _SEQUENCE_HEADER.pack(DATA, self._sent_count % _SEQUENCE_MODULUS)
            self._sent_count += 1
            chunk = self._unsent[: self._chunk_bytes]
            del self._unsent[: self._chunk_bytes]
            self._publish(header + chunk)
        if self._is_closing and not self._unsent:
            self.abort()

    def pause_reading(self) -> None:
        """Hold received bytes back until `resume_reading`, and do not acknowledge them."""
        if self._held is None:
            self._held = bytearray()

    def resume_reading(self) -> None:
        held, self._held = self._held, None
        if held:
            self._deliver_bytes(bytes(held))

    def get_write_buffer_size(self) -> int:
        """Return the number of waiting bytes."""
        return len(self._unsent)

    def is_closing(self) -> bool:
        """Whether it has ended, or will."""
        return self._is_closing

    def close(self) -> None:
        """End after waiting bytes are sent."""
        if not self._is_closing:
            self._is_closing = True
            self._send_unsent()

    def abort(self) -> None:
        """End now; waiting bytes are lost."""
        if not self._is_lost:
            self._publish(close_payload(self._tokens.own_token, ""))
            self._close(None)

    def close_silently(self, reason: str) -> None:
        """End without CLOSE: the other side knows, or is unreachable."""
        self._close(ConnectionError(reason))

    def _close(self, error: ConnectionError | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._unsent.clear()
        self._on_closed()
        # Not within a call from the link.
        asyncio.get_running_loop().call_soon(self._protocol.connection_lost, error)
