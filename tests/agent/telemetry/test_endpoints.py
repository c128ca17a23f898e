"""Journals and telemetry read from another machine: over a real socket, as from the files."""

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.agent.live import LoopThread, eventually
from tests.journal.journals import EPOCH, NODE, captured, open_writer, write

from hansa.agent.admin import Logs, as_json, serve
from hansa.agent.admin import Pages as AdminPages
from hansa.agent.state import JOURNAL
from hansa.agent.telemetry.endpoints import LogPages
from hansa.errors import JournalDamaged, JournalTrimmed, JournalUnusable
from hansa.journal import ranges
from hansa.journal.reader import Bounds, Reader
from hansa.journal.records import Recorded
from hansa.journal.remote import Listed, Pages, RemoteReader
from hansa.telemetry import schema
from hansa.telemetry.log import Log, Recorder
from hansa.telemetry.reader import bounds, rows

TOKEN = "a secret"
NAME = f"journal/{EPOCH:020d}"


@contextmanager
def listening(pages: AdminPages, logs: Logs | None = None) -> Iterator[str]:
    """A server on a loop of its own; yields where it is."""
    thread = LoopThread()

    async def stop() -> None:
        server.close()
        await server.wait_closed()

    server = thread.run(serve("127.0.0.1", 0, pages, logs))
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        thread.run(stop())
        thread.close()


