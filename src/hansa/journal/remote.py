"""Reads journals and telemetry of an agent over HTTP, where no directory is shared.

`RemoteJournalReader` behaves as `reader.JournalReader`: the same offsets return the same records,
and trimmed or corrupt records raise the same errors. docs/telemetry.md describes the endpoints.
"""

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from hansa import web
from hansa.errors import AgentUnreachable, JournalDamaged, JournalTrimmed, JournalUnusable
from hansa.journal.ranges import NEXT_OFFSET_HEADER, RANGE_BYTES, unpack_range
from hansa.journal.reader import OffsetBounds
from hansa.journal.records import BODY_BYTES_MAX, JournalRecord, decode_record

TIMEOUT_S = 30.0

ANSWER_BYTES_MAX = RANGE_BYTES + BODY_BYTES_MAX + (1 << 20)
"""Bytes of a response: a range, which its last record may exceed, and headers."""

_TOKEN_LIST = re.compile(r"[^\s,=]+:[0-9]+=[^\s,]+(,[^\s,=]+:[0-9]+=[^\s,]+)*")


def token_for(url: str, tokens: str) -> str:
    """Return the token for an agent. `tokens` is one token for all agents, or a list by host and
    port such as `a.example:8081=secret,b.example:8081=other`, in which an agent may be missing."""
    if not _TOKEN_LIST.fullmatch(tokens):
        return tokens
    place = urllib.parse.urlsplit(url).netloc
    named = dict(each.split("=", 1) for each in tokens.split(","))
    return named.get(place, "")


@dataclass(frozen=True, slots=True)
class ServedLog:
    """A log that an agent serves."""

    name: str
    """Name in the URL, for example `telemetry`."""
    node: int
    """Node id in the segments; 0 for telemetry, whose blocks name their nodes."""
    epoch: int
    start: int
    end: int


class LogClient:
    """HTTP client of one agent's log endpoints."""

    def __init__(self, url: str, token: str) -> None:
        """`url` is `http://host:port`; `token` is the agent's `[admin] token` or a list of tokens
        (`token_for`)."""
        self._url = url.rstrip("/")
        self._token = token_for(url, token)

    def list_logs(self) -> list[ServedLog]:
        body, _ = self.fetch("/logs", {})
        try:
            found = json.loads(body)["logs"]
            return [
                ServedLog(
                    each["name"],
                    int(each["node"], 16),
                    *(int(each[name]) for name in _NUMBER_FIELDS),
                )
                for each in found
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise JournalUnusable(f"{self._url}/logs is not a list of logs: {error!r}") from None

    def fetch(self, path: str, query: dict[str, int]) -> tuple[bytes, str]:
        """Return the body of a response, and the start of the next range."""
        url = f"{self._url}{path}?{urllib.parse.urlencode(query)}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self._token}"})
        try:
            body, headers = web.fetch(request, TIMEOUT_S, ANSWER_BYTES_MAX)
            return body, headers.get(NEXT_OFFSET_HEADER, "")
        except urllib.error.HTTPError as error:
            with error:
                raise _error_from_response(url, error) from None
        except web.TooLarge as error:
            raise JournalUnusable(f"{url}: {error}") from None
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise AgentUnreachable(f"cannot read {url}: {reason}") from None


_NUMBER_FIELDS = ("epoch", "start", "end")


class RemoteJournalReader:
    """One log of an agent in its state at the time of each call."""

    def __init__(self, client: LogClient, name: str) -> None:
        """`name` is one that `LogClient.list_logs` returns."""
        self._client = client
        self._name = name

    def __str__(self) -> str:
        return self._name

    @property
    def bounds(self) -> OffsetBounds:
        """Offsets of the durable records."""
        for each in self._client.list_logs():
            if each.name == self._name:
                return OffsetBounds(each.start, each.end)
        return OffsetBounds(0, 0)

    def raw_records(
        self, start: int | None = None, end: int | None = None
    ) -> Iterator[tuple[int, int, bytes]]:
        """Yield offset, kind and body of each record; arguments as for `JournalReader`."""
        bounds = self.bounds
        position = bounds.start if start is None else start
        end = bounds.end if end is None else min(end, bounds.end)
        path = f"/logs/{urllib.parse.quote(self._name)}"
        while position < end:
            query = {"start": position, "end": end, "bytes": RANGE_BYTES}
            data, next_offset = self._client.fetch(path, query)
            yield from unpack_range(data, path)
            if not next_offset.isdecimal() or int(next_offset) <= position:
                raise JournalUnusable(f"{path} does not say where its next range starts")
            position = int(next_offset)

    def read(
        self, start: int | None = None, end: int | None = None
    ) -> Iterator[tuple[int, JournalRecord]]:
        """Yield each record of a known kind with its offset."""
        for offset, kind, body in self.raw_records(start, end):
            try:
                record = decode_record(kind, body)
            except ValueError as error:
                text = f"{self._name}: the record at offset {offset} is invalid: {error}"
                raise JournalDamaged(text, offset) from None
            if record is not None:
                yield offset, record


def _error_from_response(url: str, error: urllib.error.HTTPError) -> Exception:
    """Return the exception for an HTTP error of an agent."""
    try:
        response: Any = json.loads(error.read(1 << 16))
    except ValueError:
        response = {}
    if not isinstance(response, dict):
        response = {}
    if 300 <= error.code < 400:
        return JournalUnusable(
            f"{url}: the agent redirects, and the token is not sent elsewhere: give its own URL"
        )
    text = f"{url}: {response.get('error', error.reason)}"
    match error.code, response:
        case 410, {"first": int(first)}:
            return JournalTrimmed(text, first)
        case 500, {"offset": int(offset)}:
            return JournalDamaged(text, offset, response.get("resume"))
    return JournalUnusable(text)
