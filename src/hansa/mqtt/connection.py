"""The state machine of one connection to a broker, from CONNECT to the end.

`handle(event, now)` applies one input and returns the effects in the order to perform them;
`next_deadline()` says when TimerFired is due. A broker cannot make it raise: a violation of MQTT
ends the connection with ProtocolViolation. An invalid command raises ValueError. That is a bug of
the caller, and the connection must not be used any further.

The caller decides what most client libraries hide:

- Nothing is acknowledged unless the caller requests it, so a publication can be on disk before.
- The caller chooses the packet ids of publications, so it can find them again after a crash.
  SUBSCRIBE and UNSUBSCRIBE have packet ids of their own (`in_flight`).
- Nothing is resent. After a reconnection the caller requests what the broker may not have:
  PUBLISH with `dup`, or PUBREL alone. A PUBREL for an id of an earlier connection is always
  allowed, and one from the broker is always reported.

An MQTT session outlives connections; this object does not. A reconnection is a new
ClientConnection, so a late acknowledgement goes to the ended connection and is ignored there. On
the next connection it could confirm another publication with the same id.
`agent.broker.connection.Connection` is the shell that carries the bytes.
"""

from dataclasses import dataclass
from itertools import groupby

from hansa.errors import BrokerMisbehaved
from hansa.mqtt import effects, inputs, limits, packets
from hansa.mqtt.effects import Effect
from hansa.mqtt.established import EstablishedConnection
from hansa.mqtt.inputs import Input
from hansa.mqtt.options import ConnectOptions
from hansa.mqtt.packet_reader import PacketReader
from hansa.mqtt.packet_writer import PacketWriter
from hansa.mqtt.properties import Properties, Property
from hansa.mqtt.types import (
    REFUSAL_CODE_MIN,
    Reason,
    Version,
    describe_connack_code,
    describe_reason,
)

_RETURN_CODE_BAD_VERSION = 1  # a return code of 3.1.1


@dataclass(frozen=True, slots=True)
class _NotOpened:
    """The transport is not open yet."""


@dataclass(frozen=True, slots=True)
class _AwaitingConnAck:
    """CONNECT was sent."""

    deadline: float


@dataclass(frozen=True, slots=True)
class _ConnectionEnded:
    reason: str


