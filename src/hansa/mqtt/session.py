"""One connection of a client to its broker, from CONNECT to the end.

`handle(event, now)` applies one input and returns what must be done and told, in order;
`next_deadline()` says when TimerFired is due. A broker cannot make it raise: what MQTT forbids
becomes ProtocolViolation and the end. A caller who orders what cannot be is told so by ValueError;
that is a bug of the caller's, and the session is not to be used any further.

What a client library usually hides, the caller decides here:

- Nothing is acknowledged unless it is ordered, so that a publication can be on disk before.
- Publications have the packet ids that the caller gives them, so that they can be found again after
  a crash. SUBSCRIBE and UNSUBSCRIBE have ids of their own (`requests`).
- Nothing is sent again. After a reconnection the caller orders what the broker may not have:
  PUBLISH with `dup`, or PUBREL alone. PUBREL for an id of an earlier connection is always allowed,
  and one from the broker is always told.

A session is one connection and ends with it; a reconnection is a new session. So an acknowledgement
that comes late, after its connection, goes to the session that is over and is ignored there. On the
next connection it might confirm another publication with the same id.
"""

from dataclasses import dataclass
from itertools import groupby

from hansa.errors import BrokerMisbehaved
from hansa.mqtt import effects, inputs, limits, packets
from hansa.mqtt.effects import Effect
from hansa.mqtt.inputs import Input
from hansa.mqtt.online import Online
from hansa.mqtt.options import Options
from hansa.mqtt.properties import Properties, Property
from hansa.mqtt.reader import Reader
from hansa.mqtt.types import REFUSED, Reason, Version, describe, describe_refusal
from hansa.mqtt.writer import Writer

_UNACCEPTABLE_VERSION = 1  # a return code of 3.1.1


@dataclass(frozen=True, slots=True)
class _Fresh:
    """The connection does not stand yet."""


