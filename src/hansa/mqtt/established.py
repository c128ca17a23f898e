"""A connection between CONNACK and its end: commands become packets, packets become notifications.

It enforces what both sides agreed. A command that violates it raises ValueError; a packet that
violates it makes `receive` raise BrokerMisbehaved. `connection` handles start and end.

The keep-alive timer counts silence of either side. MQTT only forbids silence of the client, but a
client that publishes all the time would then never ping, and never notice a broker that hangs.
"""

from collections.abc import Sequence
from typing import Any

from hansa.errors import BrokerMisbehaved
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.effects import Effect
from hansa.mqtt.in_flight import REQUEST_IDS_MIN, InFlightHandshakes, PendingRequests
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.options import ConnectOptions
from hansa.mqtt.packet_writer import PacketTooLarge, PacketWriter
from hansa.mqtt.packets import PlainPublish, PubCompPacket, PublishPacket, PubRelPacket
from hansa.mqtt.properties import Properties, Property, find_property
from hansa.mqtt.types import PACKET_IDS_MAX, Reason, Version

PING_AFTER_FRACTION = 0.5
"""A PINGREQ is due after this fraction of the keep alive, well before the broker times out."""

_PING = packets.PingReqPacket()


class EstablishedConnection:
    __slots__ = (
        "_maximum_reported",
        "_inbound_handshakes",
        "_inbound_max",
        "_broker_limits",
        "_outbound_handshakes",
        "_requests",
        "_writer",
        "keep_alive",
    )

    def __init__(
        self, options: ConnectOptions, broker_limits: BrokerLimits, writer: PacketWriter, now: float
    ) -> None:
        version_5 = options.version is Version.V5
        self._inbound_max = options.receive_maximum if version_5 else PACKET_IDS_MAX
        self._maximum_reported = False
        self._inbound_handshakes = InFlightHandshakes()
        self._outbound_handshakes = InFlightHandshakes()
        self._requests = PendingRequests()
        self._broker_limits = broker_limits
        self._writer = writer
        # If the broker disables keep alive (0), this client still pings, to notice a hung broker.
        keep_alive = broker_limits.keep_alive or options.keep_alive
        self.keep_alive = KeepAliveTimer(keep_alive, options.answer_timeout, now)

    @property
    def quota(self) -> int:
        """Publications of QoS 1 and 2 that may be sent now."""
        return self._broker_limits.receive_maximum - self._outbound_handshakes.count

    @property
    def request_quota(self) -> int:
        """SUBSCRIBE and UNSUBSCRIBE packets that may be sent now."""
        return self._requests.remaining

    # ------------------------------------------------------------ commands

    def publish(self, batch: Sequence[PublishPacket | PlainPublish], now: float) -> list[Effect]:
        """Write publications; report those that this broker cannot take."""
        output: list[Effect] = []
        if self._broker_limits.qos_max < 2 or not self._broker_limits.retain_available:
            batch = self._drop_unsupported(batch, output)
        guaranteed = [
            publish for publish in batch if not isinstance(publish, tuple) and publish.qos
        ]
        if guaranteed:
            self._check_packet_ids([publish.packet_id for publish in guaranteed])
        data, refused = self._writer.encode_publications(batch)
        if refused:
            output += [effects.PublishNotSent((publish,), reason) for publish, reason in refused]
            unsent = {publish.packet_id for publish, _ in refused if publish.qos}
            guaranteed = [publish for publish in guaranteed if publish.packet_id not in unsent]
        for publish in guaranteed:
            self._outbound_handshakes.start(publish.packet_id, publish.qos)
        output += self._write(data, now)
        return output

    def _drop_unsupported(
        self, batch: Sequence[PublishPacket | PlainPublish], output: list[Effect]
    ) -> list[PublishPacket | PlainPublish]:
        """Return the publications that this broker supports [MQTT-3.2.2-11, MQTT-3.2.2-14]."""
        supported: list[PublishPacket | PlainPublish] = []
        for publish in batch:
            if isinstance(publish, tuple):
                supported.append(publish)
            elif publish.qos > self._broker_limits.qos_max:
                reason = f"QoS {publish.qos}, the broker's limit is {self._broker_limits.qos_max}"
                output.append(effects.PublishNotSent((publish,), reason))
            elif publish.retain and not self._broker_limits.retain_available:
                output.append(
                    effects.PublishNotSent(
                        (publish,), "retained, which the broker does not support"
                    )
                )
            else:
                supported.append(publish)
        return supported

    def _check_packet_ids(self, ids: list[int]) -> None:
        if len(ids) > self.quota:
            raise ValueError(f"{len(ids)} publications exceed the quota of {self.quota}")
        if min(ids) < 1 or max(ids) >= REQUEST_IDS_MIN:
            raise ValueError(f"packet ids {min(ids)} to {max(ids)}, not 1 to {REQUEST_IDS_MIN - 1}")
        if len(set(ids)) < len(ids) or any(each in self._outbound_handshakes for each in ids):
            raise ValueError("a packet id is still in flight")

    def send_handshake_packets(
        self, batch: Sequence[packets.AnyHandshakePacket], now: float
    ) -> list[Effect]:
        inbound, outbound = self._inbound_handshakes, self._outbound_handshakes
        for step in batch:
            packet_id = step.packet_id
            if type(step) is not PubRelPacket:
                is_next_step = inbound.advance(step)
            else:
                is_next_step = outbound.advance(step) or (
                    packet_id < REQUEST_IDS_MIN and outbound.resume(packet_id)
                )
            if not is_next_step:
                raise ValueError(f"{step}: not the next step of a handshake")
        return self._write(self._writer.encode_handshake_packets(batch), now)

    def subscribe(self, command: inputs.Subscribe, now: float) -> list[Effect]:
        packet_properties: Properties = ()
        if command.identifier is not None:
            if not self._broker_limits.subscription_ids_available:
                raise ValueError("a subscription identifier, which this broker does not support")
            packet_properties = ((Property.SUBSCRIPTION_IDENTIFIER, command.identifier),)
        request = packets.SubscribePacket(
            self._requests.next_id(), command.subscriptions, packet_properties
        )
        return self._send_request(request, now)

    def unsubscribe(self, command: inputs.Unsubscribe, now: float) -> list[Effect]:
        request = packets.UnsubscribePacket(self._requests.next_id(), command.filters)
        return self._send_request(request, now)

    def _send_request(
        self, request: packets.SubscribePacket | packets.UnsubscribePacket, now: float
    ) -> list[Effect]:
        try:
            data = self._writer.encode(request)
        except PacketTooLarge as error:
            return [_make_response_effect(request, bytes((Reason.PACKET_TOO_LARGE,)), str(error))]
        self._requests.add(request)
        return self._write(data, now)

    def ping(self, now: float) -> list[Effect]:
        self.keep_alive.on_ping_sent(now)
        return [effects.Write(self._writer.encode(_PING))]

    def _write(self, data: bytes, now: float) -> list[Effect]:
        if not data:
            return []
        self.keep_alive.on_sent(now)
        return [effects.Write(data)]

    # ------------------------------------------------------------ received packets

    def receive(
        self, packet_class: type, batch: list[Any], output: list[Effect], now: float
    ) -> None:
        """Handle packets of one type in order and append the effects; raise BrokerMisbehaved."""
        if packet_class is PublishPacket:
            self._receive_publications(batch, output)
        elif issubclass(packet_class, packets.HandshakePacket):
            self._receive_handshake_packets(batch, output)
        elif packet_class is packets.OversizedPublish:
            for publication in batch:
                self._receive_oversized(publication, output)
        else:
            for packet in batch:
                output.append(self._receive_response(packet, now))

    def _receive_publications(self, batch: list[PublishPacket], output: list[Effect]) -> None:
        if not any([publish.qos for publish in batch]):
            output.append(effects.PublishReceived(batch))
            return
        admitted: list[PublishPacket] = []
        try:
            for publish in batch:
                if not publish.qos or self._start_handshake(publish, output):
                    admitted.append(publish)
        finally:  # packets before the invalid one count
            if admitted:
                output.append(effects.PublishReceived(admitted))

    def _start_handshake(
        self, publish: PublishPacket | packets.OversizedPublish, output: list[Effect]
    ) -> bool:
        """Start the handshake of a QoS 1 or 2 publication; return False if it is in flight
        already."""
        packet_id, inbound = publish.packet_id, self._inbound_handshakes
        if packet_id in inbound:
            if publish.dup:  # MQTT 5 forbids it, but some brokers resend on a connection
                output.append(
                    effects.InputIgnored(
                        f"PUBLISH {packet_id} was resent before it was acknowledged"
                    )
                )
                return False
            problem = f"PUBLISH: packet id {packet_id} is still in flight"
            raise BrokerMisbehaved(problem, Reason.PROTOCOL_ERROR)
        inbound.start(packet_id, publish.qos)
        if inbound.count > self._inbound_max and not self._maximum_reported:
            self._maximum_reported = True
            output.append(effects.ReceiveMaximumExceeded(self._inbound_max))
        return True

    def _receive_handshake_packets(
        self, batch: list[packets.AnyHandshakePacket], output: list[Effect]
    ) -> None:
        accept = (
            self._accept_release if type(batch[0]) is PubRelPacket else self._accept_acknowledgement
        )
        received: list[packets.AnyHandshakePacket] = []
        ignored: list[int] = []
        try:
            for step in batch:
                if accept(step):
                    received.append(step)
                else:
                    ignored.append(step.packet_id)
        finally:
            if received:
                output.append(effects.HandshakePacketsReceived(received))
            if ignored:  # one effect for all: a hostile broker must not fill the log
                what = f"{len(ignored)} {packets.packet_name(type(batch[0]))} unexpected"
                output.append(effects.InputIgnored(f"{what}, first packet id {ignored[0]}"))

    def _accept_acknowledgement(self, packet: packets.AnyHandshakePacket) -> bool:
        if self._outbound_handshakes.advance(packet):
            return True
        if packet.packet_id not in self._outbound_handshakes:
            return False
        name = packets.packet_name(type(packet))
        problem = f"{name}: not the next step of packet id {packet.packet_id}"
        raise BrokerMisbehaved(problem, Reason.PROTOCOL_ERROR)

    def _accept_release(self, packet: packets.AnyHandshakePacket) -> bool:
        """Accept a PUBREL; for an unknown id it ends a handshake of an earlier connection
        [MQTT-4.3.3-11]."""
        if self._inbound_handshakes.advance(packet) or self._inbound_handshakes.resume(
            packet.packet_id
        ):
            return True
        if self._inbound_handshakes.expected_packet(packet.packet_id) is PubCompPacket:
            return False  # resent before our PUBCOMP was requested
        problem = f"PUBREL: packet id {packet.packet_id} was not acknowledged with PUBREC"
        raise BrokerMisbehaved(problem, Reason.PROTOCOL_ERROR)

    def _receive_oversized(
        self, publication: packets.OversizedPublish, output: list[Effect]
    ) -> None:
        if not publication.qos or self._start_handshake(publication, output):
            output.append(effects.OversizedPublishReceived(publication))

    def _receive_response(self, packet: packets.AnyPacket, now: float) -> Effect:
        match packet:
            case packets.SubAckPacket(_, reasons, stated) | packets.UnsubAckPacket(
                _, reasons, stated
            ):
                request = self._requests.match_response(packet)
                return _make_response_effect(
                    request, reasons, str(find_property(stated, Property.REASON_STRING, ""))
                )
            case packets.PingRespPacket():
                round_trip = self.keep_alive.on_ping_response(now)
                if round_trip is None:
                    return effects.InputIgnored("unexpected PINGRESP")
                return effects.PingRespReceived(round_trip)
        problem = f"{packets.packet_name(type(packet))}: unexpected packet"
        raise BrokerMisbehaved(problem, Reason.PROTOCOL_ERROR)