class ClientConnection:
    """The protocol state of one connection."""

    __slots__ = ("_options", "_reader", "_state", "_writer")

    def __init__(self, options: ConnectOptions) -> None:
        self._options = options
        self._reader = PacketReader(options.version, options.packet_bytes_max)
        self._writer = PacketWriter(options.version)
        self._state: _NotOpened | _AwaitingConnAck | EstablishedConnection | _ConnectionEnded = (
            _NotOpened()
        )

    @property
    def quota(self) -> int:
        """Publications of QoS 1 and 2 that may be sent now."""
        return self._state.quota if isinstance(self._state, EstablishedConnection) else 0

    @property
    def request_quota(self) -> int:
        """Subscribe and Unsubscribe commands that are accepted now."""
        return self._state.request_quota if isinstance(self._state, EstablishedConnection) else 0

    def next_deadline(self) -> float | None:
        """Return when TimerFired is due. Read it again after every input."""
        state = self._state
        if isinstance(state, EstablishedConnection):
            return state.keep_alive.next_deadline()
        return state.deadline if isinstance(state, _AwaitingConnAck) else None

    def handle(self, event: Input, now: float) -> list[Effect]:
        """Apply one input and return the effects, in order."""
        state = self._state
        if isinstance(state, EstablishedConnection):
            match event:  # traffic first: everything else is rare
                case inputs.Received(data):
                    return self._receive(data, now)
                case inputs.Publish(batch):
                    return state.publish(batch, now)
                case inputs.SendHandshakePackets(batch):
                    return state.send_handshake_packets(batch, now)
            return self._handle_online(event, state, now)
        return self._handle_offline(event, state, now)

    def _handle_online(
        self, event: Input, online: EstablishedConnection, now: float
    ) -> list[Effect]:
        match event:
            case inputs.TimerFired() if online.keep_alive.has_timed_out(now):
                text = f"no response for {self._options.answer_timeout:g} seconds"
                return self._end_connection(effects.Disconnected(None, text, by_broker=False))
            case inputs.TimerFired() if not online.keep_alive.is_ping_due(now):
                return []
            case inputs.TimerFired() | inputs.Ping():
                return online.ping(now)
            case inputs.Subscribe():
                return online.subscribe(event, now)
            case inputs.Unsubscribe():
                return online.unsubscribe(event, now)
            case inputs.Disconnect():
                return self._disconnect(event)
            case inputs.Closed(reason):
                return self._end_connection(effects.Disconnected(None, reason, by_broker=False))
        raise ValueError(f"{type(event).__name__} on an established connection")

    def _handle_offline(
        self, event: Input, state: _NotOpened | _AwaitingConnAck | _ConnectionEnded, now: float
    ) -> list[Effect]:
        match event, state:
            case inputs.Opened(), _NotOpened():
                self._state = _AwaitingConnAck(now + self._options.answer_timeout)
                return [effects.Write(self._writer.encode(self._options.make_connect_packet()))]
            case inputs.Received(data), _AwaitingConnAck():
                return self._receive(data, now)
            case inputs.Disconnect(), _AwaitingConnAck():
                return self._disconnect(event)
            case ((inputs.Closed() | inputs.TimerFired()), _AwaitingConnAck(due)):
                return self._end_without_connack(event, due, now)
            case ((inputs.Received() | inputs.Closed() | inputs.TimerFired()), _ConnectionEnded()):
                return []  # the end was reported already
            case inputs.Publish(batch), _ConnectionEnded(reason):
                return [effects.PublishNotSent(batch, reason, connection_ended=True)]
            case _, _ConnectionEnded(reason) if not isinstance(event, inputs.Opened):
                return [effects.InputIgnored(f"{type(event).__name__}: {reason}")]
        raise ValueError(f"{type(event).__name__} in state {state}")

    # ------------------------------------------------------------ received packets

    def _receive(self, data: bytes | bytearray | memoryview, now: float) -> list[Effect]:
        if isinstance(self._state, EstablishedConnection):
            self._state.keep_alive.on_received(now)
        decoded: list[packets.AnyPacket] = []
        output: list[Effect] = []
        fault: BrokerMisbehaved | None = None
        try:
            self._reader.feed(data, decoded)
        except BrokerMisbehaved as error:
            fault = error
        try:
            if len(decoded) == 1:
                self._receive_batch(type(decoded[0]), decoded, output, now)
            else:
                for kind, run in groupby(decoded, type):
                    self._receive_batch(kind, list(run), output, now)
        except BrokerMisbehaved as error:
            fault = error  # in a packet before the malformed one, if there was one
        if fault is not None and not isinstance(self._state, _ConnectionEnded):
            output += self._end_with_violation(fault)
        return output

    def _receive_batch(
        self, packet_class: type, batch: list[packets.AnyPacket], output: list[Effect], now: float
    ) -> None:
        """Handle packets of one type. Packets after the end are ignored."""
        state = self._state
        if type(state) is EstablishedConnection and packet_class is not packets.DisconnectPacket:
            state.receive(packet_class, batch, output, now)
            return
        match batch[0], state:
            case packets.DisconnectPacket(reason, stated), EstablishedConnection():
                text = _append_broker_text(describe_reason(reason), stated)
                output += self._end_connection(effects.Disconnected(reason, text, by_broker=True))
            case packets.ConnAckPacket() as connack, _AwaitingConnAck() if len(batch) == 1:
                output += self._receive_connack(connack, now)
            case _, _AwaitingConnAck():
                problem = f"{packets.packet_name(packet_class)}: expected exactly one CONNACK first"
                raise BrokerMisbehaved(problem, Reason.PROTOCOL_ERROR)

    def _receive_connack(self, connack: packets.ConnAckPacket, now: float) -> list[Effect]:
        if connack.reason:
            text = _append_broker_text(describe_connack_code(connack.reason), connack.properties)
            return self._end_connection(self._make_refusal(connack.reason, text))
        if connack.session_present and self._options.clean_start:  # [MQTT-3.2.2-2]
            raise BrokerMisbehaved(
                "CONNACK: session present, although clean start was requested",
                Reason.PROTOCOL_ERROR,
            )
        granted = limits.limits_from_connack(connack, self._options)
        self._writer.set_packet_bytes_max(granted.packet_bytes_max)
        self._state = EstablishedConnection(self._options, granted, self._writer, now)
        return [effects.Connected(connack.session_present, granted)]

    # ------------------------------------------------------------ ending

    def _end_without_connack(
        self, event: inputs.Closed | inputs.TimerFired, deadline: float, now: float
    ) -> list[Effect]:
        if isinstance(event, inputs.Closed):
            return self._end_connection(self._make_refusal(None, event.reason))
        if now < deadline:
            return []
        text = f"no CONNACK within {self._options.answer_timeout:g} seconds"
        is_suspect = self._options.version is Version.V5
        return self._end_connection(effects.ConnectRefused(None, text, is_suspect, timed_out=True))

    def _make_refusal(self, reason: int | None, text: str) -> effects.ConnectRefused:
        """Make the refusal, and decide whether another protocol version is worth a try."""
        version_5 = self._options.version is Version.V5
        may_be_version = version_5 or self._options.bridge
        if may_be_version and reason not in (None, Reason.UNSUPPORTED_PROTOCOL_VERSION):
            # Only a broker without MQTT 5 answers it with a return code of 3.1.1.
            may_be_version = (
                reason < REFUSAL_CODE_MIN if version_5 else reason == _RETURN_CODE_BAD_VERSION
            )
        return effects.ConnectRefused(reason, text, may_be_version)

    def _disconnect(self, command: inputs.Disconnect) -> list[Effect]:
        packet_properties: Properties = ()
        if command.session_expiry is not None:
            packet_properties = ((Property.SESSION_EXPIRY_INTERVAL, command.session_expiry),)
        data = self._writer.encode(packets.DisconnectPacket(command.reason, packet_properties))
        ending = effects.Disconnected(command.reason, "disconnected by request", by_broker=False)
        return self._end_connection(ending, effects.Write(data))

    def _end_with_violation(self, fault: BrokerMisbehaved) -> list[Effect]:
        """Disconnect; in MQTT 5 with the reason."""
        ending = effects.ProtocolViolation(fault.reason, str(fault))
        if self._options.version is Version.V311:
            return self._end_connection(ending)
        data = self._writer.encode(packets.DisconnectPacket(fault.reason))
        return self._end_connection(ending, effects.Write(data))

    def _end_connection(self, ending: effects.ConnectionEnd, *last: effects.Write) -> list[Effect]:
        self._state = _ConnectionEnded(ending.text)
        return [ending, *last, effects.Close()]


def _append_broker_text(text: str, packet_properties: Properties) -> str:
    """Append the broker's reason string and server reference, if any."""
    shown = (Property.REASON_STRING, Property.SERVER_REFERENCE)
    return ", ".join([text, *(f"{value!r}" for name, value in packet_properties if name in shown)])