@dataclass(frozen=True, slots=True)
class _Connecting:
    """CONNECT was sent."""

    due: float


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
        self._state: _Fresh | _Connecting | Online | _Ended = _Fresh()

    @property
    def quota(self) -> int:
        """How many publications of QoS 1 and 2 may now be ordered."""
        return self._state.quota if isinstance(self._state, Online) else 0

    @property
    def requests_left(self) -> int:
        """How many Subscribe and Unsubscribe may now be ordered."""
        return self._state.requests_left if isinstance(self._state, Online) else 0

    def next_deadline(self) -> float | None:
        """When TimerFired is next due. Read it again after every input."""
        match self._state:
            case _Connecting(due):
                return due
            case Online(keep_alive=keep_alive):
                return keep_alive.next_deadline()
        return None

    def handle(self, event: Input, now: float) -> list[Effect]:
        """Apply one input and return what must now be done and told, in order."""
        state = self._state
        if isinstance(state, Online):
            match event:  # traffic first: all the rest is rare
                case inputs.Received(data):
                    return self._receive(data, now)
                case inputs.Publish(batch):
                    return state.publish(batch, now)
                case inputs.Answer(batch):
                    return state.answer(batch, now)
            return self._handle_online(event, state, now)
        return self._handle_offline(event, state, now)

    def _handle_online(self, event: Input, online: Online, now: float) -> list[Effect]:
        match event:
            case inputs.TimerFired() if online.keep_alive.is_over(now):
                text = f"no sign of life for {self._options.answer_timeout:g} seconds"
                return self._end(effects.Disconnected(None, text, by_broker=False))
            case inputs.TimerFired() if not online.keep_alive.is_due(now):
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
                return self._end(effects.Disconnected(None, reason, by_broker=False))
        raise ValueError(f"{type(event).__name__} when the session is online")

    def _handle_offline(
        self, event: Input, state: _Fresh | _Connecting | _Ended, now: float
    ) -> list[Effect]:
        match event, state:
            case inputs.Opened(), _Fresh():
                self._state = _Connecting(now + self._options.answer_timeout)
                return [effects.Write(self._writer.encode(self._options.connect()))]
            case inputs.Received(data), _Connecting():
                return self._receive(data, now)
            case inputs.Disconnect(), _Connecting():
                return self._disconnect(event)
            case ((inputs.Closed() | inputs.TimerFired()), _Connecting(due)):
                return self._give_up(event, due, now)
            case ((inputs.Received() | inputs.Closed() | inputs.TimerFired()), _Ended()):
                return []  # whoever ended it knows
            case inputs.Publish(batch), _Ended(reason):
                return [effects.NotSent(batch, reason, is_over=True)]
            case _, _Ended(reason) if not isinstance(event, inputs.Opened):
                return [effects.Ignored(f"{type(event).__name__}: {reason}")]
        raise ValueError(f"{type(event).__name__} when the session is {state}")

    # ------------------------------------------------------------ what the broker sends

    def _receive(self, data: bytes | bytearray | memoryview, now: float) -> list[Effect]:
        if isinstance(self._state, Online):
            self._state.keep_alive.heard(now)
        found: list[packets.Any] = []
        told: list[Effect] = []
        fault: BrokerMisbehaved | None = None
        try:
            self._reader.feed(data, found)
        except BrokerMisbehaved as error:
            fault = error
        try:
            for kind, run in groupby(found, type):
                self._take(kind, list(run), told, now)
        except BrokerMisbehaved as error:
            fault = error  # in what came before the other fault, if there was one
        if fault is not None and not isinstance(self._state, _Ended):
            told += self._violated(fault)
        return told

    def _take(self, kind: type, run: list[packets.Any], told: list[Effect], now: float) -> None:
        """Take packets of one kind. What comes after the end means nothing."""
        state = self._state
        if type(state) is Online and kind is not packets.Disconnect:
            state.take(kind, run, told, now)
            return
        match run[0], state:
            case packets.Disconnect(reason, stated), Online():
                text = _explain(describe(reason), stated)
                told += self._end(effects.Disconnected(reason, text, by_broker=True))
            case packets.ConnAck() as connack, _Connecting() if len(run) == 1:
                told += self._greet(connack, now)
            case _, _Connecting():
                problem = f"{kind.__name__}: the first packet is one CONNACK"
                raise BrokerMisbehaved(problem, Reason.PROTOCOL_ERROR)

    def _greet(self, connack: packets.ConnAck, now: float) -> list[Effect]:
        if connack.reason:
            text = _explain(describe_refusal(connack.reason), connack.properties)
            return self._end(self._refusal(connack.reason, text))
        if connack.session_present and self._options.clean_start:  # [MQTT-3.2.2-2]
            raise BrokerMisbehaved("CONNACK: a session, none was wanted", Reason.PROTOCOL_ERROR)
        granted = limits.read(connack, self._options)
        self._writer.limit(granted.packet_bytes_max)
        self._state = Online(self._options, granted, self._writer, now)
        return [effects.Connected(connack.session_present, granted)]

    # ------------------------------------------------------------ the end

    def _give_up(
        self, event: inputs.Closed | inputs.TimerFired, due: float, now: float
    ) -> list[Effect]:
        """No CONNACK came."""
        if isinstance(event, inputs.Closed):
            return self._end(self._refusal(None, event.reason))
        if now < due:
            return []
        text = f"no CONNACK within {self._options.answer_timeout:g} seconds"
        is_suspect = self._options.version is Version.V5
        return self._end(effects.ConnectRefused(None, text, is_suspect, timed_out=True))

    def _refusal(self, reason: int | None, text: str) -> effects.ConnectRefused:
        """Tell whether it may be our version that is refused, if there is another to try."""
        version_5 = self._options.version is Version.V5
        suspect = version_5 or self._options.bridge
        if suspect and reason not in (None, Reason.UNSUPPORTED_PROTOCOL_VERSION):
            # Only a broker that does not know MQTT 5 answers it with a code of 3.1.1.
            suspect = reason < REFUSED if version_5 else reason == _UNACCEPTABLE_VERSION
        return effects.ConnectRefused(reason, text, suspect)

    def _disconnect(self, order: inputs.Disconnect) -> list[Effect]:
        stated: Properties = ()
        if order.session_expiry is not None:
            stated = ((Property.SESSION_EXPIRY_INTERVAL, order.session_expiry),)
        data = self._writer.encode(packets.Disconnect(order.reason, stated))
        ending = effects.Disconnected(order.reason, "ordered to leave", by_broker=False)
        return self._end(ending, effects.Write(data))

    def _violated(self, fault: BrokerMisbehaved) -> list[Effect]:
        """Leave, and in MQTT 5 say why."""
        ending = effects.ProtocolViolation(fault.reason, str(fault))
        if self._options.version is Version.V311:
            return self._end(ending)
        data = self._writer.encode(packets.Disconnect(fault.reason))
        return self._end(ending, effects.Write(data))

    def _end(self, ending: effects.Ending, *last: effects.Write) -> list[Effect]:
        self._state = _Ended(ending.text)
        return [ending, *last, effects.Close()]


def _explain(text: str, stated: Properties) -> str:
    """Add what the broker said, and where it sends us."""
    wanted = (Property.REASON_STRING, Property.SERVER_REFERENCE)
    return ", ".join([text, *(f"{value!r}" for name, value in stated if name in wanted)])
