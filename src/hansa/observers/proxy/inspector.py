"""Follows one client connection through the proxy and reports its session to the observer.

    client                      broker              observer
      | CONNECT id, clean?, expiry |
      |--------------------------->|
      |        CONNACK present?    |
      |<---------------------------|  opened: the session is new, or goes on
      | SUBSCRIBE filters          |  subscribed, before the broker sees it
      |--------------------------->|
      |        SUBACK codes        |
      |<---------------------------|  unsubscribed: the filters that were refused
      | DISCONNECT expiry?         |
      |--------------------------->|  closed, with the expiry that counts

With WebSocket the packets are taken out of its frames first. A connection that cannot be followed
(not MQTT, a packet that is too large, a broker that answers nonsense) still passes unchanged. Its
client may then have subscriptions that are unknown, and the observer is told so.
"""

from collections.abc import Iterable

from hansa.errors import BrokerMisbehaved
from hansa.mqtt.fields import FieldCursor
from hansa.mqtt.properties import Properties, Property, find_property, read_properties
from hansa.mqtt.types import REFUSAL_CODE_MIN, PacketType
from hansa.observers.base import NO_CHANGE, ObserverOutput
from hansa.observers.proxy.observer import NEVER, ProxyObserver
from hansa.observers.proxy.scanner import InvalidStream, PacketScanner
from hansa.observers.proxy.websocket import WebSocketDecoder

PENDING_BYTES_MAX = 1 << 20
"""Bytes of requests of one client that the broker has not answered; with more the connection is not
followed any further."""

REQUEST_BYTES = 256
"""What a request counts for besides its filters."""

FROM_CLIENT = frozenset(
    (PacketType.CONNECT, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE, PacketType.DISCONNECT)
)
FROM_BROKER = frozenset((PacketType.CONNACK, PacketType.SUBACK, PacketType.UNSUBACK))
"""The packets that open, change and end sessions."""

_VERSION_311, _VERSION_5 = 4, 5
_CLEAN = 0x02


