"""The pages from which other machines read this agent's journals and telemetry.

    GET /logs                                     what there is: names, offsets
    GET /logs/NAME?start=N&end=N&bytes=N          a range, as `hansa.journal.ranges` packs it

Both want the token; without one in the settings there are no such pages. Reading happens in
threads, two at a time, and an answer is bounded: whoever is behind asks more often.
"""

import asyncio
import hmac
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qs

from hansa.agent.admin import LOGS, Answer, as_json
from hansa.errors import JournalDamaged, JournalError, JournalTrimmed
from hansa.journal.ranges import NEXT, RANGE_BYTES, pack
from hansa.journal.reader import Reader

READERS_MAX = 2


class LogPages:
    """Journals and telemetry of one agent, for who has the token."""

    def __init__(self, token: str, journals: Path, telemetry: Path) -> None:
        """Serve what is in these directories: one journal per epoch, one log of telemetry."""
        self._token = token.encode()
        self._journals = journals
        self._telemetry = telemetry
        self._reading = asyncio.Semaphore(READERS_MAX)

    async def answer(self, path: str, query: str, headers: Mapping[str, str]) -> Answer:
        """Answer a request for one of these pages."""
        if not self._token:
            return as_json({"error": "set [admin] token to have journals read from here"}, 403)
        given = headers.get("authorization", "").removeprefix("Bearer ").encode()
        if not hmac.compare_digest(given, self._token):
            return as_json({"error": "the token is missing or wrong"}, 401)
        async with self._reading:
            return await asyncio.to_thread(self._answer, path.removeprefix(LOGS), query)

    def _answer(self, name: str, query: str) -> Answer:
        try:
            if name in ("", "/"):
                return as_json({"logs": list(self._list())})
            found = dict(self._logs()).get(name.removeprefix("/"))
            if found is None:
                return as_json({"error": f"no log {name.removeprefix('/')!r}, see {LOGS}"}, 404)
            return self._range(Reader(found), query)
        except JournalTrimmed as gone:
            return as_json({"error": str(gone), "first": gone.first}, 410)
        except JournalDamaged as damaged:
            told = {"error": str(damaged), "offset": damaged.offset, "resume": damaged.resume}
            return as_json(told, 500)
        except JournalError as error:
            return as_json({"error": str(error)}, 503)

    def _logs(self) -> Iterator[tuple[str, Path]]:
        if self._telemetry.is_dir():
            yield "telemetry", self._telemetry
        if self._journals.is_dir():
            for path in sorted(self._journals.iterdir()):
                if path.name.isdecimal():
                    yield f"journal/{path.name}", path

    def _list(self) -> Iterator[dict[str, object]]:
        for name, path in self._logs():
            reader = Reader(path)
            headers, bounds = reader.headers(), reader.bounds
            if headers:
                node, epoch = f"{headers[-1].node:016x}", headers[-1].epoch
                place = {"start": bounds.start, "end": bounds.end}
                yield {"name": name, "node": node, "epoch": epoch, **place}

    def _range(self, reader: Reader, query: str) -> Answer:
        asked = {key: values[-1] for key, values in parse_qs(query).items()}
        if any(key not in _ASKED or not _is_number(text) for key, text in asked.items()):
            return as_json({"error": "start, end and bytes are numbers from 0 on"}, 400)
        bounds = reader.bounds
        start = int(asked.get("start", bounds.start))
        end = min(int(asked.get("end", bounds.end)), bounds.end)
        size = min(int(asked.get("bytes", RANGE_BYTES)), RANGE_BYTES)
        data, following = pack(reader, start, end, size)
        kind = "application/octet-stream"
        return Answer(data, kind=kind, headers={NEXT: str(following)})


_ASKED = ("start", "end", "bytes")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20
