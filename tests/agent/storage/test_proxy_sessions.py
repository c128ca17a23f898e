"""The file of the proxy's sessions on disks that fail, and what its next reader trusts."""

import asyncio
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from hansa.agent.storage import proxy_sessions
from hansa.agent.storage.proxy_sessions import SessionFile, mark_missed_changes
from hansa.observers.proxy.observer import ADDED, OPENED, SessionChange

OPEN: SessionChange = ("c", OPENED, ["3600"])


def add(*filters: str) -> SessionChange:
    return ("c", ADDED, list(filters))


class Disk:
    """A file of sessions, and the last text of its alarm."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "proxy-sessions"
        self.alarm = ""

    def open(self, declared: bool = True) -> SessionFile:
        return SessionFile(self.path, declared, self._set_alarm)

    def _set_alarm(self, text: str) -> None:
        self.alarm = text


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file can grow beyond 200 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def save(file: SessionFile, *changes: SessionChange) -> None:
    asyncio.run(file.save(changes))


def known(file: SessionFile) -> dict[str, list[str]]:
    return {name: list(session.filters) for name, session in file.sessions.items()}


def test_saved_sessions_are_known_and_trusted_later(disk):
    save(disk.open(), OPEN, add("a"))
    later = disk.open()
    save(later, add("b"))
    again = disk.open()
    assert known(again) == {"c": ["a", "b"]}
    assert (again.may_have_earlier_sessions, again.has_missed_changes) == (False, False)


def test_full_disk_is_remembered_by_the_file_itself(disk, small_files):
    file = disk.open()
    save(file, OPEN, add("a"))
    save(file, add("long" * 50))
    assert "cannot be saved: File too large" in disk.alarm
    assert not file.is_saved
    later = disk.open()
    assert known(later) == {"c": ["a"]}
    assert later.has_missed_changes


def test_successful_save_after_a_full_disk_is_trusted_again(disk):
    file = disk.open()
    save(file, OPEN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    save(file, add("long" * 50))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    save(file)
    assert (file.is_saved, disk.alarm) == (True, "")
    later = disk.open()
    assert known(later) == {"c": ["long" * 50]}
    assert not later.has_missed_changes


def test_missed_changes_last_until_the_declaration_is_withdrawn_and_made_again(disk):
    save(disk.open(), OPEN, add("a"))
    mark_missed_changes(disk.path)
    save(disk.open(declared=True))
    assert disk.open(declared=True).has_missed_changes
    save(disk.open(declared=False))
    withdrawn = disk.open(declared=False)
    assert (withdrawn.may_have_earlier_sessions, withdrawn.has_missed_changes) == (True, False)
    again = disk.open(declared=True)
    assert (again.may_have_earlier_sessions, again.has_missed_changes) == (False, False)
    assert known(again) == {"c": ["a"]}


def test_damaged_file_is_kept_and_what_it_held_is_not_trusted(disk, tmp_path):
    save(disk.open(), OPEN, add("a"))
    with disk.path.open("ab") as file:
        file.write(b'["c","add",[7]]\n')
    found = disk.open()
    assert known(found) == {"c": ["a"]}
    assert found.has_missed_changes
    assert (tmp_path / "proxy-sessions.damaged").exists()
    save(found)
    assert disk.open().has_missed_changes


@pytest.mark.parametrize("content", [b"", b'{"may_have_earlier'])
def test_file_without_a_header_is_not_trusted(disk, content):
    """On a full disk a file can be created and not written."""
    disk.path.write_bytes(content)
    found = disk.open(declared=True)
    assert (found.may_have_earlier_sessions, found.has_missed_changes) == (False, True)


def test_file_of_an_earlier_version_is_read(disk):
    disk.path.write_bytes(b'{"may_have_earlier_sessions":false}\n["c","open",["5"]]\n')
    mark_missed_changes(disk.path)  # its header is too short for that
    file = disk.open(declared=False)
    assert known(file) == {"c": []}
    assert not file.may_have_earlier_sessions
    save(file)
    assert len(disk.path.read_bytes().split(b"\n")[0]) == proxy_sessions.HEADER_BYTES - 1


def test_mark_creates_the_file_of_an_agent_that_has_never_run(disk):
    mark_missed_changes(disk.path)
    found = disk.open()
    assert (found.may_have_earlier_sessions, found.has_missed_changes) == (False, True)


def test_mark_without_a_directory_does_nothing(tmp_path):
    mark_missed_changes(tmp_path / "missing" / "proxy-sessions")
    assert list(tmp_path.iterdir()) == []
