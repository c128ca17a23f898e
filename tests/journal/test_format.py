"""docs/journal.md is correct: its bytes, its example, its tables."""

import re
from pathlib import Path

from tests.journal.journals import captured, read, write

from hansa.journal.crash import JournalCrashPoint
from hansa.journal.records import RECORD_TYPES, CaptureCompletedRecord, JournalRecord
from hansa.journal.segment import log_name

PAGE = (Path(__file__).parent.parent.parent / "docs" / "journal.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(BYTES,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
WRITTEN: list[JournalRecord] = [captured(1), CaptureCompletedRecord(1)]


def documented() -> bytes:
    return bytes.fromhex("".join(re.split(r"  +", line)[0] for line in BYTES.splitlines()))


def test_documented_bytes_are_written(tmp_path):
    write(tmp_path, *WRITTEN)
    assert (tmp_path / log_name(0)).read_bytes() == documented()


def test_documented_bytes_are_read(tmp_path):
    (tmp_path / log_name(0)).write_bytes(documented())
    write(tmp_path)
    assert read(tmp_path) == WRITTEN


def test_documented_example_runs(tmp_path):
    names: dict[str, object] = {}
    exec(compile(EXAMPLE, "docs/journal.md", "exec"), names)  # noqa: S102
    use = names["use"]
    assert callable(use)
    assert use(tmp_path) == ["a/b", "a/c"]


def test_every_record_kind_is_documented():
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (.+) \|$", PAGE, re.MULTILINE)
    assert rows == [
        (str(number), kind.__name__, ", ".join(kind.__struct_fields__))
        for number, kind in RECORD_TYPES.items()
    ]


def test_every_crash_point_is_documented():
    _, _, table = PAGE.partition("| point | last step before the crash |")
    assert re.findall(r"^\| (\d+) \|", table, re.MULTILINE) == [
        str(int(each)) for each in JournalCrashPoint
    ]
