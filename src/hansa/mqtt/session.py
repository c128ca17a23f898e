"""One connection of a client to its broker, from CONNECT to the end.

`handle(event, now)` applies one input and returns what must be done and told, in order;
`next_deadline()` says when TimerFired is due. A broker cannot make it raise: what MQTT forbids
becomes ProtocolViolation and the end. A caller who orders what cannot be is told so by ValueError.

What a client library usually hides, the caller decides here:

- Nothing is acknowledged unless it is ordered, so that a publication can be on disk before.
- Publications have the packet ids that the caller gives them, so that they can be found again after
  a crash. SUBSCRIBE and UNSUBSCRIBE have ids of their own (`requests`).
- Nothing is sent again. After a reconnection the caller orders what the broker may not have:
  PUBLISH with `dup`, or PUBREL alone. PUBREL for an id of an earlier connection is always allowed,
  and one from the broker is always told.

A session is one connection and ends with it; a reconnection is a new session. So an acknowledgement
that comes late, after its connection, goes to the session that is over and is ignored there, instead
of confirming a publication that has the same id on the next one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from hansa.errors import BrokerMisbehaved
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt import limits as limits_of_broker
from hansa.mqtt.effects import Effect
from hansa.mqtt.handshakes import Handshakes
from hansa.mqtt.inputs import Input
from hansa.mqtt.keepalive import KeepAlive
from hansa.mqtt.limits import Limits
from hansa.mqtt.options import Options
from hansa.mqtt.properties import Properties, Property, find
from hansa.mqtt.reader import Reader
from hansa.mqtt.requests import REQUEST_IDS_MIN, Requests
from hansa.mqtt.vocabulary import REFUSED, Reason, Version, describe, describe_refusal
from hansa.mqtt.writer import TooLarge, Writer

_PING = packets.PingReq()


@dataclass(frozen=True, slots=True)
class _Fresh:
    """Not yet connected."""


@dataclass(frozen=True, slots=True)
class _Connecting:
    """CONNECT was sent."""

    due: float


@dataclass(frozen=True, slots=True)
class _Online:
    """CONNACK said yes."""

    limits: Limits
    keep_alive: KeepAlive
    inbound: Handshakes = field(default_factory=Handshakes)
    outbound: Handshakes = field(default_factory=Handshakes)
    requests: Requests = field(default_factory=Requests)


@dataclass(frozen=True, slots=True)
class _Ended:
    """The connection is over."""

    reason: str


class Session:
    """One connection."""

    __slots__ = ("_options", "_reader", "_state", "_writer")

    def __init__(self, options: Options) -> None:
        """Prepare; Opened starts it."""
        self._options = options
        self._reader = Reader(options.version, options.packet_bytes_max)
        self._writer = Writer(options.version)
        self._state: _Fresh | _Connecting | _Online | _Ended = _Fresh()

    @property
    def quota(self) -> int:
        """How many publications of QoS 1 and 2 may now be ordered."""
        if not isinstance(self._state, _Online):
            return 0
        return self._state.limits.receive_maximum - self._state.outbound.count

    @property
    def requests_left(self) -> int:
        """How many Subscribe and Unsubscribe may now be ordered."""
        return self._state.requests.left if isinstance(self._state, _Online) else 0

    def handle(self, event: Input, now: float) -> list[Effect]:
        """Apply one input and return what must now be done and told, in order."""
        match event, self._state:
            case inputs.Received(data), _Connecting() | _Online():
                return self._receive(data, now)
            case inputs.Disconnect(), _Connecting() | _Online():
                return self._disconnect(event)
            case _, _Online() as online:
                return self._handle_online(event, online, now)
            case inputs.Opened(), _Fresh():
                self._state = _Connecting(now + self._options.answer_timeout)
                return [effects.Write(self._writer.encode(self._options.connect()))]
            case (inputs.Closed() | inputs.TimerFired()), _Connecting(due):
                return self._give_up(event, due, now)
            case (inputs.Received() | inputs.Closed() | inputs.TimerFired()), _Ended():
                return []  # whoever ended it knows
            case inputs.Publish(batch), _Ended(reason):
                return [effects.NotSent(batch, reason)]
            case _, _Ended(reason) if not isinstance(event, inputs.Opened):
                return [effects.Ignored(f"{type(event).__name__}: {reason}")]
        raise ValueError(f"{type(event).__name__} when the session is {self._state}")

    def next_deadline(self) -> float | None:
        """When TimerFired is next due. Read it again after every input."""
        match self._state:
            case _Connecting(due):
                return due
            case _Online(keep_alive=keep_alive):
                return keep_alive.next_deadline()
        return None

    def _handle_online(self, event: Input, online: _Online, now: float) -> list[Effect]:
        match event:
            case inputs.Publish(batch):
                return self._publish(batch, online, now)
            case inputs.Answer(batch):
                return self._answer(batch, online, now)
            case inputs.TimerFired() if online.keep_alive.is_over(now):
                seconds = self._options.answer_timeout
                text = f"no sign of life for {seconds:g} seconds after PINGREQ"
                return self._end(effects.Disconnected(None, text, by_broker=False))
            case inputs.TimerFired() if not online.keep_alive.is_due(now):
                return []
            case inputs.TimerFired() | inputs.Ping():
                online.keep_alive.pinged(now)
                return [effects.Write(self._writer.encode(_PING))]
            case inputs.Subscribe():
                return self._subscribe(event, online, now)
            case inputs.Unsubscribe():
                return self._unsubscribe(event, online, now)
            case inputs.Closed(reason):
                return self._end(effects.Disconnected(None, reason, by_broker=False))
        raise ValueError(f"{type(event).__name__} when the session is online")

    # ------------------------------------------------------------ orders

    def _publish(
        self, batch: Sequence[packets.Publish], online: _Online, now: float
    ) -> list[Effect]:
        told: list[Effect] = []
        limits = online.limits
        if limits.qos_max < 2 or not limits.retain_available:
            batch = _leave_out(batch, limits, told)
        numbered = [publish for publish in batch if publish.qos]
        if numbered:
            self._require_ids([publish.packet_id for publish in numbered], online.outbound)
        data, refused = self._writer.publish(batch)
        for publish, reason in refused:
            told.append(effects.NotSent((publish,), reason))
        unsent = {publish.packet_id for publish, _ in refused}
        for publish in numbered:
            if publish.packet_id not in unsent:
                online.outbound.open(publish.packet_id, publish.qos)
        return told + self._write(data, online, now)

    def _require_ids(self, ids: list[int], outbound: Handshakes) -> None:
        if len(ids) > self.quota:
            raise ValueError(f"{len(ids)} publications, the broker has room for {self.quota}")
        if min(ids) < 1 or max(ids) >= REQUEST_IDS_MIN:
            raise ValueError(f"packet ids {min(ids)} to {max(ids)}, not 1 to {REQUEST_IDS_MIN - 1}")
        if len(set(ids)) < len(ids) or any(packet_id in outbound for packet_id in ids):
            raise ValueError("a packet id that is still under way")

    def _answer(
        self, batch: Sequence[packets.Handshake], online: _Online, now: float
    ) -> list[Effect]:
        inbound, outbound = online.inbound, online.outbound
        for answer in batch:
            if type(answer) is not packets.PubRel:
                taken = inbound.advance(answer)
            else:
                taken = outbound.advance(answer) or outbound.resume(answer.packet_id)
            if not taken:
                raise ValueError(f"{answer}: that is not the next step of its handshake")
        return self._write(self._writer.answer(batch), online, now)

    def _subscribe(
        self, order: inputs.Subscribe, online: _Online, now: float
    ) -> list[Effect]:
        stated: Properties = ()
        if order.identifier is not None:
            if not online.limits.identifiers_available:
                raise ValueError("a subscription identifier, which this broker does not take")
            stated = ((Property.SUBSCRIPTION_IDENTIFIER, order.identifier),)
        packet_id = online.requests.next_id()
        request = packets.Subscribe(packet_id, order.subscriptions, stated)
        try:
            data = self._writer.encode(request)
        except TooLarge as error:
            reasons = bytes((Reason.PACKET_TOO_LARGE,)) * len(order.subscriptions)
            return [
                effects.Subscribed(order.subscriptions, reasons, order.identifier, str(error))
            ]
        online.requests.add(request)
        return self._write(data, online, now)

    def _unsubscribe(
        self, order: inputs.Unsubscribe, online: _Online, now: float
    ) -> list[Effect]:
        request = packets.Unsubscribe(online.requests.next_id(), order.filters)
        try:
            data = self._writer.encode(request)
        except TooLarge as error:
            reasons = bytes((Reason.PACKET_TOO_LARGE,)) * len(order.filters)
            return [effects.Unsubscribed(order.filters, reasons, str(error))]
        online.requests.add(request)
        return self._write(data, online, now)

    def _write(self, data: bytes, online: _Online, now: float) -> list[Effect]:
        if not data:
            return []
        online.keep_alive.sent(now)
        return [effects.Write(data)]

    # ------------------------------------------------------------ what the broker sends

    def _receive(self, data: bytes | bytearray | memoryview, now: float) -> list[Effect]:
        if isinstance(self._state, _Online):
            self._state.keep_alive.heard(now)
        found: list[packets.Any] = []
        told: list[Effect] = []
        fault: BrokerMisbehaved | None = None
        try:
            self._reader.feed(data, found)
        except BrokerMisbehaved as error:
            fault = error
        try:
            for _, run in groupby(found, type):
                self._take(list(run), told, now)
        except BrokerMisbehaved as error:
            fault = error  # in what came before the other fault, if there is one
        if fault is not None and not isinstance(self._state, _Ended):
            told += self._violated(fault)
        return told

    def _take(self, run: list[packets.Any], told: list[Effect], now: float) -> None:
        """Take packets of one type. What comes after the end means nothing."""
        state = self._state
        if isinstance(state, _Connecting):
            told += self._greet(run, now)
        elif isinstance(state, _Online):
            take = _TAKERS.get(type(run[0]))
            ...
