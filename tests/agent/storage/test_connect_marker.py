"""The connect marker: when the session at the broker is uncertain."""

import asyncio
from pathlib import Path

from hansa.agent.storage.connect_marker import ConnectMarker


def greeting(directory: Path, problems: list[str] | None = None) -> ConnectMarker:
    return ConnectMarker(directory / "greeting", (problems if problems is not None else []).append)


def doubts(made: ConnectMarker) -> bool:
    return made.is_uncertain


def begin(made: ConnectMarker) -> None:
    asyncio.run(made.before_connect())


def test_crash_while_connecting_is_uncertain(tmp_path):
    first = greeting(tmp_path)
    assert not doubts(first)
    begin(first)
    assert not doubts(first)
    second = greeting(tmp_path)
    assert doubts(second)
    begin(second)
    second.on_session_kept()
    assert not doubts(second)
    assert not doubts(greeting(tmp_path))


def test_missing_connack_is_uncertain_and_refusal_is_not(tmp_path):
    made = greeting(tmp_path)
    begin(made)
    made.on_connect_refused()
    begin(made)
    assert not doubts(made)
    begin(made)
    assert doubts(made)
    made.on_connect_refused()
    assert doubts(made), "that of before is still unknown"
    assert doubts(greeting(tmp_path))
    made.on_session_kept()
    assert not doubts(made)


def test_full_disk_raises_alarm(tmp_path):
    problems: list[str] = []
    made = greeting(tmp_path / "gone", problems)
    begin(made)
    assert problems == [f"cannot write {tmp_path}/gone/greeting: No such file or directory"]
    (tmp_path / "gone").mkdir()
    begin(made)
    assert problems[1:] == [""]
    (tmp_path / "gone" / "greeting").unlink()
    (tmp_path / "gone" / "greeting").mkdir()
    made.on_session_kept()
    assert problems[2].startswith("cannot remove")


def test_loss_that_is_not_durable_is_uncertain_after_restart_only(tmp_path):
    made = greeting(tmp_path)
    begin(made)
    made.on_session_lost()
    begin(made)
    assert not doubts(made), "it was told"
    made.on_session_kept()
    assert doubts(greeting(tmp_path))
    begin(made)
    made.on_loss_durable()
    assert doubts(greeting(tmp_path)), "the last question has no answer yet"
    made.on_session_kept()
    assert not doubts(greeting(tmp_path))
