"""A stream of bytes through a broker: publications of QoS 0 that are numbered and confirmed.

A broker drops what a client does not take in time, without a word. So only so many publications are
under way that the other side has not confirmed, fewer than a broker queues; what has to wait leaves
together, in larger ones. A number that is missing ends the stream: the link is made anew, and
whoever is owed something asks for it again. Nothing here knows topics or connections.

    OPEN                   may a stream begin? Asked by whoever dials, until ACCEPT comes
    ACCEPT                 it has begun
    DATA   number (4)      the next bytes
    TAKEN  number (4)      so many DATA were handled, modulo 2^32
    CLOSE                  the end, with the reason as text; also for a stream that nobody knows
"""

import asyncio
import struct
from collections.abc import Callable, Sequence

from hansa.errors import InvalidFrame

OPEN, ACCEPT, DATA, TAKEN, CLOSE = range(5)
"""The first byte of a payload."""

_NUMBER = struct.Struct(">BI")
_NUMBERS = 1 << 32

UNDER_WAY_MAX = 64
"""Publications that may be unconfirmed. Mosquitto queues 1,000 for a client unless told otherwise:
enough for 15 neighbours that all fill theirs."""

CONFIRM_COUNT = UNDER_WAY_MAX // 4
"""Publications until one confirms them."""

REASON_BYTES_MAX = 1_000


def closing(reason: str) -> bytes:
    """Return the publication that ends a stream."""
    return bytes((CLOSE,)) + reason.encode()[:REASON_BYTES_MAX]


def closed_because(payload: bytes) -> str:
    """Return why the other side ended a stream."""
    said = payload[1:].decode(errors="replace")
    return f"closed by the other side: {said}".removesuffix(": ")


class MqttStream(asyncio.Transport):
    """One stream, as the transport of a link."""

    def __init__(
        self,
        protocol: asyncio.BufferedProtocol,
        publish: Callable[[bytes], None],
        ended: Callable[[], None],
        chunk_bytes: int,
    ) -> None:
        """Prepare; `ended` is called when the stream stands no more. One publication has so many
        bytes of it at most."""
        super().__init__()
        self._protocol = protocol
        self._publish = publish
        self._ended = ended
        self._chunk_bytes = chunk_bytes
        self._unsent = bytearray()
        self._sent = 0
        self._confirmed = 0
        self._received = 0
        self._receipted = 0  # of those received
        self._closing = False
        self._lost = False

    def begin(self) -> None:
        """Tell the link that the stream stands."""
        self._protocol.connection_made(self)

    # ------------------------------------------------------------ what arrives

    def receive(self, payloads: Sequence[bytes]) -> None:
        """Take publications of this stream, in the order they came."""
        data: list[bytes] = []
        reason: str | None = None
        for payload in payloads:
            try:
                reason = self._take(payload, data)
            except InvalidFrame as error:
                reason = str(error)
                self._publish(closing(reason))
            if reason is not None:
                break
        if data:
            self._hand_on(b"".join(data))
        if reason is not None:
            self.lose(reason)

    def _take(self, payload: bytes, data: list[bytes]) -> str | None:
        """Take one publication; return why the stream has ended, if it has."""
        kind = payload[0] if payload else -1
        if kind == CLOSE:
            return closed_because(payload)
        if kind in (OPEN, ACCEPT):
            return None  # it was asked for more than once
        if kind not in (DATA, TAKEN) or len(payload) < _NUMBER.size:
            raise InvalidFrame(f"a publication of {len(payload)} bytes that is none of a link's")
        _, number = _NUMBER.unpack_from(payload)
        if kind == TAKEN:
            self._confirm(number)
            return None
        if number != self._received % _NUMBERS:
            missing = (number - self._received) % _NUMBERS
            raise InvalidFrame(
                f"the broker lost {missing} publications of this link: its max_queued_messages is"
                " too small, or its message_size_limit is below [link.mqtt] chunk_bytes"
            )
        self._received += 1
        data.append(payload[_NUMBER.size :])
        return None

    def _confirm(self, number: int) -> None:
        count = (number - self._confirmed) % _NUMBERS
        if count > self._sent - self._confirmed:
            raise InvalidFrame(f"{count} publications confirmed that were not under way")
        self._confirmed += count
        self._send()
        if not self._unsent and not self._closing:
            self._protocol.resume_writing()

    def _hand_on(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._closing:
            room = memoryview(self._protocol.get_buffer(-1))
            count = min(len(room), len(view))
            room[:count] = view[:count]
            view = view[count:]
            self._protocol.buffer_updated(count)
        if self._received - self._receipted >= CONFIRM_COUNT and not self._lost:
            self._receipted = self._received
            self._publish(_NUMBER.pack(TAKEN, self._received % _NUMBERS))

    # ------------------------------------------------------------ called by the link

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send what may be under way; the rest follows as room is confirmed."""
        if not self._closing:
            self._unsent += data
            self._send()

    def _send(self) -> None:
        while self._unsent and self._sent - self._confirmed < UNDER_WAY_MAX:
            header = _NUMBER.pack(DATA, self._sent % _NUMBERS)
            self._sent += 1
            chunk = self._unsent[: self._chunk_bytes]
            del self._unsent[: self._chunk_bytes]
            self._publish(header + chunk)
        if self._closing and not self._unsent:
            self.abort()

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait."""
        return len(self._unsent)

    def is_closing(self) -> bool:
        """Whether it has ended, or will."""
        return self._closing

    def close(self) -> None:
        """End when what waits has been sent."""
        if not self._closing:
            self._closing = True
            self._send()

    def abort(self) -> None:
        """End now; what waits is lost."""
        if not self._lost:
            self._publish(closing(""))
            self._end(None)

    def lose(self, reason: str) -> None:
        """End without a word to the other side: it knows, or cannot be reached."""
        self._end(ConnectionError(reason))

    def _end(self, error: ConnectionError | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._unsent.clear()
        self._ended()
        # Never in the midst of a call of the link's.
        asyncio.get_running_loop().call_soon(self._protocol.connection_lost, error)
