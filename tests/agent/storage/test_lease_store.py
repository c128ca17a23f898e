"""The store of leases."""

import asyncio
from collections.abc import Callable
from typing import cast

from tests.agent.waiting import until

from hansa.agent.storage import lease_store
from hansa.agent.storage.lease_store import LeaseStore
from hansa.protocol.events import PeersRestored
from hansa.protocol.membership.leases import Leases
from hansa.protocol.membership.records import NodeRecord
from hansa.protocol.membership.view import MembershipView
from hansa.protocol.model import NodeId

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
RECORD = NodeRecord(ONE, 3, 4, 3, b"k" * 32, "one", ("h:1",), 1.0, ((TWO, 5),))


def quiet(text: str) -> None:
    assert text == ""


def store(
    saved: bytes, leases: Leases, write: Callable[[bytes], None], alarm: Callable[[str], None]
) -> LeaseStore:
    return LeaseStore(saved, cast(MembershipView, leases), write, alarm)


async def saved(leases: Leases, files: list[bytes]) -> None:
    """Start a store and stop it."""
    kept = store(files[-1] if files else b"", leases, files.append, quiet)
    await kept.stop()


def test_unreachable_and_expired_nodes_are_restored():
    async def work() -> PeersRestored:
        files: list[bytes] = []
        leases = Leases(60.0, 8)
        leases.start_lease(TWO, asyncio.get_running_loop().time() - 20.0)
        leases.add_tombstone(THREE, (3, 5))
        await saved(leases, files)
        again = store(files[-1], Leases(60.0, 8), files.append, quiet)
        past = again.peers_restored([RECORD])
        await again.stop()
        return past

    past = asyncio.run(work())
    assert (past.records, past.tombstones) == ((RECORD,), {THREE: (3, 5)})
    assert list(past.absent_seconds) == [TWO] and 20.0 <= past.absent_seconds[TWO] < 30.0


def test_nothing_is_written_while_all_nodes_are_reachable():
    async def work() -> None:
        files: list[bytes] = []
        await saved(Leases(60.0, 8), files)
        assert files == []

    asyncio.run(work())


def test_corrupt_file_is_ignored():
    async def work() -> None:
        kept = store(b"\xc1", Leases(60.0, 8), quiet, quiet)  # type: ignore[arg-type]
        assert kept.peers_restored(()) == PeersRestored(())
        await kept.stop()

    asyncio.run(work())


def test_file_is_saved_regularly_and_when_a_node_returns(monkeypatch):
    async def work() -> None:
        files: list[bytes] = []
        leases = Leases(60.0, 8)
        leases.start_lease(TWO, asyncio.get_running_loop().time())
        monkeypatch.setattr(lease_store, "SAVE_INTERVAL_S", 0.01)
        kept = store(b"", leases, files.append, quiet)
        await until(lambda: len(files) > 1, "two of them")
        await kept.stop()
        monkeypatch.setattr(lease_store, "SAVE_INTERVAL_S", 3_600.0)
        kept = store(files[-1], leases, files.append, quiet)
        count = len(files)
        kept.on_node_reachable(THREE)
        leases.cancel_lease(TWO)
        kept.on_node_reachable(TWO)
        await until(lambda: len(files) > count, "that it has returned")
        assert store(files[-1], leases, files.append, quiet).peers_restored(()) == PeersRestored(())
        await kept.stop()

    asyncio.run(work())