@contextmanager
def served(state: Path, token: str = TOKEN) -> Iterator[str]:
    """An agent's pages about a state directory."""
    logs = LogPages(token, state / JOURNAL, state / "telemetry")
    with listening({"/healthz": lambda: as_json({})}, logs.answer) as url:
        yield url


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A journal of several segments, and telemetry of two lives."""
    written = [captured(number) for number in range(1, 51)]
    write(tmp_path / NAME, *written, Recorded(1, 1, "a", b"\0", False, b"", 5), segment_bytes=600)
    log = Log(tmp_path / "telemetry", identity=77)
    for life in (1, 2):
        recorder = Recorder(log, NODE, life)
        recorder.put(schema.LinkUp(5, 9))
        recorder.flush()
    log.close()
    return tmp_path


def test_what_there_is_is_listed(state):
    here = Reader(state / NAME).bounds
    told = bounds(state / "telemetry")
    with served(state) as url:
        assert Pages(url, TOKEN).logs() == [
            Listed("telemetry", 0, 77, told.start, told.end),
            Listed(NAME, NODE, EPOCH, here.start, here.end),
        ]


@pytest.mark.parametrize("size", [1, 700, 1 << 20])
def test_every_range_is_as_from_the_files(state, monkeypatch, size):
    monkeypatch.setattr("hansa.journal.remote.RANGE_BYTES", size)
    here = list(Reader(state / NAME).read())
    with served(state) as url:
        there = RemoteReader(Pages(url, TOKEN), NAME)
        assert list(there.read()) == here
        assert there.bounds == Reader(state / NAME).bounds
        middle = here[20][0]
        assert list(there.read(middle)) == here[20:]
        assert list(there.read(None, middle)) == here[:20]
        assert list(there.read(there.bounds.end)) == []


def test_telemetry_is_read_as_from_its_directory(state):
    with served(state) as url:
        there = RemoteReader(Pages(url, TOKEN), "telemetry")
        assert list(rows(there)) == list(rows(state / "telemetry"))
        assert bounds(there) == bounds(state / "telemetry")


def test_a_log_that_goes_on_can_be_followed(state):
    log = Log(state / "telemetry")
    recorder = Recorder(log, NODE, 3)
    with served(state) as url:
        there = RemoteReader(Pages(url, TOKEN), "telemetry")
        end = there.bounds.end
        recorder.put(schema.LinkUp(6, 9))
        recorder.flush()
        log.commit()
        assert [row.incarnation for row in rows(there, end)] == [3]
    log.close()


def test_an_answer_is_bounded_whatever_is_asked(state, monkeypatch):
    monkeypatch.setattr("hansa.agent.telemetry.endpoints.RANGE_BYTES", 100)
    with served(state) as url:
        body, following = Pages(url, TOKEN).get(f"/logs/{NAME}", {"bytes": 1 << 40})
    assert len(body) < 200
    assert int(following) < Reader(state / NAME).bounds.end


@pytest.mark.parametrize("token", ["", "another"])
def test_without_the_token_there_is_nothing(state, token):
    with served(state) as url, pytest.raises(JournalUnusable, match="token is missing or wrong"):
        Pages(url, token).logs()


def test_without_a_token_in_the_settings_nobody_reads(state):
    with served(state, token="") as url, pytest.raises(JournalUnusable, match="set .admin. token"):
        Pages(url, "").logs()


def test_other_pages_need_no_token(state):
    with served(state) as url, urllib.request.urlopen(f"{url}/healthz") as answer:
        assert answer.status == 200


def test_what_retention_dropped_is_said_with_what_is_left(tmp_path):
    with open_writer(tmp_path / NAME, segment_bytes=300, retention_bytes=600) as writer:
        for number in range(1, 51):
            writer.append(captured(number))
            writer.commit()
    first = Reader(tmp_path / NAME).bounds.start
    assert first > 0
    with served(tmp_path) as url, pytest.raises(JournalTrimmed) as gone:
        list(RemoteReader(Pages(url, TOKEN), NAME).read(0))
    assert gone.value.first == first


def test_damage_is_said_with_its_place_after_what_is_before_it(state):
    (first, *_) = sorted((state / NAME).glob("*.log"))
    here = [offset for offset, _ in Reader(state / NAME).read()]
    data = bytearray(first.read_bytes())
    data[here[3] + 12] ^= 1
    first.write_bytes(data)
    seen = []
    with served(state) as url, pytest.raises(JournalDamaged) as damaged:
        for offset, _ in RemoteReader(Pages(url, TOKEN), NAME).read():
            seen.append(offset)
    assert seen == here[:3]
    with pytest.raises(JournalDamaged) as local:
        list(Reader(state / NAME).read())
    told = damaged.value
    assert (told.offset, told.resume) == (local.value.offset, local.value.resume)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/logs/inbox", "no log 'inbox', see /logs"),
        ("/logs/journal/..", "no log 'journal/..', see /logs"),
        (f"/logs/{NAME}?start=-1", "numbers from 0 on"),
        (f"/logs/{NAME}?start=x", "numbers from 0 on"),
        (f"/logs/{NAME}?begin=1", "numbers from 0 on"),
    ],
)
def test_what_is_not_there_or_means_nothing_is_refused(state, path, reason):
    with served(state) as url, pytest.raises(JournalUnusable, match=reason):
        path, _, query = path.partition("?")
        asked = dict([query.split("=")] if query else [])
        Pages(url, TOKEN).get(path, asked)


def test_an_agent_that_does_not_answer_is_one_clear_line():
    with pytest.raises(JournalUnusable, match="cannot read http://127.0.0.1:9/logs.*refused"):
        Pages("http://127.0.0.1:9", TOKEN).logs()


def test_what_is_no_agent_is_said():
    pages = {"/logs": lambda: as_json({"hello": 1})}
    with listening(pages) as url, pytest.raises(JournalUnusable, match="no list of logs"):
        Pages(url, TOKEN).logs()


def test_a_log_that_is_gone_has_no_bounds(state):
    with served(state) as url:
        assert RemoteReader(Pages(url, TOKEN), "journal/9").bounds == Bounds(0, 0)


@pytest.mark.parametrize("damage", ["short", "flipped"])
def test_a_range_that_was_damaged_on_its_way_is_noticed(state, damage):
    reader = Reader(state / NAME)
    data, _ = ranges.pack(reader, 0, reader.bounds.end, 1)
    data = data[:10] if damage == "short" else data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(JournalDamaged):
        list(ranges.unpack(data, "somewhere"))


def test_a_live_agent_serves_its_telemetry(scene):
    broker = scene.broker()
    agent = scene.agent(
        broker_port=broker.port, telemetry_sample="none", admin_token=TOKEN, name="plant"
    )
    pages = Pages(f"http://127.0.0.1:{agent.admin_port}", TOKEN)
    eventually(lambda: agent.page("/readyz")[0] == 200, "ready")
    told = eventually(lambda: list(rows(RemoteReader(pages, "telemetry"))), "something told")
    assert isinstance(told[0].record, schema.Started)
    assert {each.name.partition("/")[0] for each in pages.logs()} == {"telemetry", "journal"}
    assert TOKEN not in agent.log
