"""The file of the agent's subscriptions: incarnations, damage, full disks."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from hansa.agent.storage import subscription_file
from hansa.agent.storage.subscription_file import SubscriptionFile
from hansa.delivery.subscriptions import table
from hansa.delivery.subscriptions.saved import ENDED, LEAVING
from hansa.errors import UsageError

Changes = list[tuple[str, int]]


class Incarnation:
    """The subscription file of one incarnation."""

    def __init__(self, directory: Path) -> None:
        self.problems: list[str] = []
        self.path = directory / "log"
        self.file = SubscriptionFile(self.path, self.problems.append)
        self.saved_subscriptions = self.file.saved_subscriptions
        self.had_session, self.saved_subscriptions.has_session = (
            self.saved_subscriptions.has_session,
            True,
        )

    def write(self, changes: Changes, is_possible: bool = True) -> None:
        for name, identifier in changes:
            self.saved_subscriptions.record(name, identifier)
        assert self.saved_subscriptions.has_unsaved
        assert asyncio.run(self.file.save()) is is_possible
        assert self.saved_subscriptions.has_unsaved is not is_possible

    def end(self) -> None:
        asyncio.run(self.file.stop())


def test_next_incarnation_knows_filters_in_order(tmp_path):
    incarnation = Incarnation(tmp_path)
    incarnation.write([("a/#", 1), ("b", 2), ("c", 3)])
    incarnation.write([("b", LEAVING), ("a/#", ENDED)])
    again = Incarnation(tmp_path)
    assert list(again.saved_subscriptions.identifiers.items()) == [("b", LEAVING), ("c", 3)]
    incarnation.end()
    again.end()


@pytest.mark.parametrize("torn", [b'["b", ', b'["b", "2"]', b"2", b'["\xff'])
def test_torn_line_is_ignored(tmp_path, torn):
    (tmp_path / "log").write_bytes(b'["a", 1]\n' + torn)
    incarnation = Incarnation(tmp_path)
    assert incarnation.saved_subscriptions.identifiers == {"a": 1}
    incarnation.write([("c", 2)])
    assert Incarnation(tmp_path).saved_subscriptions.identifiers == {"a": 1, "c": 2}
    assert incarnation.problems == [""]
    incarnation.end()


def test_unreadable_line_raises_alarm_until_restart(tmp_path):
    (tmp_path / "log").write_bytes(b'["a", 1]\n["b\xff", 2]\n["c", 3]\n')
    incarnation = Incarnation(tmp_path)
    assert incarnation.saved_subscriptions.identifiers == {"a": 1, "c": 3}
    incarnation.write([("d", 4)])
    assert len(incarnation.problems) == 2
    assert all("1 of 3 lines" in problem for problem in incarnation.problems)
    incarnation.end()
    again = Incarnation(tmp_path)
    again.write([])
    assert again.problems == [""]
    again.end()


def test_unreadable_file_is_refused(tmp_path):
    (tmp_path / "log").mkdir()
    with pytest.raises(UsageError, match="cannot read .*log: Is a directory"):
        Incarnation(tmp_path)


def test_lost_session_clears_file(tmp_path):
    incarnation = Incarnation(tmp_path)
    incarnation.write([("a", 1)])
    incarnation.saved_subscriptions.record("c", 2)
    incarnation.saved_subscriptions.clear()
    incarnation.write([("b", 1)])
    incarnation.end()
    again = Incarnation(tmp_path).saved_subscriptions
    assert (again.identifiers, again.last_identifier, again.last_identifier_at_end) == (
        {"b": 1},
        1,
        {},
    )


@pytest.mark.parametrize("spare", [0, 1_000])
def test_next_incarnation_knows_assigned_identifiers_and_ended_filters(
    tmp_path, monkeypatch, spare
):
    monkeypatch.setattr(subscription_file, "LINES_SPARE", spare)
    incarnation = Incarnation(tmp_path)
    incarnation.write([("a", 1), ("b", 2), ("a", LEAVING)])
    for _ in range(2):
        incarnation.end()
        incarnation = Incarnation(tmp_path)
        incarnation.write([("c", 3)])
    incarnation.write([("a", ENDED), ("a", 4), ("c", ENDED), ("d", 5), ("d", ENDED)])
    for _ in range(2):
        incarnation.end()
        incarnation = Incarnation(tmp_path)
        incarnation.write([])
    assert (
        incarnation.saved_subscriptions.last_identifier,
        incarnation.saved_subscriptions.last_identifier_at_end,
    ) == (
        5,
        {1: 3, 3: 4, 5: 5},
    )
    assert incarnation.saved_subscriptions.identifiers == {"b": 2, "a": 4}
    incarnation.end()


def test_file_exists_while_session_exists(tmp_path):
    incarnation = Incarnation(tmp_path)
    assert not incarnation.had_session
    incarnation.write([])
    again = Incarnation(tmp_path)
    assert again.had_session
    again.saved_subscriptions.has_session = False
    again.end()
    assert not Incarnation(tmp_path).had_session
    incarnation.end()


def test_last_change_is_written_at_stop(tmp_path):
    incarnation = Incarnation(tmp_path)
    incarnation.write([("a", 1)])
    incarnation.saved_subscriptions.record("a", ENDED)
    incarnation.end()
    assert Incarnation(tmp_path).saved_subscriptions.identifiers == {}


def test_file_size_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(subscription_file, "LINES_SPARE", 10)
    monkeypatch.setattr(table, "ENDS_MAX", 5)
    incarnation = Incarnation(tmp_path)
    for number in range(1, 101):
        incarnation.write([("a", number), ("a", ENDED)])
    incarnation.write([("b", 101)])
    assert len(incarnation.path.read_text().splitlines()) <= 25
    incarnation.end()


def test_failed_write_is_reported_and_repeated_with_the_next_change(tmp_path):
    directory = tmp_path / "state"
    directory.mkdir()
    incarnation = Incarnation(directory)
    incarnation.write([("x", 1)])
    incarnation.path.unlink()
    directory.rmdir()
    incarnation.saved_subscriptions.clear()
    incarnation.write([("a", 1)], is_possible=False)
    problem = f"cannot write {incarnation.path}: No such file or directory"
    assert incarnation.problems == ["", problem]
    directory.mkdir()
    incarnation.write([("b", 2)])
    assert incarnation.problems == ["", problem, ""]
    assert Incarnation(directory).saved_subscriptions.identifiers == {"a": 1, "b": 2}
    incarnation.end()


def test_partial_writes_are_completed(tmp_path, monkeypatch):
    incarnation = Incarnation(tmp_path)
    incarnation.write([("a", 1)])
    write = os.write

    def write_little(file: int, data: Any) -> int:
        return write(file, data[:3])

    monkeypatch.setattr(os, "write", write_little)
    incarnation.write([("b", 2)])
    incarnation.write([("c", 3)])
    incarnation.end()
    assert Incarnation(tmp_path).saved_subscriptions.identifiers == {"a": 1, "b": 2, "c": 3}
