"""What the agent's session is subscribed to, across lives."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from hansa.agent.broker import subscription_log, subscription_table
from hansa.agent.broker.subscription_log import ENDED, LEAVING, SubscriptionLog
from hansa.errors import UsageError

Changes = list[tuple[str, int]]


class Life:
    """One life of the agent, as far as its log."""

    def __init__(self, directory: Path) -> None:
        self.problems: list[str] = []
        self.path = directory / "log"
        self.log = SubscriptionLog(self.path, self.problems.append)
        self.had_session, self.log.has_session = self.log.has_session, True

    def write(self, changes: Changes, is_possible: bool = True) -> None:
        for name, identifier in changes:
            self.log.record(name, identifier)
        assert self.log.has_unwritten
        assert asyncio.run(self.log.write()) is is_possible
        assert self.log.has_unwritten is not is_possible

    def end(self) -> None:
        asyncio.run(self.log.stop())


def test_next_incarnation_knows_filters_in_order(tmp_path):
    life = Life(tmp_path)
    life.write([("a/#", 1), ("b", 2), ("c", 3)])
    life.write([("b", LEAVING), ("a/#", ENDED)])
    again = Life(tmp_path)
    assert list(again.log.identifiers.items()) == [("b", LEAVING), ("c", 3)]
    life.end()
    again.end()


@pytest.mark.parametrize("torn", [b'["b", ', b'["b", "2"]', b"2", b'["\xff'])
def test_torn_line_is_ignored(tmp_path, torn):
    (tmp_path / "log").write_bytes(b'["a", 1]\n' + torn)
    life = Life(tmp_path)
    assert life.log.identifiers == {"a": 1}
    life.write([("c", 2)])
    assert Life(tmp_path).log.identifiers == {"a": 1, "c": 2}
    assert life.problems == [""]
    life.end()


def test_unreadable_line_raises_alarm_until_restart(tmp_path):
    (tmp_path / "log").write_bytes(b'["a", 1]\n["b\xff", 2]\n["c", 3]\n')
    life = Life(tmp_path)
    assert life.log.identifiers == {"a": 1, "c": 3}
    life.write([("d", 4)])
    assert len(life.problems) == 2
    assert all("1 of 3 lines" in problem for problem in life.problems)
    life.end()
    again = Life(tmp_path)
    again.write([])
    assert again.problems == [""]
    again.end()


def test_unreadable_file_is_refused(tmp_path):
    (tmp_path / "log").mkdir()
    with pytest.raises(UsageError, match="cannot read .*log: Is a directory"):
        Life(tmp_path)


def test_lost_session_clears_log(tmp_path):
    life = Life(tmp_path)
    life.write([("a", 1)])
    life.log.record("c", 2)
    life.log.clear()
    life.write([("b", 1)])
    life.end()
    again = Life(tmp_path).log
    assert (again.identifiers, again.last_identifier, again.last_identifier_at_end) == (
        {"b": 1},
        1,
        {},
    )


@pytest.mark.parametrize("spare", [0, 1_000])
def test_next_incarnation_knows_assigned_identifiers_and_ended_filters(
    tmp_path, monkeypatch, spare
):
    monkeypatch.setattr(subscription_log, "LINES_SPARE", spare)
    life = Life(tmp_path)
    life.write([("a", 1), ("b", 2), ("a", LEAVING)])
    for _ in range(2):
        life.end()
        life = Life(tmp_path)
        life.write([("c", 3)])
    life.write([("a", ENDED), ("a", 4), ("c", ENDED), ("d", 5), ("d", ENDED)])
    for _ in range(2):
        life.end()
        life = Life(tmp_path)
        life.write([])
    assert (life.log.last_identifier, life.log.last_identifier_at_end) == (5, {1: 3, 3: 4, 5: 5})
    assert life.log.identifiers == {"b": 2, "a": 4}
    life.end()


def test_file_exists_while_session_exists(tmp_path):
    life = Life(tmp_path)
    assert not life.had_session
    life.write([])
    again = Life(tmp_path)
    assert again.had_session
    again.log.has_session = False
    again.end()
    assert not Life(tmp_path).had_session
    life.end()


def test_last_change_is_written_at_stop(tmp_path):
    life = Life(tmp_path)
    life.write([("a", 1)])
    life.log.record("a", ENDED)
    life.end()
    assert Life(tmp_path).log.identifiers == {}


def test_file_size_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(subscription_log, "LINES_SPARE", 10)
    monkeypatch.setattr(subscription_table, "ENDS_MAX", 5)
    life = Life(tmp_path)
    for number in range(1, 101):
        life.write([("a", number), ("a", ENDED)])
    life.write([("b", 101)])
    assert len(life.path.read_text().splitlines()) <= 25
    life.end()


def test_failed_write_is_reported_and_repeated_with_the_next_change(tmp_path):
    directory = tmp_path / "state"
    directory.mkdir()
    life = Life(directory)
    life.write([("x", 1)])
    life.path.unlink()
    directory.rmdir()
    life.log.clear()
    life.write([("a", 1)], is_possible=False)
    told = f"cannot write {life.path}: No such file or directory"
    assert life.problems == ["", told]
    directory.mkdir()
    life.write([("b", 2)])
    assert life.problems == ["", told, ""]
    assert Life(directory).log.identifiers == {"a": 1, "b": 2}
    life.end()


def test_partial_writes_are_completed(tmp_path, monkeypatch):
    life = Life(tmp_path)
    life.write([("a", 1)])
    write = os.write

    def write_little(file: int, data: Any) -> int:
        return write(file, data[:3])

    monkeypatch.setattr(os, "write", write_little)
    life.write([("b", 2)])
    life.write([("c", 3)])
    life.end()
    assert Life(tmp_path).log.identifiers == {"a": 1, "b": 2, "c": 3}
