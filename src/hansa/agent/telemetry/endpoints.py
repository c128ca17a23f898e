"""The endpoints from which other machines read this agent's journals and telemetry.

    GET /logs                                     list of logs: names, offsets
    GET /logs/NAME?start=N&end=N&bytes=N          a range, as `hansa.journal.ranges` packs it

Both require the token of the scope admin, which the server checks. Files are read in threads, two
at a time, and an answer is bounded: a reader that is behind asks more often.
"""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qs

from hansa.agent.admin.access import LOGS_PATH
from hansa.agent.admin.server import HttpResponse, json_response
from hansa.errors import JournalDamaged, JournalError, JournalTrimmed
from hansa.journal.ranges import NEXT_OFFSET_HEADER, RANGE_BYTES, pack_range
from hansa.journal.reader import JournalReader

READERS_MAX = 2


class LogEndpoints:
    """Journals and telemetry of one agent."""

    def __init__(self, journals: Path, telemetry: Mapping[str, Path]) -> None:
        """Serve these directories: one journal per epoch, and telemetry logs by name."""
        self._journals = journals
        self._telemetry = telemetry
        self._read_slots = asyncio.Semaphore(READERS_MAX)

    async def handle_request(
        self, path: str, query: str, headers: Mapping[str, str]
    ) -> HttpResponse:
        async with self._read_slots:
            return await asyncio.to_thread(
                self._answer_blocking, path.removeprefix(LOGS_PATH), query
            )

    def _answer_blocking(self, name: str, query: str) -> HttpResponse:
        try:
            if name in ("", "/"):
                return json_response({"logs": list(self._describe_logs())})
            found = dict(self._logs()).get(name.removeprefix("/"))
            if found is None:
                return json_response(
                    {"error": f"no log {name.removeprefix('/')!r}, see {LOGS_PATH}"}, 404
                )
            return self._answer_range(JournalReader(found), query)
        except JournalTrimmed as gone:
            return json_response({"error": str(gone), "first": gone.first}, 410)
        except JournalDamaged as damaged:
            error_body = {"error": str(damaged), "offset": damaged.offset, "resume": damaged.resume}
            return json_response(error_body, 500)
        except JournalError as error:
            return json_response({"error": str(error)}, 503)

    def _logs(self) -> Iterator[tuple[str, Path]]:
        for name, path in self._telemetry.items():
            if path.is_dir():
                yield name, path
        if self._journals.is_dir():
            for path in sorted(self._journals.iterdir()):
                if path.name.isdecimal():
                    yield f"journal/{path.name}", path

    def _describe_logs(self) -> Iterator[dict[str, object]]:
        for name, path in self._logs():
            reader = JournalReader(path)
            headers, bounds = reader.headers(), reader.bounds
            if headers:
                node, epoch = f"{headers[-1].node:016x}", headers[-1].epoch
                place = {"start": bounds.start, "end": bounds.end}
                yield {"name": name, "node": node, "epoch": epoch, **place}

    def _answer_range(self, reader: JournalReader, query: str) -> HttpResponse:
        parameters = {key: values[-1] for key, values in parse_qs(query).items()}
        if any(
            key not in _RANGE_PARAMETERS or not _is_number(text) for key, text in parameters.items()
        ):
            return json_response({"error": "start, end and bytes are numbers from 0 on"}, 400)
        bounds = reader.bounds
        start = int(parameters.get("start", bounds.start))
        end = min(int(parameters.get("end", bounds.end)), bounds.end)
        size = min(int(parameters.get("bytes", RANGE_BYTES)), RANGE_BYTES)
        data, following = pack_range(reader, start, end, size)
        kind = "application/octet-stream"
        return HttpResponse(data, content_type=kind, headers={NEXT_OFFSET_HEADER: str(following)})


_RANGE_PARAMETERS = ("start", "end", "bytes")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20
