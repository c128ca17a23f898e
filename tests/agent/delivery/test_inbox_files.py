"""The files of the inbox log: recovery, damage, packet ids."""

from pathlib import Path

import pytest

from hansa.agent.delivery.inbox_files import InboxFiles
from hansa.journal.records import InboxRecord
from hansa.journal.segment import frame_record
from hansa.journal.settings import JournalSettings
from hansa.protocol.model import NodeId, Publication

ME, YOU = NodeId(1), NodeId(2)


def opened(path: Path, epoch: int = 6, settings: JournalSettings | None = None) -> InboxFiles:
    return InboxFiles(path, ME, epoch, settings or JournalSettings())


@pytest.mark.parametrize("count", [1, 40])
def test_every_segment_restores_complete_state(tmp_path, count):
    small = JournalSettings(segment_bytes=300, retention_bytes=300)
    files = opened(tmp_path, settings=small)
    inbox = files.log_state
    accepted, waiting = (inbox.add(Publication(YOU, 8, n, 2, "a", b"")) for n in (1, 2))
    inbox.mark_pubrec_received(accepted)
    for number in range(3, 3 + count):
        inbox.mark_completed(inbox.add(Publication(YOU, 8, number, 1, "a", b"")))
        files.writer.commit()
    files.writer.close()
    files = opened(tmp_path, settings=small)
    found = files.log_state.entries.values()
    assert [(each.record, each.accepted_offset is not None) for each in found] == [
        (accepted.record, True),
        (waiting.record, False),
    ]
    assert (files.log_state.origin_progress, files.log_state.next_index) == (
        {YOU: (8, 2 + count)},
        3 + count,
    )
    files.writer.close()


def test_damaged_inbox_is_moved(tmp_path):
    path = tmp_path / "inbox"
    files = opened(path, 5)
    files.log_state.add(Publication(YOU, 8, 1, 1, "a", b"x"))
    files.writer.close()
    (file,) = path.glob("*.log")
    file.write_bytes(file.read_bytes()[:-3])
    again = opened(path, 6)
    assert "moved to inbox-damaged-6" in again.damage_text
    assert (again.log_state.entries, again.log_state.origin_progress) == ({}, {})
    again.writer.close()


def test_inbox_without_segments_is_moved_and_packet_ids_differ(tmp_path):
    path = tmp_path / "inbox"
    files = opened(path)
    files.log_state.add(Publication(YOU, 8, 1, 2, "a", b"1"))
    files.writer.close()
    for file in path.glob("*.log"):
        file.unlink()
    files = opened(path, 9)
    assert "are missing" in files.damage_text
    assert (files.log_state.next_index, files.log_state.entries) == (10, {})
    assert (tmp_path / "inbox-damaged-9" / "durable").exists()
    files.writer.close()


def test_inbox_with_invalid_record_is_moved(tmp_path):
    path = tmp_path / "inbox"
    files = opened(path)
    files.log_state.add(Publication(YOU, 8, 1, 2, "a", b"1", receivers=((ME, 0),)))
    files.log_state.record_gap(YOU, 8, 2, 3, "retention")
    files.writer.close()
    with next(path.glob("*.log")).open("ab") as file:
        file.write(frame_record(InboxRecord.KIND, b"nonsense"))
    files = opened(path, 9)
    inbox = files.log_state
    assert "is invalid" in files.damage_text
    assert (inbox.next_index, inbox.entries, inbox.total_bytes) == (10, {}, 0)
    assert (inbox.origin_progress, list(inbox.gaps)) == ({}, [])
    assert (tmp_path / "inbox-damaged-9").is_dir()
    files.writer.close()


def test_damage_found_at_opening_is_reported(tmp_path):
    opened(tmp_path).writer.close()
    (tmp_path / "durable").write_bytes(b"nonsense")
    files = opened(tmp_path, 9)
    assert "durable is damaged" in files.damage_text
    files.writer.close()
