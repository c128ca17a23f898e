"""The inbox journal: recovery after truncation at any record, damage, packet ids."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.agent.delivery.incarnation import ME, YOU, Incarnation, packet, run
from tests.agent.waiting import until

from hansa.agent.delivery.inbox_journal import InboxJournal
from hansa.journal.records import InboxRecord, JournalRecord
from hansa.journal.segment import frame_record
from hansa.journal.settings import JournalSettings
from hansa.mqtt.packets import PubAckPacket, PubRecPacket
from hansa.protocol.model import Publication


@contextmanager
def cut_off(path: Path, inbox: InboxJournal) -> Iterator[list[list[int]]]:
    """Return, for each record written meanwhile, the publications that recovery right after it
    would find."""
    found: list[list[int]] = []
    append = inbox.writer.append

    def append_and_look(record: JournalRecord) -> int:
        offset = append(record)
        inbox.writer.commit()
        copy = path.with_name("copy")
        shutil.copytree(path, copy)
        next_life = InboxJournal(copy, ME, 6, JournalSettings())
        found.append([each.record.sequence for each in next_life.entries.values()])
        next_life.writer.close()
        shutil.rmtree(copy)
        return offset

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inbox.writer, "append", append_and_look)
        yield found


def test_rewrite_after_session_loss_keeps_entries_once_and_in_order(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path / "inbox")
        agent.connect(receive_maximum=3)
        agent.deliver(1, 2, 3, 4, 5)
        await agent.expect_sent(packet(1), packet(2), packet(3))
        agent.injection.on_handshake_steps([PubRecPacket(2)])
        agent.injection.on_disconnected()
        with cut_off(tmp_path / "inbox", agent.inbox) as found:
            agent.connect(session_present=False)
        assert found == [[1, 2, 3, 4, 5]] * 3
        await agent.injection.stop()

    run(work)


def test_inbox_without_segments_is_moved_and_packet_ids_differ(tmp_path):
    path = tmp_path / "inbox"
    inbox = InboxJournal(path, ME, 6, JournalSettings())
    inbox.add(Publication(YOU, 8, 1, 2, "a", b"1"))
    inbox.writer.close()
    for file in path.glob("*.log"):
        file.unlink()
    inbox = InboxJournal(path, ME, 9, JournalSettings())
    assert "are missing" in inbox.damage_text
    assert (inbox.next_index, inbox.entries) == (10, {})
    assert (tmp_path / "inbox-damaged-9" / "durable").exists()
    inbox.writer.close()


def test_inbox_with_invalid_record_is_moved(tmp_path):
    path = tmp_path / "inbox"
    inbox = InboxJournal(path, ME, 6, JournalSettings())
    inbox.add(Publication(YOU, 8, 1, 2, "a", b"1", previous=((ME, 0),)))
    inbox.record_gap(YOU, 8, 2, 3, "retention")
    inbox.writer.close()
    with next(path.glob("*.log")).open("ab") as file:
        file.write(frame_record(InboxRecord.KIND, b"nonsense"))
    inbox = InboxJournal(path, ME, 9, JournalSettings())
    assert "is invalid" in inbox.damage_text
    assert (inbox.next_index, inbox.entries, inbox.total_bytes) == (10, {}, 0)
    assert (inbox.accepted, list(inbox.gaps)) == ({}, [])
    assert (tmp_path / "inbox-damaged-9").is_dir()
    inbox.writer.close()


def test_damage_found_at_opening_is_reported(tmp_path):
    InboxJournal(tmp_path, ME, 6, JournalSettings()).writer.close()
    (tmp_path / "durable").write_bytes(b"nonsense")
    inbox = InboxJournal(tmp_path, ME, 9, JournalSettings())
    assert "durable is damaged" in inbox.damage_text
    inbox.writer.close()


def test_cleared_value_is_not_stored_again(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path / "inbox")
        agent.connect()
        agent.injection.add_publications(
            [Publication(YOU, 8, n, 1, "a", b"%d" % n, retain=True) for n in (1, 2)]
        )
        await until(lambda: len(agent.sent) == 2, "both")
        with cut_off(tmp_path / "inbox", agent.inbox) as found:
            agent.injection.on_handshake_steps([PubAckPacket(2, 0x97)])
        assert found == [[1, 2]]
        await agent.injection.stop()

    run(work)


def test_packet_id_of_waiting_entry_is_not_reused(tmp_path, monkeypatch):
    monkeypatch.setattr("hansa.agent.delivery.inbox_journal.PUBLISH_PACKET_IDS", 3)
    inbox = InboxJournal(tmp_path, ME, 5, JournalSettings())
    waits = inbox.add(Publication(YOU, 1, 1, 2, "a", b""))
    ids = []
    for number in range(2, 8):
        entry = inbox.add(Publication(YOU, 1, number, 2, "a", b""))
        ids.append(entry.packet_id)
        inbox.mark_completed(entry)
    assert waits.packet_id == 2
    assert ids == [3, 1, 3, 1, 3, 1]
    inbox.mark_completed(waits)
    assert [inbox.add(Publication(YOU, 1, 8, 2, "a", b"")).packet_id] == [2]
    inbox.writer.close()
