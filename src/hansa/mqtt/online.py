"""What a session does between CONNACK and the end: orders become packets, packets become news.

It keeps both sides to what was agreed. An order that breaks it raises ValueError; a broker that
breaks it makes `take` raise BrokerMisbehaved. How a connection begins and ends is `session`'s.
"""

from collections.abc import Sequence
from typing import Any

from hansa.errors import BrokerMisbehaved
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.effects import Effect
from hansa.mqtt.handshakes import Handshakes
from hansa.mqtt.keepalive import KeepAlive
from hansa.mqtt.limits import Limits
from hansa.mqtt.options import Options
from hansa.mqtt.packets import Plain, PubComp, Publish, PubRel
from hansa.mqtt.properties import Properties, Property, find
from hansa.mqtt.requests import REQUEST_IDS_MIN, Requests
from hansa.mqtt.types import PACKET_IDS_MAX, Reason, Version
from hansa.mqtt.writer import TooLarge, Writer

_PING = packets.PingReq()


class Online:
    """A connection that the broker has accepted."""

    __slots__ = (
        "_exceeded",
        "_inbound",
        "_inbound_max",
        "_limits",
        "_outbound",
        "_requests",
        "_writer",
        "keep_alive",
    )

    def __init__(self, options: Options, limits: Limits, writer: Writer, now: float) -> None:
        """Start with nothing under way."""
        version_5 = options.version is Version.V5
        self._inbound_max = options.receive_maximum if version_5 else PACKET_IDS_MAX
        self._exceeded = False
        self._inbound = Handshakes()
        self._outbound = Handshakes()
        self._requests = Requests()
        self._limits = limits
        self._writer = writer
        # A broker that wants no sign of life (0) gives one all the same.
        keep_alive = limits.keep_alive or options.keep_alive
        self.keep_alive = KeepAlive(keep_alive, options.answer_timeout, now)

    @property
    def quota(self) -> int:
        """How many publications of QoS 1 and 2 may now be ordered."""
        return self._limits.receive_maximum - self._outbound.count

    @property
    def requests_left(self) -> int:
        """How many subscriptions and their ends may now be ordered."""
        return self._requests.left

    # ------------------------------------------------------------ orders

    def publish(self, batch: Sequence[Publish | Plain], now: float) -> list[Effect]:
        """Write publications; tell which cannot be written for this broker."""
        told: list[Effect] = []
        if self._limits.qos_max < 2 or not self._limits.retain_available:
            batch = self._leave_out(batch, told)
        numbered = [publish for publish in batch if not isinstance(publish, tuple) and publish.qos]
        if numbered:
            self._require_free([publish.packet_id for publish in numbered])
        data, refused = self._writer.publish(batch)
        if refused:
            told += [effects.NotSent((publish,), reason) for publish, reason in refused]
            unsent = {publish.packet_id for publish, _ in refused if publish.qos}
            numbered = [publish for publish in numbered if publish.packet_id not in unsent]
        for publish in numbered:
            self._outbound.open(publish.packet_id, publish.qos)
        told += self._write(data, now)
        return told

    def _leave_out(
        self, batch: Sequence[Publish | Plain], told: list[Effect]
    ) -> list[Publish | Plain]:
        """Return what this broker can take [MQTT-3.2.2-11, MQTT-3.2.2-14]."""
        kept: list[Publish | Plain] = []
        for publish in batch:
            if isinstance(publish, tuple):
                kept.append(publish)
            elif publish.qos > self._limits.qos_max:
                reason = f"QoS {publish.qos}, the broker's limit is {self._limits.qos_max}"
                told.append(effects.NotSent((publish,), reason))
            elif publish.retain and not self._limits.retain_available:
                told.append(effects.NotSent((publish,), "retained, which the broker does not do"))
            else:
                kept.append(publish)
        return kept

    def _require_free(self, ids: list[int]) -> None:
        if len(ids) > self.quota:
            raise ValueError(f"{len(ids)} publications, the broker has room for {self.quota}")
        if min(ids) < 1 or max(ids) >= REQUEST_IDS_MIN:
            raise ValueError(f"packet ids {min(ids)} to {max(ids)}, not 1 to {REQUEST_IDS_MIN - 1}")
        if len(set(ids)) < len(ids) or any(each in self._outbound for each in ids):
            raise ValueError("a packet id that is still under way")

    def answer(self, batch: Sequence[packets.Handshake], now: float) -> list[Effect]:
        """Write steps of handshakes."""
        inbound, outbound = self._inbound, self._outbound
        for step in batch:
            packet_id = step.packet_id
            if type(step) is not PubRel:
                taken = inbound.advance(step)
            else:
                taken = outbound.advance(step) or (
                    packet_id < REQUEST_IDS_MIN and outbound.resume(packet_id)
                )
            if not taken:
                raise ValueError(f"{step}: this is not the next step of a handshake")
        return self._write(self._writer.answer(batch), now)

    def subscribe(self, order: inputs.Subscribe, now: float) -> list[Effect]:
        """Write a SUBSCRIBE."""
        stated: Properties = ()
        if order.identifier is not None:
            if not self._limits.identifiers_available:
                raise ValueError("a subscription identifier, which this broker does not take")
            stated = ((Property.SUBSCRIPTION_IDENTIFIER, order.identifier),)
        request = packets.Subscribe(self._requests.next_id(), order.subscriptions, stated)
        return self._request(request, now)

    def unsubscribe(self, order: inputs.Unsubscribe, now: float) -> list[Effect]:
        """Write an UNSUBSCRIBE."""
        request = packets.Unsubscribe(self._requests.next_id(), order.filters)
        return self._request(request, now)

    def _request(
        self, request: packets.Subscribe | packets.Unsubscribe, now: float
    ) -> list[Effect]:
        try:
            data = self._writer.encode(request)
        except TooLarge as error:
            return [_settled(request, bytes((Reason.PACKET_TOO_LARGE,)), str(error))]
        self._requests.add(request)
        return self._write(data, now)

    def ping(self, now: float) -> list[Effect]:
        """Write a PINGREQ."""
        self.keep_alive.pinged(now)
        return [effects.Write(self._writer.encode(_PING))]

    def _write(self, data: bytes, now: float) -> list[Effect]:
        if not data:
            return []
        self.keep_alive.sent(now)
        return [effects.Write(data)]

    # ------------------------------------------------------------ what the broker sends

    def take(self, kind: type, run: list[Any], told: list[Effect], now: float) -> None:
        """Take packets of one kind, in order, and add the news; raise BrokerMisbehaved."""
        if kind is Publish:
            self._take_publications(run, told)
        elif issubclass(kind, packets.Answer):
            self._take_steps(run, told)
        elif kind is packets.Oversized:
            for publication in run:
                self._take_oversized(publication, told)
        else:
            for packet in run:
                told.append(self._take_one(packet, now))

    def _take_publications(self, run: list[Publish], told: list[Effect]) -> None:
        if not any([publish.qos for publish in run]):
            told.append(effects.PublishReceived(run))
            return
        admitted: list[Publish] = []
        try:
            for publish in run:
                if not publish.qos or self._admit(publish, told):
                    admitted.append(publish)
        finally:  # what came before a fault counts
            if admitted:
                told.append(effects.PublishReceived(admitted))

    def _admit(self, publish: Publish | packets.Oversized, told: list[Effect]) -> bool:
        """Begin the handshake of a publication of QoS 1 or 2; False if it has already begun."""
        packet_id, inbound = publish.packet_id, self._inbound
        if packet_id in inbound:
            if publish.dup:  # forbidden by MQTT 5, and yet some brokers resend after a while
                told.append(effects.Ignored(f"PUBLISH {packet_id} again, it is not yet answered"))
                return False
            problem = f"PUBLISH: packet id {packet_id}, which is still under way"
            raise BrokerMisbehaved(problem, Reason.PROTOCOL_ERROR)
        inbound.open(packet_id, publish.qos)
        if inbound.count > self._inbound_max and not self._exceeded:
            self._exceeded = True
            told.append(effects.ReceiveMaximumExceeded(self._inbound_max))
        return True

    def _take_steps(self, run: list[packets.Handshake], told: list[Effect]) -> None:
        accept = self._accept_release if type(run[0]) is PubRel else self._accept_answer
        accepted: list[packets.Handshake] = []
        ignored: list[int] = []
        try:
            for step in run:
                if accept(step):
                    accepted.append(step)
                else:
                    ignored.append(step.packet_id)
        finally:
            if accepted:
                told.append(effects.Answered(accepted))
            if ignored:  # one for all: a hostile broker must not fill the log
                what = f"{len(ignored)} {type(run[0]).__name__} that nobody waits for"
                told.append(effects.Ignored(f"{what}, packet id {ignored[0]} first"))

    def _accept_answer(self, step: packets.Handshake) -> bool:
        if self._outbound.advance(step):
            return True
        if step.packet_id not in self._outbound:
            return False
        problem = f"{type(step).__name__}: not the next step for packet id {step.packet_id}"
        raise BrokerMisbehaved(problem, Reason.PROTOCOL_ERROR)

    def _accept_release(self, step: packets.Handshake) -> bool:
        """A PUBREL for an unknown id ends a handshake of an earlier connection [MQTT-4.3.3-11]."""
        if self._inbound.advance(step) or self._inbound.resume(step.packet_id):
            return True
        if self._inbound.expected(step.packet_id) is PubComp:
            return False  # sent again before our answer was ordered
        problem = f"PubRel: packet id {step.packet_id} was not received with PubRec"
        raise BrokerMisbehaved(problem, Reason.PROTOCOL_ERROR)

    def _take_oversized(self, publication: packets.Oversized, told: list[Effect]) -> None:
        if not publication.qos or self._admit(publication, told):
            told.append(effects.OversizedReceived(publication))

    def _take_one(self, packet: packets.Any, now: float) -> Effect:
        match packet:
            case packets.SubAck(_, reasons, stated) | packets.UnsubAck(_, reasons, stated):
                request = self._requests.settle(packet)
                return _settled(request, reasons, str(find(stated, Property.REASON_STRING, "")))
            case packets.PingResp():
                round_trip = self.keep_alive.ponged(now)
                if round_trip is None:
                    return effects.Ignored("PingResp, nobody waits for it")
                return effects.Ponged(round_trip)
        problem = f"{type(packet).__name__}: out of place"
        raise BrokerMisbehaved(problem, Reason.PROTOCOL_ERROR)


def _settled(request: packets.Subscribe | packets.Unsubscribe, reasons: bytes, text: str) -> Effect:
    """Return the news of an answer. One code may stand for all filters; none means yes."""
    if isinstance(request, packets.Subscribe):
        identifier = find(request.properties, Property.SUBSCRIPTION_IDENTIFIER, None)
        assert identifier is None or isinstance(identifier, int)
        wanted = request.subscriptions
        return effects.Subscribed(wanted, _spread(reasons, len(wanted)), identifier, text)
    return effects.Unsubscribed(request.filters, _spread(reasons, len(request.filters)), text)


def _spread(reasons: bytes, count: int) -> bytes:
    return reasons if len(reasons) == count else (reasons or bytes((Reason.SUCCESS,))) * count