def _make_response_effect(
    request: packets.SubscribePacket | packets.UnsubscribePacket, reasons: bytes, text: str
) -> Effect:
    """Return the effect of a response. One code may stand for all filters; no code means
    success."""
    if isinstance(request, packets.SubscribePacket):
        identifier = find_property(request.properties, Property.SUBSCRIPTION_IDENTIFIER, None)
        assert identifier is None or isinstance(identifier, int)
        subscriptions = request.subscriptions
        return effects.Subscribed(
            subscriptions, _expand_reasons(reasons, len(subscriptions)), identifier, text
        )
    return effects.Unsubscribed(
        request.filters, _expand_reasons(reasons, len(request.filters)), text
    )


def _expand_reasons(reasons: bytes, count: int) -> bytes:
    return reasons if len(reasons) == count else (reasons or bytes((Reason.SUCCESS,))) * count


class KeepAliveTimer:
    """When to ping the broker, and when to give the connection up."""

    __slots__ = ("_last_received", "_interval", "_ping_sent_at", "_last_sent", "_timeout")

    def __init__(self, keep_alive: int, timeout: float, now: float) -> None:
        """Start the timer; a keep alive of 0 seconds never pings."""
        self._interval = keep_alive * PING_AFTER_FRACTION
        self._timeout = timeout
        self._last_sent = now
        self._last_received = now
        self._ping_sent_at: float | None = None

    def on_sent(self, now: float) -> None:
        self._last_sent = now

    def on_received(self, now: float) -> None:
        """Any packet postpones the timeout of an outstanding PINGREQ."""
        self._last_received = now

    def on_ping_sent(self, now: float) -> None:
        """The oldest unanswered PINGREQ decides about the timeout."""
        self._last_sent = now
        if self._ping_sent_at is None:
            self._ping_sent_at = now

    def on_ping_response(self, now: float) -> float | None:
        """Return the round-trip time in seconds, or None if no PINGREQ was outstanding."""
        pinged, self._ping_sent_at = self._ping_sent_at, None
        return None if pinged is None else now - pinged

    def is_ping_due(self, now: float) -> bool:
        due = self._ping_deadline()
        return due is not None and now >= due

    def has_timed_out(self, now: float) -> bool:
        limit = self._timeout_deadline()
        return limit is not None and now >= limit

    def next_deadline(self) -> float | None:
        """Return when `is_ping_due` or `has_timed_out` may next become true."""
        ping, timeout = self._ping_deadline(), self._timeout_deadline()
        if ping is None or timeout is None:
            return timeout if ping is None else ping
        return min(ping, timeout)

    def _ping_deadline(self) -> float | None:
        if not self._interval:
            return None
        # With a PINGREQ outstanding only our own silence makes the next one due.
        since = (
            self._last_sent
            if self._ping_sent_at is not None
            else min(self._last_sent, self._last_received)
        )
        return since + self._interval

    def _timeout_deadline(self) -> float | None:
        return (
            None
            if self._ping_sent_at is None
            else max(self._ping_sent_at, self._last_received) + self._timeout
        )
