"""Retained values at one agent: what the node wants read, written or remembered of them is done."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from time import monotonic
from typing import Protocol

import msgspec

from hansa.agent import tasks
from hansa.agent.broker.retained_reader import MakeConnection, read_retained
from hansa.agent.storage.state_directory import RETAINED_FILE, StateDirectory
from hansa.errors import UsageError
from hansa.mqtt import packets
from hansa.protocol.effects import ListRetained, PersistRetained, PublishRetained, ReadRetained
from hansa.protocol.events import ClientPublished, Event, RetainedListed, RetainedRead
from hansa.protocol.model import Publication
from hansa.protocol.node import Node
from hansa.protocol.retained.digest import RetainedEntry, payload_digest

POLL_S = 0.05
"""How often is looked whether the broker has got what was delivered before."""

REQUESTS_MAX = 10_000
"""Questions of other nodes that may wait; who asks more does so again when it is in reach."""

RETRY_S = 5.0
"""Seconds until the broker is visited again after a visit that led to nothing."""

FILTERS_PER_VISIT_MAX = 1_000
"""Filters that are looked at in one visit to the broker."""

RETAINED_UNREADABLE = "the broker does not tell what it has stored, or not in time"
RETAINED_REFUSED = "the broker refuses to show what it has stored for"

_values = msgspec.msgpack.Decoder(dict[str, RetainedEntry])
_encode = msgspec.msgpack.Encoder().encode


class RetainedNodePort(Protocol):
    """What is asked of the loop around the node."""

    @property
    def node(self) -> Node:
        """The node itself."""

    def feed(self, *events: Event) -> None:
        """Hand events to the node."""


class RetainedDeliveryPort(Protocol):
    """What is asked of guaranteed delivery."""

    @property
    def delivery_mark(self) -> int:
        """What stands for all that was delivered so far."""

    def has_passed(self, mark: int) -> bool:
        """Whether all that was delivered before a mark has reached the broker."""

    def deliver(self, batch: Sequence[Publication]) -> None:
        """Give values of QoS 1 and 2 to the broker."""


class ConnectionState(Protocol):
    """What is asked of a connection."""

    @property
    def problem(self) -> str:
        """Why there is none; empty while there is one."""


class RetainedBrokerPort(Protocol):
    """What is asked of the broker's client."""

    @property
    def connection(self) -> ConnectionState:
        """Its connection."""

    def publish(self, publications: Sequence[Publication]) -> None:
        """Publish values of QoS 0."""


def load_retained(state: StateDirectory) -> dict[str, RetainedEntry]:
    """Return what a former life knew."""
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
        make_connection: MakeConnection | None,
        set_alarm: Callable[[str], None],
    ) -> None:
        """`connecting` makes the client that reads; without one nothing is read. `problem` is told
        what the broker does not let it see, and an empty text when it does."""
        self._state = state
        self._driver = driver
        self._delivery = delivery
        self._broker = broker
        self._make_connection = make_connection
        self._set_alarm = set_alarm
        self._refused_text = ""
        self._waits_for: tuple[float, int] | None = None
        """Since when a survey waits, and what for. What others ask for waits for nothing: it is of
        clients here, and in the broker."""
        self._filters_to_list: dict[str, None] = {}
        self._read_requests: deque[ReadRetained] = deque()
        self._save_task: asyncio.Task[None] | None = None
        self._read_task: asyncio.Task[None] | None = None

    def perform(
        self, command: ListRetained | ReadRetained | PublishRetained | PersistRetained
    ) -> None:
        """Do it, now or in its turn."""
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
        """The broker has forgotten its sessions, and maybe what it held: see what is left of what
        clients here have published. Other nodes' values are compared after every connection."""
        node = self._driver.node
        values = node.delivery.retained
        own = [t for t, value in values.items() if value.digest and value.owner == node.id]
        if own:
            self.perform(ListRetained(tuple(own)))

    def _schedule_read(self) -> None:
        if self._make_connection is not None and not tasks.is_running(self._read_task):
            self._read_task = tasks.start_task(self._read_all(self._make_connection))

    async def stop(self) -> None:
        """Read nothing more; save what is known."""
        if self._read_task is not None:
            self._read_task.cancel()
            await asyncio.gather(self._read_task, return_exceptions=True)
        if self._save_task is not None:
            await asyncio.gather(self._save_task, return_exceptions=True)
        await self._save()

    async def _save(self) -> None:
        data = _encode(self._driver.node.delivery.retained)
        with suppress(UsageError):  # a full disk is told elsewhere; this can be asked for again
            await asyncio.to_thread(self._state.save_retained, data)

    async def _read_all(self, connecting: MakeConnection) -> None:
        while self._filters_to_list or self._read_requests:
            await asyncio.sleep(POLL_S)  # what comes together is read together
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
        """Whether the broker has what had been delivered when a survey was first possible. More
        may come all the time: the node is told since when."""
        if self._waits_for is None:
            self._waits_for = monotonic(), self._delivery.delivery_mark
        return self._delivery.has_passed(self._waits_for[1])

    async def _list_retained(self, connecting: MakeConnection) -> bool:
        assert self._waits_for is not None
        since, self._waits_for = self._waits_for[0], None
        filters = tuple(islice(self._filters_to_list, FILTERS_PER_VISIT_MAX))
        for name in filters:  # before the visit: who asks meanwhile wants another one
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
        # Nothing is known of what it refuses, not even that there is none.
        self._driver.feed(RetainedListed(answered, tuple(digests.items()), monotonic() - since))
        return True

    async def _read_requested(self, command: ReadRetained, connecting: MakeConnection) -> bool:
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
