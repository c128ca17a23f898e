"""Store of leases: how long other nodes have been unreachable, and which have expired.

Leases continue over restarts. Only time in which this agent ran counts, because the clock of a
machine that just started may be wrong. The file is saved every SAVE_INTERVAL_S, when a node
returns, and at the end; after a crash the time since the last save is counted again.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial

import msgspec

from hansa.agent import tasks
from hansa.agent.storage.retry import run_write
from hansa.protocol.events import PeersRestored
from hansa.protocol.membership.records import Record, Stamp
from hansa.protocol.membership.view import MembershipView
from hansa.protocol.model import NodeId

SAVE_INTERVAL_S = 60.0
"""Seconds between two saves, if something has changed."""


class SavedLeases(msgspec.Struct, frozen=True):
    """Content of the file. The field names are keys in the file."""

    absent: Mapping[int, float]
    forgotten: Mapping[int, Stamp]


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(SavedLeases)


class LeaseStore:
    """Saves the leases of the membership while the agent runs, and at its end."""

    def __init__(
        self,
        saved: bytes,
        membership: MembershipView,
        write: Callable[[bytes], None],
        set_alarm: Callable[[str], None],
    ) -> None:
        self._write = write
        self._membership = membership
        self._set_alarm = set_alarm
        try:
            self._saved = _decoder.decode(saved)
        except msgspec.MsgspecError:  # missing or corrupt: all leases start again
            self._saved = SavedLeases({}, {})
        self._node_returned = asyncio.Event()
        self._task = tasks.start_task(self._run())

    def peers_restored(self, records: Iterable[Record]) -> PeersRestored:
        absent = {NodeId(node): seconds for node, seconds in self._saved.absent.items()}
        forgotten = {NodeId(node): stamp for node, stamp in self._saved.forgotten.items()}
        return PeersRestored(tuple(records), absent, forgotten)

    def on_node_reachable(self, node: NodeId) -> None:
        """Save soon if the file says that this node is unreachable."""
        if node in self._saved.absent:
            self._node_returned.set()

    async def stop(self) -> None:
        """Save once more, without a retry."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._save()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(SAVE_INTERVAL_S):
                    await self._node_returned.wait()
            self._node_returned.clear()
            await self._save()

    async def _save(self) -> None:
        absent_seconds = self._membership.absent_seconds(asyncio.get_running_loop().time())
        tombstones = {int(node): stamp for node, stamp in self._membership.tombstones.items()}
        now = SavedLeases(
            {int(node): seconds for node, seconds in absent_seconds.items()}, tombstones
        )
        if now != self._saved:
            if await run_write(partial(self._write, _encode(now)), self._set_alarm):
                self._saved = now
