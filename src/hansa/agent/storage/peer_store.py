"""Store of peers: membership records of other nodes, so that publications for them are captured
right after a restart, before this node has met any peer.

The file is replaced whole after each change; changes during a write share the next one.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from hansa.agent import tasks
from hansa.agent.storage.retry import run_write
from hansa.agent.storage.state_directory import PEERS_FILE, StateDirectory
from hansa.errors import UsageError
from hansa.protocol.effects import PersistPeer
from hansa.protocol.events import PeersPersisted
from hansa.protocol.membership.records import Record
from hansa.protocol.model import NodeId

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(dict[int, tuple[Record, ...]])


def decode_peers(data: bytes) -> dict[NodeId, tuple[Record, ...]]:
    """Decode the file; raise ValueError if it is corrupt."""
    return {NodeId(node): records for node, records in _decoder.decode(data).items()}


def load_peers(state: StateDirectory) -> dict[NodeId, tuple[Record, ...]]:
    data = state.load_peers()
    try:
        return decode_peers(data) if data else {}
    except ValueError as error:
        path = state.path / PEERS_FILE
        raise UsageError(f"{path} cannot be read ({error}); remove it to start without") from None


class PeerStore:
    """Saves the records of peers in the background."""

    def __init__(
        self,
        peers: dict[NodeId, tuple[Record, ...]],
        write: Callable[[bytes], None],
        on_persisted: Callable[[PeersPersisted], None],
        set_alarm: Callable[[str], None],
    ) -> None:
        """`write` returns when its bytes are durable; `on_persisted` follows each save."""
        self._encoded_peers = {
            node: msgspec.Raw(_encode(records)) for node, records in peers.items()
        }
        self._write = write
        self._on_persisted = on_persisted
        self._set_alarm = set_alarm
        self._save_id = 0
        self._task: asyncio.Task[None] | None = None

    def persist_peer(self, command: PersistPeer, records: Iterable[Record]) -> None:
        """Save the current records of a node; without records, remove it."""
        current = tuple(records)
        if current:
            self._encoded_peers[command.node] = msgspec.Raw(_encode(current))
        else:
            self._encoded_peers.pop(command.node, None)
        self._save_id = command.save_id
        if self._task is None:
            self._task = tasks.start_task(self._save())

    async def stop(self) -> None:
        """Cancel a pending save."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _save(self) -> None:
        saved_id = 0
        try:
            while saved_id < self._save_id:
                save_id, data = self._save_id, _encode(self._encoded_peers)
                if await run_write(partial(self._write, data), self._set_alarm):
                    saved_id = save_id
                    self._on_persisted(PeersPersisted(save_id))
        finally:
            self._task = None