class ConnectionInspector:
    """One client connection. `number` distinguishes it from others with the same client id."""

    def __init__(self, observer: ProxyObserver, number: int, is_websocket: bool = False) -> None:
        self._observer = observer
        self._number = number
        decoders = (WebSocketDecoder(), WebSocketDecoder()) if is_websocket else (None, None)
        self.from_client = PacketScanner(FROM_CLIENT, decoders[0])
        self.from_broker = PacketScanner(FROM_BROKER, decoders[1])
        self.is_answered = False
        """Whether the broker has answered the CONNECT, in some way."""
        self.client_id = ""
        self._level = 0  # of the protocol: 3, 4 or 5; 0 before CONNECT
        self._expiry_s = 0
        self._is_open = False
        self._problem = ""  # why the connection is no longer followed
        self._pending: dict[tuple[PacketType, int], tuple[list[str], list[str]]] = {}
        """By type and packet id: the filters of a request, and those that it added."""
        self._pending_bytes = 0

    def receive_from_client(self, data: bytes, now: float) -> ObserverOutput:
        """Read bytes that go to the broker."""
        if self._problem:
            return NO_CHANGE
        try:
            packets = self.from_client.feed(data)
            if not packets:
                return NO_CHANGE
            self._receive(packets)
        except (InvalidStream, BrokerMisbehaved) as error:
            self.stop_following(str(error))
        return self._observer.drain(now)

    def receive_from_broker(self, data: bytes, now: float) -> ObserverOutput:
        """Read bytes that go to the client."""
        if self._problem and self._is_open:
            return NO_CHANGE
        try:
            packets = self.from_broker.feed(data)
            self.is_answered = self.from_broker.has_begun
            if not packets:
                return NO_CHANGE
            self._receive(packets)
        except (InvalidStream, BrokerMisbehaved) as error:
            self.is_answered = True
            self.stop_following(str(error))
            if not self._is_open and self._level:
                self._open(is_present=True)  # the broker answered something
        return self._observer.drain(now)

    def stop_following(self, reason: str) -> None:
        """Forward only, from now on: the client may have subscriptions that are unknown."""
        self._problem = reason
        if self._is_open:
            self._observer.on_lost_track(self.client_id, reason)

    def close(self, now: float) -> ObserverOutput:
        """The connection has ended."""
        if self._problem and self._level and not self.is_answered:
            # Something followed the CONNECT in the same WebSocket frame: it may be in force.
            self._open(is_present=True)
        if not self._is_open:
            return NO_CHANGE
        self._is_open = False
        return self._observer.on_closed(self.client_id, self._number, self._expiry_s, now)

    def _receive(self, packets: Iterable[tuple[PacketType, bytes]]) -> None:
        for kind, body in packets:
            self._receive_packet(kind, FieldCursor(body, 0, len(body), kind.name))

    def _receive_packet(self, kind: PacketType, body: FieldCursor) -> None:
        match kind:
            case PacketType.CONNECT:
                self._read_connect(body)
            case PacketType.CONNACK:
                self._read_connack(body)
            case PacketType.SUBSCRIBE:
                self._read_request(kind, body)
            case PacketType.UNSUBSCRIBE:
                self._read_request(kind, body)
            case PacketType.SUBACK:
                filters, added, codes = self._read_answer(PacketType.SUBSCRIBE, kind, body)
                granted = {f for f, c in zip(filters, codes, strict=True) if c < REFUSAL_CODE_MIN}
                refused = self._without_requested([f for f in added if f not in granted])
                self._observer.on_unsubscribed(self.client_id, self._number, refused)
            case PacketType.UNSUBACK:
                filters, _, codes = self._read_answer(PacketType.UNSUBSCRIBE, kind, body)
                ended = [f for f, c in zip(filters, codes, strict=True) if c < REFUSAL_CODE_MIN]
                ended = self._without_requested(ended)
                self._observer.on_unsubscribed(self.client_id, self._number, ended)
            case _:
                self._read_disconnect(body)

    def _read_connect(self, body: FieldCursor) -> None:
        if self._level:
            raise InvalidStream("a second CONNECT")
        body.read_binary()  # MQTT, or MQIsdp of version 3.1
        self._level = body.read_byte() & 0x7F
        flags = body.read_byte()
        body.read_integer(2)
        found = self._properties(body, PacketType.CONNECT)
        self.client_id = body.read_text()
        if self._level == _VERSION_5:
            self._expiry_s = _expiry(found, 0)
        else:
            self._expiry_s = 0 if flags & _CLEAN else NEVER

    def _read_connack(self, body: FieldCursor) -> None:
        is_present, code = bool(body.read_byte() & 1), body.read_byte()
        if code or self._is_open:
            return
        if not self._level:  # the broker understood a CONNECT that the proxy does not
            self._observer.on_unknown_client(self._problem)
            return
        found = self._properties(body, PacketType.CONNACK)
        assigned = find_property(found, Property.ASSIGNED_CLIENT_IDENTIFIER, self.client_id)
        self.client_id = str(assigned) or f"\0{self._number}"
        self._expiry_s = _expiry(found, self._expiry_s)
        if self._level < _VERSION_311:  # CONNACK of version 3.1 does not say it
            is_present = self._expiry_s > 0 and self._observer.has_session(self.client_id)
        self._open(is_present)

    def _open(self, is_present: bool) -> None:
        self._is_open = True
        self._observer.on_opened(self.client_id, self._number, is_present, self._expiry_s)
        if self._problem:
            self._observer.on_lost_track(self.client_id, self._problem)

    def _read_request(self, kind: PacketType, body: FieldCursor) -> None:
        packet_id = body.read_packet_id()
        if not self._is_open or (kind, packet_id) in self._pending:
            raise InvalidStream(f"{kind.name} before CONNACK, or with a packet id that is in use")
        self._properties(body, kind)
        filters: list[str] = []
        while body.remaining:
            filters.append(body.read_text())
            if kind is PacketType.SUBSCRIBE:
                body.read_byte()
        self._pending_bytes += REQUEST_BYTES + sum(map(len, filters))
        if self._pending_bytes > PENDING_BYTES_MAX:
            raise InvalidStream(f"more than {PENDING_BYTES_MAX} bytes of unanswered requests")
        added: list[str] = []
        if kind is PacketType.SUBSCRIBE:
            added = self._observer.on_subscribed(self.client_id, filters)
        self._pending[kind, packet_id] = filters, added

    def _read_answer(
        self, request: PacketType, kind: PacketType, body: FieldCursor
    ) -> tuple[list[str], list[str], bytes]:
        packet_id = body.read_packet_id()
        self._properties(body, kind)
        if (request, packet_id) not in self._pending:
            raise InvalidStream(f"{kind.name} {packet_id} without a request")
        filters, added = self._pending.pop((request, packet_id))
        self._pending_bytes -= REQUEST_BYTES + sum(map(len, filters))
        codes = body.read_rest()
        if kind is PacketType.UNSUBACK and self._level < _VERSION_5:
            codes = bytes(len(filters))  # only version 5 has them
        if len(codes) != len(filters):
            raise InvalidStream(f"{kind.name} with {len(codes)} codes for {len(filters)} filters")
        return filters, added, codes

    def _without_requested(self, ended: list[str]) -> list[str]:
        """Return those of the ended filters that the client has not subscribed to again meanwhile.
        The answer to that SUBSCRIBE decides about the others."""
        requested = {
            topic_filter: added
            for (kind, _), (filters, added) in self._pending.items()
            if kind is PacketType.SUBSCRIBE
            for topic_filter in filters
        }
        for topic_filter in ended:
            if topic_filter in requested:
                requested[topic_filter].append(topic_filter)
        return [each for each in ended if each not in requested]

    def _read_disconnect(self, body: FieldCursor) -> None:
        if self._level == _VERSION_5 and body.remaining > 1:
            body.read_byte()
            self._expiry_s = _expiry(self._properties(body, PacketType.DISCONNECT), self._expiry_s)
            self._observer.on_disconnecting(self.client_id, self._number, self._expiry_s)

    def _properties(self, body: FieldCursor, kind: PacketType) -> Properties:
        return read_properties(body, kind) if self._level == _VERSION_5 else ()


def _expiry(found: Properties, otherwise: int) -> int:
    value = find_property(found, Property.SESSION_EXPIRY_INTERVAL, otherwise)
    assert isinstance(value, int)
    return value
