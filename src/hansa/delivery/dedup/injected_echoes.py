"""Which injected publications a broker of MQTT 3.1.1 will send back (`dedup.echo`).

A publication is expected back once in a broker session, however often it is sent. A previous
incarnation that was stopped in order has left the list of those that it expected; after a crash it
is unknown which were sent. Then the echoes of all that may have been sent are forwarded.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from hansa.delivery.effects import Effect, Publish
from hansa.delivery.inbox import InboxEntry, InboxLog
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.types import Version


class InjectedEchoes:
    """The inbox entries whose echoes are accounted for."""

    def __init__(
        self,
        inbox: InboxLog,
        find_in_flight: Callable[[int], InboxEntry | None],
        in_flight_max: int,
        saved_indexes: Sequence[int] | None,
    ) -> None:
        """`find_in_flight` returns the entry with a packet id. `saved_indexes` are the entries
        that the previous incarnation expected; None if it crashed."""
        self._inbox = inbox
        self._find_in_flight = find_in_flight
        self._in_flight_max = in_flight_max
        self._saved_indexes = saved_indexes
        self._was_connected = False

    def indexes(self) -> list[int]:
        """Return the entries that are expected, for the next incarnation."""
        return [index for index, each in self._inbox.entries.items() if each.is_echo_expected]

    def on_connected(self, session_present: bool, limits: BrokerLimits) -> int:
        """Find out which publications were sent in this session. After a crash these can be the
        oldest `in_flight_max`; return their number, as their echoes are in doubt."""
        entries, in_doubt = self._inbox.entries.values(), 0
        if not session_present:
            for entry in entries:
                entry.is_echo_expected = False
        elif not self._was_connected and limits.version is Version.V311:
            for entry in entries:
                entry.is_echo_expected = entry.accepted_offset is not None
            sent = [each for each in entries if each.is_recovered and each.accepted_offset is None]
            if self._saved_indexes is None:
                sent = sent[: min(self._in_flight_max, limits.receive_maximum)]
                in_doubt = len(sent)
            else:
                known = set(self._saved_indexes)
                sent = [each for each in sent if each.record.index in known]
            for entry in sent:
                entry.is_echo_expected = True
        self._was_connected = True
        return in_doubt

    def sent_first(self, effects: Iterable[Effect]) -> Iterator[PublishPacket]:
        """Yield what is published for the first time in this session."""
        for effect in effects:
            if type(effect) is Publish:
                for publish in effect.batch:
                    entry = self._find_in_flight(publish.packet_id)
                    if entry is None:  # at QoS 0, because the broker has no more
                        yield publish
                    elif not entry.is_echo_expected:
                        entry.is_echo_expected = True
                        yield publish
