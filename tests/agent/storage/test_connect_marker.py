"""The connect marker: when the session at the broker is uncertain."""

import asyncio
from pathlib import Path

from hansa.agent.storage.connect_marker import ConnectMarker
from hansa.agent.storage.state_directory import (
    CONNECT_MARKER_FILE,
)


def marker(directory: Path, problems: list[str] | None = None) -> ConnectMarker:
    alarms = [] if problems is None else problems
    return ConnectMarker(directory / CONNECT_MARKER_FILE, alarms.append)


def is_uncertain(made: ConnectMarker) -> bool:
    return made.is_uncertain


def begin(made: ConnectMarker) -> None:
    asyncio.run(made.before_connect())


def test_crash_while_connecting_is_uncertain(tmp_path):
    first = marker(tmp_path)
    assert not is_uncertain(first)
    begin(first)
    assert not is_uncertain(first)
    second = marker(tmp_path)
    assert is_uncertain(second)
    begin(second)
    second.on_session_kept()
    assert not is_uncertain(second)
    assert not is_uncertain(marker(tmp_path))


def test_missing_connack_is_uncertain_and_refusal_is_not(tmp_path):
    made = marker(tmp_path)
    begin(made)
    made.on_connect_refused()
    begin(made)
    assert not is_uncertain(made)
    begin(made)
    assert is_uncertain(made)
    made.on_connect_refused()
    assert is_uncertain(made), "the first attempt is still unknown"
    assert is_uncertain(marker(tmp_path))
    made.on_session_kept()
    assert not is_uncertain(made)


def test_full_disk_raises_alarm(tmp_path):
    problems: list[str] = []
    made = marker(tmp_path / "gone", problems)
    begin(made)
    assert problems == [f"cannot write {tmp_path}/gone/connecting: No such file or directory"]
    (tmp_path / "gone").mkdir()
    begin(made)
    assert problems[1:] == [""]
    (tmp_path / "gone" / "connecting").unlink()
    (tmp_path / "gone" / "connecting").mkdir()
    made.on_session_kept()
    assert problems[2].startswith("cannot remove")


def test_loss_that_is_not_durable_is_uncertain_after_restart_only(tmp_path):
    made = marker(tmp_path)
    begin(made)
    made.on_session_lost()
    begin(made)
    assert not is_uncertain(made), "the loss is known"
    made.on_session_kept()
    assert is_uncertain(marker(tmp_path))
    begin(made)
    made.on_loss_durable()
    assert is_uncertain(marker(tmp_path)), "the last CONNECT has no CONNACK yet"
    made.on_session_kept()
    assert not is_uncertain(marker(tmp_path))
