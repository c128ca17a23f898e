"""Subscriptions in the persistence file of a Mosquitto."""

import io
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.errors import UsageError
from hansa.observers.mosquitto import database
from hansa.observers.mosquitto.database import (
    MAGIC,
    RESTORED_MARK,
    insert_restored,
    parse_restored,
    read_subscriptions,
)

SUBSCRIPTION, CONFIGURATION = 5, 1
BEGIN = MAGIC + struct.pack("!II", 0, 6)


def chunk(kind: int, body: bytes) -> bytes:
    return struct.pack("!II", kind, len(body)) + body


def subscription(client: str, topic_filter: str) -> bytes:
    texts = client.encode(), topic_filter.encode()
    head = struct.pack("!IHHBBxx", 0, *map(len, texts), 1, 0)
    return chunk(SUBSCRIPTION, head + b"".join(texts))


DATA = (
    BEGIN
    + chunk(CONFIGURATION, bytes(16))
    + subscription("ann", "a/+")
    + chunk(99, b"of a later version")
    + subscription("b ob", "b")
    + subscription("ann", "$share/g/c")
)


def read(data: bytes) -> dict[str, list[str]]:
    return read_subscriptions(io.BytesIO(data))


def test_filters_of_each_session_are_read():
    assert read(DATA) == {"ann": ["a/+", "$share/g/c"], "b ob": ["b"]}
    assert read(BEGIN) == {}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not the persistence file"),
        (b"SQLite format 3\0", "not the persistence file"),
        (MAGIC + struct.pack("!II", 0, 5), "its format is 5"),
        (MAGIC, "ends too early"),
        (DATA[:-1], "ends too early"),
        (BEGIN + bytes(7), "ends too early"),
        (BEGIN + chunk(SUBSCRIPTION, b"x"), "ends too early"),
        (BEGIN + struct.pack("!II", SUBSCRIPTION, 1 << 30), "too long"),
        (BEGIN + subscription("x", "y").replace(b"y", b"\xff"), "not UTF-8"),
    ],
)
def test_other_files_are_refused(data, reason):
    with pytest.raises(UsageError, match=reason):
        read(data)


def test_number_of_subscriptions_is_bounded(monkeypatch):
    monkeypatch.setattr(database, "SUBSCRIPTIONS_MAX", 2)
    with pytest.raises(UsageError, match="too many"):
        read(DATA)


@given(st.binary(max_size=60))
def test_damaged_files_raise_nothing_else(data):
    for damaged in (data, BEGIN + data, DATA[: len(data)] + data):
        try:
            read(damaged)
        except UsageError:
            pass


class TestInLog:
    LOG = "1: mosquitto version 2.0.11 starting\n2: x\n3: mosquitto version 2.0.11 starting\n4: y\n"

    def test_sessions_follow_the_last_start(self, tmp_path: Path):
        path = tmp_path / "mosquitto.db"
        path.write_bytes(DATA)
        lines = insert_restored(self.LOG, path).split("\n")
        assert lines[2].endswith("starting")
        assert lines[3].startswith(RESTORED_MARK)
        assert parse_restored(lines[3]) == read(DATA)
        assert "\n".join(lines[:3] + lines[4:]) == self.LOG

    def test_problem_is_said(self, tmp_path: Path):
        lines = insert_restored(self.LOG, tmp_path / "missing").split("\n")
        assert "missing" in parse_restored(lines[3])

    def test_other_lines_about_starts_are_skipped(self, tmp_path: Path):
        path = tmp_path / "mosquitto.db"
        path.write_bytes(DATA)
        lines = insert_restored(f"{self.LOG}5: bob 0 engine starting\n", path).split("\n")
        assert lines[3].startswith(RESTORED_MARK)

    @pytest.mark.parametrize("text", ["", "1: x\n", "1: something is starting\n"])
    def test_log_without_a_start_is_not_changed(self, text: str, tmp_path: Path):
        assert insert_restored(text, tmp_path / "missing") == text
