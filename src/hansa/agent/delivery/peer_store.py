"""What is known of other nodes, on disk: publications are owed to them even after a restart here,
before this node has met anybody."""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from hansa.agent import tasks
from hansa.agent.delivery.group_commit import written
from hansa.agent.state import NODES, StateDirectory
from hansa.errors import UsageError
from hansa.protocol.effects import Remember
from hansa.protocol.events import Noted
from hansa.protocol.membership.records import Record
from hansa.protocol.model import NodeId

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(dict[int, tuple[Record, ...]])


def decode(data: bytes) -> dict[NodeId, tuple[Record, ...]]:
    """Return what a file says; raise ValueError if it is none."""
    return {NodeId(node): records for node, records in _decoder.decode(data).items()}


def known(state: StateDirectory) -> dict[NodeId, tuple[Record, ...]]:
    """Return what a former life knew."""
    data = state.nodes()
    try:
        return decode(data) if data else {}
    except ValueError as error:
        path = state.path / NODES
        raise UsageError(f"{path} cannot be read ({error}); remove it to start without") from None


class Acquaintances:
    """Writes the file, whole, whenever something has changed."""

    def __init__(
        self,
        known: dict[NodeId, tuple[Record, ...]],
        write: Callable[[bytes], None],
        noted: Callable[[Noted], None],
        problem: Callable[[str], None],
    ) -> None:
        """Start with what is known; `write` returns when its bytes are durable, `problem` is told
        why they are not, and an empty text when they are again."""
        self._known = {node: msgspec.Raw(_encode(records)) for node, records in known.items()}
        self._write = write
        self._noted = noted
        self._problem = problem
        self._number = 0
        self._task: asyncio.Task[None] | None = None

    def remember(self, order: Remember, records: Iterable[Record]) -> None:
        """Note what is known of a node now; if nothing is, forget it."""
        found = tuple(records)
        if found:
            self._known[order.node] = msgspec.Raw(_encode(found))
        else:
            self._known.pop(order.node, None)
        self._number = order.number
        if self._task is None:
            self._task = tasks.start(self._save())

    async def stop(self) -> None:
        """Write nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _save(self) -> None:
        done = 0
        try:
            while done < self._number:
                number, data = self._number, _encode(self._known)
                if await written(partial(self._write, data), self._problem):
                    done = number
                    self._noted(Noted(number))
        finally:
            self._task = None
