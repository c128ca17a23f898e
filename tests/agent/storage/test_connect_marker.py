"""The connect marker on disk."""

import asyncio
from pathlib import Path

from hansa.agent.storage.connect_marker import ConnectMarker
from hansa.agent.storage.state_directory import CONNECT_MARKER_FILE


def marker(directory: Path, problems: list[str] | None = None) -> ConnectMarker:
    alarms = [] if problems is None else problems
    return ConnectMarker(directory / CONNECT_MARKER_FILE, alarms.append)


def create(made: ConnectMarker) -> None:
    asyncio.run(made.create())


def test_next_incarnation_finds_the_marker_until_it_is_removed(tmp_path):
    first = marker(tmp_path)
    assert not first.was_left
    create(first)
    assert not first.was_left
    second = marker(tmp_path)
    assert second.was_left
    create(second)
    second.remove()
    assert not marker(tmp_path).was_left
    second.remove()  # again


def test_full_disk_raises_alarm(tmp_path):
    problems: list[str] = []
    made = marker(tmp_path / "gone", problems)
    create(made)
    assert problems == [f"cannot write {tmp_path}/gone/connecting: No such file or directory"]
    (tmp_path / "gone").mkdir()
    create(made)
    assert problems[1:] == [""]
    (tmp_path / "gone" / "connecting").unlink()
    (tmp_path / "gone" / "connecting").mkdir()
    made.remove()
    assert problems[2].startswith("cannot remove")
