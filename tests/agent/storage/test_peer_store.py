"""The store of peers."""

import asyncio

import pytest
from tests.agent.waiting import until

from hansa.agent.storage import retry
from hansa.agent.storage.peer_store import PeerStore, decode_peers
from hansa.errors import UsageError
from hansa.protocol.effects import PersistPeer
from hansa.protocol.events import PeersPersisted
from hansa.protocol.membership.records import InterestRecord, NodeRecord
from hansa.protocol.model import NodeId

ONE, TWO = NodeId(1), NodeId(2)
NODE = NodeRecord(ONE, 3, 4, 3, b"k" * 32, "one", ("h:1",), 1.0, ((TWO, 5),))
INTEREST = InterestRecord(ONE, 3, 4, 4, ("a/#",))


def test_saved_peers_are_confirmed():
    async def work() -> None:
        files: list[bytes] = []
        noted: list[PeersPersisted] = []
        known = PeerStore({TWO: (NODE,)}, files.append, noted.append, lambda text: None)
        known.persist_peer(PersistPeer(1, ONE), [NODE])
        known.persist_peer(PersistPeer(2, ONE), [NODE, INTEREST])
        known.persist_peer(PersistPeer(3, TWO), [])
        assert noted == []
        await until(lambda: noted and noted[-1] == PeersPersisted(3), "noted")
        assert decode_peers(files[-1]) == {ONE: (NODE, INTEREST)}
        assert len(files) < 3  # simultaneous commands share a write
        await known.stop()

    asyncio.run(work())


def test_failing_disk_raises_alarm_and_is_retried(monkeypatch):
    monkeypatch.setattr(retry, "RETRY_S", 0.01)

    async def work() -> None:
        failures = [UsageError("no space")]
        noted: list[PeersPersisted] = []
        problems: list[str] = []

        def write(data: bytes) -> None:
            if failures:
                raise failures.pop()

        known = PeerStore({}, write, noted.append, problems.append)
        known.persist_peer(PersistPeer(1, ONE), [NODE])
        await until(lambda: noted, "noted")
        assert (problems, noted) == (["no space", ""], [PeersPersisted(1)])

    asyncio.run(work())


def test_corrupt_file_is_an_error():
    with pytest.raises(ValueError):
        decode_peers(b"\xc1")
