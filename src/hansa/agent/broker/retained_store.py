"""Performs the node's requests about retained values: read them at the broker, write them, save
them.

Reads are queued and merged; if one fails, it is repeated after RETRY_S. Requests beyond
REQUESTS_MAX are dropped: the requester asks again.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from time import monotonic
from typing import Protocol

import msgspec

from hansa.agent import tasks
from hansa.agent.alarms import SetAlarm
from hansa.agent.broker.connection import ConnectionFactory
from hansa.agent.broker.retained_reader import read_retained
from hansa.agent.storage.state_directory import RETAINED_FILE, StateDirectory
from hansa.errors import UsageError
from hansa.mqtt import packets
from hansa.protocol.effects import ListRetained, PersistRetained, PublishRetained, ReadRetained
from hansa.protocol.events import ClientPublished, Event, RetainedListed, RetainedRead
from hansa.protocol.model import Publication
from hansa.protocol.node import Node
from hansa.protocol.retained.digest import RetainedEntry, payload_digest

POLL_S = 0.05
"""Seconds between two checks whether the broker has received earlier deliveries."""

REQUESTS_MAX = 10_000
"""Requests of other nodes that may wait; a node asks again when it is reachable again."""

RETRY_S = 5.0
"""Seconds until a failed read is repeated."""

FILTERS_PER_VISIT_MAX = 1_000
"""Filters in one read."""

RETAINED_UNREADABLE = "the broker does not tell what it has stored, or not in time"
RETAINED_REFUSED = "the broker refuses to show what it has stored for"

_values = msgspec.msgpack.Decoder(dict[str, RetainedEntry])
_encode = msgspec.msgpack.Encoder().encode


class RetainedNodePort(Protocol):
    """What the store needs of the driver."""

    @property
    def node(self) -> Node: ...

    def feed(self, *events: Event) -> None:
        """Pass events to the node."""


class RetainedDeliveryPort(Protocol):
    """What the store needs of the delivery of QoS 1 and 2."""

    @property
    def delivery_mark(self) -> int:
        """Upper bound of the next inbox index."""

    def has_passed(self, mark: int) -> bool:
        """Whether everything delivered before a mark has reached the broker."""

    def deliver(self, batch: Sequence[Publication]) -> None:
        """Publish values of QoS 1 and 2."""


class ConnectionState(Protocol):
    """What the store needs of a connection."""

    @property
    def problem(self) -> str:
        """Why there is no connection; empty while there is one."""


class RetainedBrokerPort(Protocol):
    """What the store needs of the broker client."""

    @property
    def connection(self) -> ConnectionState: ...

    def publish(self, publications: Sequence[Publication]) -> None:
        """Publish values of QoS 0."""


def load_retained(state: StateDirectory) -> dict[str, RetainedEntry]:
    """Return the values that an earlier incarnation saved."""
    data = state.load_retained()
    try:
        return _values.decode(data) if data else {}
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        path = state.path / RETAINED_FILE
        raise UsageError(f"{path} cannot be read ({error}); remove it to start without") from None


class RetainedStore:
    """Reads one after the other, writes at once."""

    def __init__(
        self,
        state: StateDirectory,
        driver: RetainedNodePort,
        delivery: RetainedDeliveryPort,
        broker: RetainedBrokerPort,
        make_connection: ConnectionFactory | None,
        set_alarm: SetAlarm,
    ) -> None:
        """`make_connection` makes the connection for reading; without it nothing is read.
        `set_alarm` gets what the broker does not allow to read, and an empty text when it does."""
        self._state = state
        self._driver = driver
        self._delivery = delivery
        self._broker = broker
        self._make_connection = make_connection
        self._set_alarm = set_alarm
        self._refused_text = ""
        self._waits_for: tuple[float, int] | None = None
        """The mark and the time from which a survey waits. Requests of other nodes do not wait:
        they concern values of clients here, which the broker has."""
        self._filters_to_list: dict[str, None] = {}
        self._read_requests: deque[ReadRetained] = deque()
        self._save_task: asyncio.Task[None] | None = None
        self._read_task: asyncio.Task[None] | None = None

    def perform(
        self, command: ListRetained | ReadRetained | PublishRetained | PersistRetained
    ) -> None:
        """Perform a request, now or in its turn."""
        match command:
            case PublishRetained(publication):
                if publication.qos:
                    self._delivery.deliver((publication,))
                else:
                    self._broker.publish((publication,))
            case PersistRetained():
                if not tasks.is_running(self._save_task):
                    self._save_task = tasks.start_task(self._save())
            case ListRetained(filters):
                self._filters_to_list.update(dict.fromkeys(filters))
                self._schedule_read()
            case ReadRetained():
                if len(self._read_requests) < REQUESTS_MAX:
                    self._read_requests.append(command)
                self._schedule_read()

    def on_session_lost(self) -> None:
        """The broker lost its sessions and perhaps its retained values: read which values of local
        clients are left. Values of other nodes are compared after every connection."""
        node = self._driver.node
        values = node.delivery.retained
        own = [t for t, value in values.items() if value.digest and value.owner == node.id]
        if own:
            self.perform(ListRetained(tuple(own)))

    def _schedule_read(self) -> None:
        if self._make_connection is not None and not tasks.is_running(self._read_task):
            self._read_task = tasks.start_task(self._read_all(self._make_connection))

    async def stop(self) -> None:
        """Stop reading and save what is known."""
        if self._read_task is not None:
            self._read_task.cancel()
            await asyncio.gather(self._read_task, return_exceptions=True)
        if self._save_task is not None:
            await asyncio.gather(self._save_task, return_exceptions=True)
        await self._save()

    async def _save(self) -> None:
        data = _encode(self._driver.node.delivery.retained)
        with suppress(UsageError):  # reported elsewhere; the values can be requested again
            await asyncio.to_thread(self._state.save_retained, data)

    async def _read_all(self, connecting: ConnectionFactory) -> None:
        while self._filters_to_list or self._read_requests:
            await asyncio.sleep(POLL_S)  # requests that arrive together are read together
            if self._broker.connection.problem or not (
                self._read_requests or self._has_delivered_earlier()
            ):
                continue
            if self._read_requests:
                is_done = await self._read_requested(self._read_requests[0], connecting)
            else:
                is_done = await self._list_retained(connecting)
            self._set_alarm(self._refused_text if is_done else RETAINED_UNREADABLE)
            if not is_done:
                await asyncio.sleep(RETRY_S)

    def _has_delivered_earlier(self) -> bool:
        """Whether the broker has everything that had been delivered when a survey was first
        possible. More may arrive all the time: the node learns the time."""
        if self._waits_for is None:
            self._waits_for = monotonic(), self._delivery.delivery_mark
        return self._delivery.has_passed(self._waits_for[1])

    async def _list_retained(self, connecting: ConnectionFactory) -> bool:
        assert self._waits_for is not None
        since, self._waits_for = self._waits_for[0], None
        filters = tuple(islice(self._filters_to_list, FILTERS_PER_VISIT_MAX))
        for name in filters:  # before the read: later requests need another one
            del self._filters_to_list[name]
        digests: dict[str, bytes] = {}

        def note(found: packets.PublishPacket) -> None:
            digests[found.topic] = payload_digest(found.payload)

        answered = await read_retained(connecting, filters, note)
        if answered is None:
            self._filters_to_list.update(dict.fromkeys(filters))
            return False
        refused = [name for name in filters if name not in answered]
        self._refused_text = f"{RETAINED_REFUSED} {refused[0]}" if refused else ""
        # Nothing is known about refused filters, not even that there are no values.
        self._driver.feed(RetainedListed(answered, tuple(digests.items()), monotonic() - since))
        return True

    async def _read_requested(self, command: ReadRetained, connecting: ConnectionFactory) -> bool:
        values: dict[str, ClientPublished] = {}

        def keep(found: packets.PublishPacket) -> None:
            values[found.topic] = ClientPublished(
                found.topic, found.payload, found.qos, True, found.properties
            )

        if await read_retained(connecting, command.topics, keep) is None:
            return False
        self._read_requests.popleft()
        self._driver.feed(RetainedRead(command.requester, tuple(values.values())))
        return True
