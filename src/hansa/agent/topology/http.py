"""A minimal HTTP client for the topology manager: JSON requests and a stream of lines.

It uses HTTP 1.0: a response ends with its connection and is never chunked.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from hansa.agent.error_text import explain_socket_error
from hansa.errors import HansaError

TIMEOUT_S = 5.0
ANSWER_BYTES_MAX = 1 << 20
LINE_BYTES_MAX = 1 << 16


class ManagerUnavailable(HansaError):
    """The manager does not answer, or not as a manager."""


class ManagerRefused(HansaError):
    """The manager refused a request."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{reason} ({status})")
        self.status = status


class HttpClient:
    """Sends requests to one server."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        """`url` may have a path, which precedes all others."""
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._base = parts.path.rstrip("/")
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self._headers = f"Host: {shown}:{self._port}\r\nAccept: */*\r\n"
        for name, value in (headers or {}).items():
            self._headers += f"{name}: {value}\r\n"

    async def request_json(self, method: str, path: str, body: object = None) -> Any:
        """Send a request; return the JSON of the response."""
        data = b"" if body is None else json.dumps(body).encode()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                async with self._request(method, path, data) as (status, reader):
                    answer = await _read_all(reader)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
            raise ManagerUnavailable(explain_socket_error(error)) from error
        return _parse(status, answer)

    async def stream_lines(self, path: str, idle_timeout_s: float) -> AsyncGenerator[str, None]:
        """Yield the lines of an endless response; raise when it ends or is idle too long."""
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(TIMEOUT_S):
                    request = self._request("GET", path, b"")
                    status, reader = await stack.enter_async_context(request)
                    if status != 200:
                        _parse(status, await _read_all(reader))
                while True:
                    async with asyncio.timeout(idle_timeout_s):  # not while a line is processed
                        line = await reader.readline()
                    if not line:
                        raise ManagerUnavailable("the stream has ended")
                    yield line.decode(errors="replace").rstrip("\r\n")
        except (OSError, TimeoutError, ValueError) as error:
            raise ManagerUnavailable(explain_socket_error(error)) from error

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, data: bytes
    ) -> AsyncIterator[tuple[int, asyncio.StreamReader]]:
        reader, writer = await asyncio.open_connection(
            self._host, self._port, ssl=self._tls, limit=LINE_BYTES_MAX
        )
        try:
            head = f"{method} {self._base}{path} HTTP/1.0\r\n{self._headers}"
            if data:
                head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
            writer.write(head.encode() + b"\r\n" + data)
            words = (await reader.readline()).split()
            if len(words) < 2 or not words[0].startswith(b"HTTP/"):
                raise ValueError("this is no HTTP")
            while (await reader.readline()).strip():
                pass  # headers are ignored
            yield int(words[1]), reader
        finally:
            writer.close()


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    answer = bytearray()
    while part := await reader.read(LINE_BYTES_MAX):
        answer += part
        if len(answer) > ANSWER_BYTES_MAX:
            raise ValueError(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
    return bytes(answer)


def _parse(status: int, answer: bytes) -> Any:
    try:
        value = json.loads(answer) if answer else None
    except ValueError as error:
        raise ManagerUnavailable("the answer is no JSON") from error
    if not 200 <= status < 300:
        reason = value.get("error", "") if isinstance(value, dict) else ""
        raise ManagerRefused(status, str(reason))
    return value
