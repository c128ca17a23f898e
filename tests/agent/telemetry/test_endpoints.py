"""Journals and telemetry served over a real socket equal the files."""

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.agent.live import LoopThread, eventually
from tests.journal.journals import EPOCH, NODE, captured, open_writer, write

from hansa.agent.admin.access import FAILURES_MAX, AdminAccess
from hansa.agent.admin.server import Endpoints as AdminPages
from hansa.agent.admin.server import LogHandler, Protection, json_response, serve
from hansa.agent.exposure import HostRule
from hansa.agent.storage.state_directory import JOURNAL_DIRECTORY
from hansa.agent.telemetry.endpoints import LogEndpoints
from hansa.errors import JournalDamaged, JournalTrimmed, JournalUnusable
from hansa.journal import ranges
from hansa.journal.reader import JournalReader, OffsetBounds
from hansa.journal.records import RecordedPublication
from hansa.journal.remote import LogClient, RemoteJournalReader, ServedLog
from hansa.telemetry import schema
from hansa.telemetry.reader import read_bounds, read_rows
from hansa.telemetry.writer import NodeRecorder, TelemetryLog

TOKEN = "a secret"
NAME = f"journal/{EPOCH:020d}"


@contextmanager
def listening(
    pages: AdminPages, logs: LogHandler | None = None, token: str = TOKEN
) -> Iterator[str]:
    """Run a server in a background event loop; yield its address."""
    thread = LoopThread()

    async def stop() -> None:
        server.close()
        await server.wait_closed()

    protection = Protection(HostRule("127.0.0.1"), AdminAccess(token))
    server = thread.run(serve("127.0.0.1", 0, pages, logs, protection))
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        thread.run(stop())
        thread.close()


