"""Many wait, one thread syncs."""

import asyncio
import os

import pytest
from tests.journal.journals import captured, numbers, open_writer

from hansa.errors import JournalUnusable
from hansa.journal import disk
from hansa.journal.group_commit import GroupCommit


def test_all_who_wait_go_on_after_few_syncs(tmp_path, monkeypatch):
    syncs = []

    def counted(descriptor):
        syncs.append(descriptor)
        os.fsync(descriptor)

    async def capture(writer):
        commits = GroupCommit(writer)

        async def one(number):
            offset = writer.append(captured(number))
            await commits.durable(offset)
            assert writer.durable > offset
            assert number in numbers(tmp_path)

        await asyncio.gather(*(one(number) for number in range(1, 51)))

    with open_writer(tmp_path) as writer:
        monkeypatch.setattr(disk, "_sync_data", counted)
        asyncio.run(capture(writer))
        assert 1 <= len(syncs) <= 3


def test_what_is_already_durable_needs_no_commit(tmp_path, monkeypatch):
    with open_writer(tmp_path) as writer:
        offset = writer.append(captured(1))
        writer.commit()
        monkeypatch.setattr(writer, "commit", None)
        asyncio.run(GroupCommit(writer).durable(offset))
        monkeypatch.undo()


def test_who_stops_waiting_does_not_stop_the_others(tmp_path):
    async def capture(writer):
        commits = GroupCommit(writer)
        waiting = [asyncio.create_task(commits.durable(writer.append(captured(n)))) for n in (1, 2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await waiting[1]

    with open_writer(tmp_path) as writer:
        asyncio.run(capture(writer))
        assert numbers(tmp_path) == [1, 2]


def test_a_failure_reaches_everybody_who_waits_and_nobody_else(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(5, "Input/output error")

    async def capture(writer):
        commits = GroupCommit(writer)
        offsets = [writer.append(captured(number)) for number in (1, 2, 3)]
        with monkeypatch.context() as broken:
            broken.setattr(disk, "_sync_data", fail)
            waiting = [asyncio.create_task(commits.durable(offset)) for offset in offsets]
            await asyncio.sleep(0)
            waiting[0].cancel()
            return await asyncio.gather(*waiting, return_exceptions=True)

    writer = open_writer(tmp_path)
    ends = asyncio.run(capture(writer))
    assert [type(end) for end in ends] == [asyncio.CancelledError, JournalUnusable, JournalUnusable]
    with pytest.raises(JournalUnusable):
        writer.commit()
    writer.close()
