"""Recognises the agent's own publications when a broker of MQTT 3.1.1 sends them back.

MQTT 3.1.1 has no No Local option, so an injected publication would be captured as if a client had
published it and would circulate endlessly. Nothing but topic and payload identifies it, so the
filter *counts*: of the equal publications that arrive, as many are echoes as copies are expected.
If a client publishes the same content at the same time, the filter cannot say which copy is the
echo and need not: the right number is forwarded, and the copies are equal.

The filter also removes the extra copies of a client's publication that several subscriptions match:
MQTT 3.1.1 does not distinguish them, and their number is known.

An echo may never arrive, because a broker drops messages for a slow client. So it is expected for a
limited time; afterwards an equal publication counts as a client's again.

In a session that lasts, the broker queues echoes of QoS 1 and 2 while the agent is disconnected, so
these stay expected. A publication is expected back once, however often it is sent: if the broker
took a repeated PUBLISH for a new publication, the second echo is forwarded. The opposite would lose
a client's publication (decision 0028). An echo that the broker sends again, because it did not get
our acknowledgement, is recognised by its packet id.

    PUBLISH 3 "x"       injected, expected back once; PUBACK 3 is lost
    PUBLISH 7 "x"       the echo; PUBACK 7 is lost
    (new connection, same session)
    PUBLISH 7 "x" DUP   the same echo again: PUBACK 7, not captured
    PUBLISH 3 "x" DUP   injected again, not expected again
    PUBLISH 8 "x"       an echo or a client's publication: in doubt it is captured
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from hashlib import blake2b

import msgspec

from hansa.mqtt.packets import PublishPacket

ECHO_EXPECTED_S = 10.0
"""Least number of seconds for which an echo is expected; the most is twice as long."""

ECHO_RESUMED_S = 60.0
"""The same for echoes of earlier connections, from the time when the session is resumed: they wait
behind other queued publications, and NATS sends unacknowledged ones again after 30 s."""

ECHOES_MAX = 1 << 17
"""Different publications whose echoes are expected at a time."""

RECEIVED_MAX = 8_192
"""Echoes that are remembered in case the acknowledgement is lost: more than can be in flight."""


class SavedEchoes(msgspec.Struct, array_like=True):
    """Echoes of QoS 1 and 2 at the end of an incarnation whose session lasts."""

    expected: list[tuple[bytes, int]]
    """Content and number of copies."""
    received: list[tuple[int, int, bytes]]
    """Packet id, QoS and content of echoes that the broker may send again."""
    injected: list[int] = []
    """Indexes of pending inbox entries whose echoes are accounted for."""


class _ExpectedCopies:
    """Number of expected copies by content, in two generations; the older one expires as a
    whole."""

    def __init__(self) -> None:
        self._current: Counter[bytes] = Counter()
        self._previous: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._current) + len(self._previous)

    def add(self, content: bytes, copies: int) -> None:
        self._current[content] += copies

    def consume(self, content: bytes) -> bool:
        for generation in (self._previous, self._current):
            if content in generation:
                generation[content] -= 1
                if not generation[content]:
                    del generation[content]
                return True
        return False

    def rotate(self) -> int:
        """Start a generation; return how many copies expire."""
        expired = self._previous.total()
        self._previous, self._current = self._current, Counter()
        return expired

    def total(self) -> Counter[bytes]:
        return self._previous + self._current

    def renew(self) -> None:
        """Expect everything as if it had been added now."""
        self._current, self._previous = self.total(), Counter()


class EchoFilter:
    """Expected copies, and echoes that have arrived, of one session."""

    def __init__(self, clock: Callable[[], float], saved: SavedEchoes | None = None) -> None:
        """`saved` is the state of the previous incarnation, if the session is still the same."""
        self._clock = clock
        self._queued = _ExpectedCopies()
        """Copies of QoS 1 and 2, which a session that lasts keeps."""
        self._unqueued = _ExpectedCopies()
        """Copies of QoS 0."""
        self._received: OrderedDict[int, tuple[int, bytes, int]] = OrderedDict()
        """QoS, content and connection of echoes by packet id; of QoS 2 until PUBREL."""
        self._connection = 0
        self._rotate_at = 0.0
        self.missed_count = 0
        """Copies that did not arrive in time."""
        if saved is not None:
            for content, copies in saved.expected:
                self._queued.add(content, copies)
            for packet_id, qos, content in saved.received:
                self._received[packet_id] = qos, content, 0
            self.on_session_resumed()

    @property
    def is_full(self) -> bool:
        """Whether no more should be published before some echoes have arrived or expired."""
        self._rotate_if_due()
        return len(self._queued) + len(self._unqueued) >= ECHOES_MAX

    def on_session_resumed(self) -> None:
        """A connection resumes the session. Echoes of QoS 0 were not queued."""
        self._connection += 1
        self._unqueued = _ExpectedCopies()
        self._queued.renew()
        self._rotate_at = self._clock() + ECHO_RESUMED_S

    def expect(self, topic: str, payload: bytes, copies: int, qos: int) -> int:
        """Expect so many copies of a publication. Return how many are in doubt, because too many
        are expected already."""
        if copies <= 0:
            return 0
        if self.is_full:
            return copies
        expected = self._queued if qos else self._unqueued
        expected.add(_content(topic, payload), copies)
        return 0

    def consume_echo(self, publish: PublishPacket) -> bool:
        """Return whether a publication is an echo; if so, that echo is no longer expected."""
        self._rotate_if_due()
        queued, unqueued = self._queued, self._unqueued
        if not (queued or unqueued or self._received):
            return False
        content, qos = _content(publish.topic, publish.payload), publish.qos
        if qos and self._is_received_again(publish, content):
            return True
        # Some brokers deliver everything with the QoS of the subscription.
        first, second = (queued, unqueued) if qos else (unqueued, queued)
        is_echo = first.consume(content) or second.consume(content)
        if is_echo and qos:
            self._remember(publish.packet_id, qos, content)
        return is_echo

    def on_released(self, packet_id: int) -> None:
        """PUBREL arrived: the broker may use the packet id for another publication."""
        self._received.pop(packet_id, None)

    def save(self) -> SavedEchoes:
        """Return what the next incarnation needs to know."""
        received = [(each, qos, content) for each, (qos, content, _) in self._received.items()]
        return SavedEchoes(list(self._queued.total().items()), received)

    def _is_received_again(self, publish: PublishPacket, content: bytes) -> bool:
        """Whether the broker sends an echo again. At QoS 1 only the DUP flag distinguishes that
        from another publication under the same packet id."""
        known = self._received.get(publish.packet_id)
        if known is None:
            return False
        qos, known_content, connection = known
        is_same = (
            (qos, known_content) == (publish.qos, content)
            and connection < self._connection
            and (publish.dup or qos == 2)
        )
        if is_same:
            self._remember(publish.packet_id, qos, content)
        return is_same

    def _remember(self, packet_id: int, qos: int, content: bytes) -> None:
        self._received[packet_id] = qos, content, self._connection
        self._received.move_to_end(packet_id)
        if len(self._received) > RECEIVED_MAX:
            self._received.popitem(last=False)

    def _rotate_if_due(self) -> None:
        late = self._clock() - self._rotate_at
        if late < 0:
            return
        for _ in range(2 if late >= ECHO_EXPECTED_S else 1):
            self.missed_count += self._queued.rotate() + self._unqueued.rotate()
        self._rotate_at = self._clock() + ECHO_EXPECTED_S


def _content(topic: str, payload: bytes) -> bytes:
    """Return a digest of topic and payload."""
    state = blake2b(payload, digest_size=16)
    name = topic.encode()
    state.update(b",%d," % len(name))
    state.update(name)
    return state.digest()
