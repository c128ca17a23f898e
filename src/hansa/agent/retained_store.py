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
from hansa.agent.broker.retained_reader import Connecting, read_stored
from hansa.agent.state import RETAINED, StateDirectory
from hansa.errors import UsageError
from hansa.mqtt import packets
from hansa.protocol.effects import Memorise, ReadStored, Store, Survey
from hansa.protocol.events import Event, Published, StoredRead, Surveyed
from hansa.protocol.model import Publication
from hansa.protocol.node import Node
from hansa.protocol.retained.digest import Value, digest

POLL_S = 0.05
"""How often is looked whether the broker has got what was delivered before."""

ASKED_MAX = 10_000
"""Questions of other nodes that may wait; who asks more does so again when it is in reach."""

RETRY_S = 5.0
"""Seconds until the broker is visited again after a visit that led to nothing."""

SURVEYED_MAX = 1_000
"""Filters that are looked at in one visit to the broker."""

UNTOLD = "the broker does not tell what it has stored, or not in time"
REFUSED = "the broker refuses to show what it has stored for"

_values = msgspec.msgpack.Decoder(dict[str, Value])
_encode = msgspec.msgpack.Encoder().encode


class NodePort(Protocol):
    """What is asked of the loop around the node."""

    @property
    def node(self) -> Node:
        """The node itself."""

    def feed(self, *events: Event) -> None:
        """Hand events to the node."""


class SurePort(Protocol):
    """What is asked of guaranteed delivery."""

    @property
    def mark(self) -> int:
        """What stands for all that was delivered so far."""

    def has_passed(self, mark: int) -> bool:
        """Whether all that was delivered before a mark has reached the broker."""

    def deliver(self, batch: Sequence[Publication]) -> None:
        """Give values of QoS 1 and 2 to the broker."""


class Standing(Protocol):
    """What is asked of a connection."""

    @property
    def problem(self) -> str:
        """Why there is none; empty while there is one."""


class BrokerPort(Protocol):
    """What is asked of the broker's client."""

    @property
    def connection(self) -> Standing:
        """Its connection."""

    def publish(self, publications: Sequence[Publication]) -> None:
        """Publish values of QoS 0."""


def known(state: StateDirectory) -> dict[str, Value]:
    """Return what a former life knew."""
    data = state.retained()
    try:
        return _values.decode(data) if data else {}
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        path = state.path / RETAINED
        raise UsageError(f"{path} cannot be read ({error}); remove it to start without") from None


class RetainedValues:
    """Reads one after the other, writes at once."""

    def __init__(
        self,
        state: StateDirectory,
        driver: NodePort,
        sure: SurePort,
        broker: BrokerPort,
        connecting: Connecting | None,
        problem: Callable[[str], None],
    ) -> None:
        """`connecting` makes the client that reads; without one nothing is read. `problem` is told
        what the broker does not let it see, and an empty text when it does."""
        self._state = state
        self._driver = driver
        self._sure = sure
        self._broker = broker
        self._connecting = connecting
        self._problem = problem
        self._refusal = ""
        self._mark: tuple[float, int] | None = None
        """Since when a survey waits, and what for. What others ask for waits for nothing: it is of
        clients here, and in the broker."""
        self._unsurveyed: dict[str, None] = {}
        self._asked: deque[ReadStored] = deque()
        self._saving: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None

    def perform(self, order: Survey | ReadStored | Store | Memorise) -> None:
        """Do it, now or in its turn."""
        match order:
            case Store(publication):
                if publication.qos:
                    self._sure.deliver((publication,))
                else:
                    self._broker.publish((publication,))
            case Memorise():
                if not tasks.is_running(self._saving):
                    self._saving = tasks.start(self._save())
            case Survey(filters):
                self._unsurveyed.update(dict.fromkeys(filters))
                self._read_soon()
            case ReadStored():
                if len(self._asked) < ASKED_MAX:
                    self._asked.append(order)
                self._read_soon()

    def look_again(self) -> None:
        """The broker has forgotten its sessions, and maybe what it held: see what is left of what
        clients here have published. Other nodes' values are compared after every connection."""
        node = self._driver.node
        values = node.custody.retained.values
        own = [t for t, value in values.items() if value.digest and value.owner == node.id]
        if own:
            self.perform(Survey(tuple(own)))

    def _read_soon(self) -> None:
        if self._connecting is not None and not tasks.is_running(self._reading):
            self._reading = tasks.start(self._read_all(self._connecting))

    async def stop(self) -> None:
        """Read nothing more; save what is known."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._saving is not None:
            await asyncio.gather(self._saving, return_exceptions=True)
        await self._save()

    async def _save(self) -> None:
        data = _encode(self._driver.node.custody.retained.values)
        with suppress(UsageError):  # a full disk is told elsewhere; this can be asked for again
            await asyncio.to_thread(self._state.remember_retained, data)

    async def _read_all(self, connecting: Connecting) -> None:
        while self._unsurveyed or self._asked:
            await asyncio.sleep(POLL_S)  # what comes together is read together
            if self._broker.connection.problem or not (self._asked or self._has_settled()):
                continue
            if self._asked:
                is_done = await self._read(self._asked[0], connecting)
            else:
                is_done = await self._survey(connecting)
            self._problem(self._refusal if is_done else UNTOLD)
            if not is_done:
                await asyncio.sleep(RETRY_S)

    def _has_settled(self) -> bool:
        """Whether the broker has what had been delivered when a survey was first possible. More
        may come all the time: the node is told since when."""
        if self._mark is None:
            self._mark = monotonic(), self._sure.mark
        return self._sure.has_passed(self._mark[1])

    async def _survey(self, connecting: Connecting) -> bool:
        assert self._mark is not None
        since, self._mark = self._mark[0], None
        filters = tuple(islice(self._unsurveyed, SURVEYED_MAX))
        for name in filters:  # before the visit: who asks meanwhile wants another one
            del self._unsurveyed[name]
        digests: dict[str, bytes] = {}

        def note(found: packets.Publish) -> None:
            digests[found.topic] = digest(found.payload)

        answered = await read_stored(connecting, filters, note)
        if answered is None:
            self._unsurveyed.update(dict.fromkeys(filters))
            return False
        refused = [name for name in filters if name not in answered]
        self._refusal = f"{REFUSED} {refused[0]}" if refused else ""
        # Nothing is known of what it refuses, not even that there is none.
        self._driver.feed(Surveyed(answered, tuple(digests.items()), monotonic() - since))
        return True

    async def _read(self, order: ReadStored, connecting: Connecting) -> bool:
        values: dict[str, Published] = {}

        def keep(found: packets.Publish) -> None:
            values[found.topic] = Published(
                found.topic, found.payload, found.qos, True, found.properties
            )

        if await read_stored(connecting, order.topics, keep) is None:
            return False
        self._asked.popleft()
        self._driver.feed(StoredRead(order.to, tuple(values.values())))
        return True