@contextmanager
def served(state: Path, token: str = TOKEN) -> Iterator[str]:
    """The endpoints of an agent for a state directory."""
    logs = LogEndpoints(state / JOURNAL_DIRECTORY, {"telemetry": state / "telemetry"})
    with listening({"/healthz": lambda: json_response({})}, logs.handle_request, token) as url:
        yield url


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A journal of several segments, and telemetry of two incarnations."""
    written = [captured(number) for number in range(1, 51)]
    write(
        tmp_path / NAME,
        *written,
        RecordedPublication(1, 1, "a", b"\0", False, b"", 5),
        segment_bytes=600,
    )
    log = TelemetryLog(tmp_path / "telemetry", identity=77)
    for incarnation in (1, 2):
        recorder = NodeRecorder(log, NODE, incarnation)
        recorder.put(schema.LinkUp(5, 9))
        recorder.flush()
    log.close()
    return tmp_path


def test_existing_logs_are_listed(state):
    here = JournalReader(state / NAME).bounds
    found = read_bounds(state / "telemetry")
    with served(state) as url:
        assert LogClient(url, TOKEN).list_logs() == [
            ServedLog("telemetry", 0, 77, found.start, found.end),
            ServedLog(NAME, NODE, EPOCH, here.start, here.end),
        ]


@pytest.mark.parametrize("size", [1, 700, 1 << 20])
def test_served_ranges_equal_files(state, monkeypatch, size):
    monkeypatch.setattr("hansa.journal.remote.RANGE_BYTES", size)
    here = list(JournalReader(state / NAME).read())
    with served(state) as url:
        there = RemoteJournalReader(LogClient(url, TOKEN), NAME)
        assert list(there.read()) == here
        assert there.bounds == JournalReader(state / NAME).bounds
        middle = here[20][0]
        assert list(there.read(middle)) == here[20:]
        assert list(there.read(None, middle)) == here[:20]
        assert list(there.read(there.bounds.end)) == []


def test_served_telemetry_equals_directory(state):
    with served(state) as url:
        there = RemoteJournalReader(LogClient(url, TOKEN), "telemetry")
        assert list(read_rows(there)) == list(read_rows(state / "telemetry"))
        assert read_bounds(there) == read_bounds(state / "telemetry")


def test_growing_log_can_be_followed(state):
    log = TelemetryLog(state / "telemetry")
    recorder = NodeRecorder(log, NODE, 3)
    with served(state) as url:
        there = RemoteJournalReader(LogClient(url, TOKEN), "telemetry")
        end = there.bounds.end
        recorder.put(schema.LinkUp(6, 9))
        recorder.flush()
        log.commit()
        assert [row.incarnation for row in read_rows(there, end)] == [3]
    log.close()


def test_response_size_is_bounded(state, monkeypatch):
    monkeypatch.setattr("hansa.agent.telemetry.endpoints.RANGE_BYTES", 100)
    with served(state) as url:
        body, following = LogClient(url, TOKEN).fetch(f"/logs/{NAME}", {"bytes": 1 << 40})
    assert len(body) < 200
    assert int(following) < JournalReader(state / NAME).bounds.end


@pytest.mark.parametrize("token", ["", "another"])
def test_request_without_valid_token_is_refused(state, token):
    with served(state) as url, pytest.raises(JournalUnusable, match="token is missing or wrong"):
        LogClient(url, token).list_logs()


def test_wrong_tokens_for_logs_are_limited(state):
    """Otherwise the token of the scope admin could be guessed here, without an entry in the audit
    log."""
    with served(state) as url:
        for _ in range(FAILURES_MAX):
            with pytest.raises(JournalUnusable, match="token is missing or wrong"):
                LogClient(url, "guess").list_logs()
        with pytest.raises(JournalUnusable, match="too many wrong tokens"):
            LogClient(url, "guess").list_logs()


def test_logs_are_not_served_without_configured_token(state):
    with served(state, token="") as url, pytest.raises(JournalUnusable, match="of .admin. token"):
        LogClient(url, "").list_logs()


def test_other_endpoints_need_no_token(state):
    with served(state) as url, urllib.request.urlopen(f"{url}/healthz") as answer:
        assert answer.status == 200


def test_trimmed_range_is_refused_with_the_remaining_range(tmp_path):
    with open_writer(tmp_path / NAME, segment_bytes=300, retention_bytes=600) as writer:
        for number in range(1, 51):
            writer.append(captured(number))
            writer.commit()
    first = JournalReader(tmp_path / NAME).bounds.start
    assert first > 0
    with served(tmp_path) as url, pytest.raises(JournalTrimmed) as gone:
        list(RemoteJournalReader(LogClient(url, TOKEN), NAME).read(0))
    assert gone.value.first == first


def test_damage_is_reported_after_preceding_records(state):
    (first, *_) = sorted((state / NAME).glob("*.log"))
    here = [offset for offset, _ in JournalReader(state / NAME).read()]
    data = bytearray(first.read_bytes())
    data[here[3] + 12] ^= 1
    first.write_bytes(data)
    seen = []
    with served(state) as url, pytest.raises(JournalDamaged) as damaged:
        for offset, _ in RemoteJournalReader(LogClient(url, TOKEN), NAME).read():
            seen.append(offset)
    assert seen == here[:3]
    with pytest.raises(JournalDamaged) as local:
        list(JournalReader(state / NAME).read())
    found = damaged.value
    assert (found.offset, found.resume) == (local.value.offset, local.value.resume)


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
def test_invalid_request_is_refused(state, path, reason):
    with served(state) as url, pytest.raises(JournalUnusable, match=reason):
        path, _, query = path.partition("?")
        asked = dict([query.split("=")] if query else [])
        LogClient(url, TOKEN).fetch(path, asked)


def test_unreachable_agent_is_reported_in_one_line():
    with pytest.raises(JournalUnusable, match="cannot read http://127.0.0.1:9/logs.*refused"):
        LogClient("http://127.0.0.1:9", TOKEN).list_logs()


def test_other_server_is_reported():
    pages = {"/logs": lambda: json_response({"hello": 1})}
    with listening(pages) as url, pytest.raises(JournalUnusable, match="not a list of logs"):
        LogClient(url, TOKEN).list_logs()


def test_deleted_log_has_no_bounds(state):
    with served(state) as url:
        assert RemoteJournalReader(LogClient(url, TOKEN), "journal/9").bounds == OffsetBounds(0, 0)


@pytest.mark.parametrize("damage", ["short", "flipped"])
def test_range_damaged_in_transit_is_detected(state, damage):
    reader = JournalReader(state / NAME)
    data, _ = ranges.pack_range(reader, 0, reader.bounds.end, 1)
    data = data[:10] if damage == "short" else data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(JournalDamaged):
        list(ranges.unpack_range(data, "somewhere"))


def test_live_agent_serves_telemetry(scene):
    broker = scene.broker()
    agent = scene.agent(
        broker_port=broker.port, telemetry_sample="none", admin_token=TOKEN, name="plant"
    )
    pages = LogClient(f"http://127.0.0.1:{agent.admin_port}", TOKEN)
    eventually(lambda: agent.page("/readyz")[0] == 200, "ready")
    found = eventually(
        lambda: list(read_rows(RemoteJournalReader(pages, "telemetry"))), "something recorded"
    )
    assert isinstance(found[0].record, schema.NodeStarted)
    names = {each.name.partition("/")[0] for each in pages.list_logs()}
    assert names == {"telemetry", "audit", "journal"}
    assert TOKEN not in agent.log
