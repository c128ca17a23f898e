"""A minimal HTTP client over asyncio, for one server: no redirects, everything bounded.

It uses HTTP 1.0: a response ends with its connection and is never chunked. A redirect is an answer
like any other; nothing is sent to an address that a server names.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from hansa.errors import UsageError

LINE_BYTES_MAX = 1 << 16
HEADERS_MAX = 256


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def parse_server_url(
    setting: str, url: str, schemes: tuple[str, ...] = ("http", "https")
) -> SplitResult:
    """Return the parts of the URL of a server, which may have a path; raise UsageError for any
    other text. The error does not quote the text, which may hold a password."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:  # invalid port, or incomplete IPv6 address
        is_valid = False
    if not is_valid or parts.query or parts.fragment or not url.isprintable() or " " in url:
        forms = " or ".join(f"{each}://HOST:PORT" for each in schemes)
        raise UsageError(f"{setting} must be {forms}")
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"{setting} must have no user and password")
    return parts


class Response(NamedTuple):
    """The head of a response, and the stream with its body."""

    status: int
    headers: dict[str, str]
    """By name in lower case."""
    reader: asyncio.StreamReader


class HttpServer:
    """The server of a URL; `url` may have a path, which precedes all others."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        connect: Callable[[str, int, int], Awaitable[Streams]] | None = None,
    ) -> None:
        """`connect` opens connections in another way: it gets host, port and the largest line."""
        self._connect = connect or self._open
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._base = parts.path.rstrip("/")
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self._headers = {"Host": f"{shown}:{self._port}", "Accept": "*/*", **(headers or {})}

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        data: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Response]:
        """Send a request; raise OSError or ValueError if no HTTP response comes."""
        reader, writer = await self._connect(self._host, self._port, LINE_BYTES_MAX)
        try:
            fields = {**self._headers, **(headers or {})}
            if data:
                fields |= {"Content-Type": "application/json", "Content-Length": str(len(data))}
            head = f"{method} {self._base}{path} HTTP/1.0\r\n"
            head += "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            writer.write(head.encode() + b"\r\n" + data)
            yield await _read_head(reader)
        finally:
            if writer.get_extra_info("ssl_object") is not None:
                writer.transport.abort()  # the server may leave our close_notify without an answer
            writer.close()

    async def _open(self, host: str, port: int, line_bytes_max: int) -> Streams:
        return await asyncio.open_connection(host, port, ssl=self._tls, limit=line_bytes_max)


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ValueError as error:
        raise ValueError(f"a header line of more than {LINE_BYTES_MAX} bytes") from error


async def _read_head(reader: asyncio.StreamReader) -> Response:
    words = (await _read_line(reader)).split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise ValueError("this is no HTTP")
    headers: dict[str, str] = {}
    for _ in range(HEADERS_MAX):
        line = await _read_line(reader)
        if not line.strip():
            if not line:
                raise ValueError("the connection was closed before the response")
            return Response(int(words[1]), headers, reader)
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    raise ValueError(f"a response with more than {HEADERS_MAX} headers")


async def read_body(response: Response, bytes_max: int) -> bytes:
    """Return the body; raise ValueError if it is too large, chunked or incomplete."""
    if "transfer-encoding" in response.headers:
        raise ValueError("a chunked response to a request of HTTP 1.0")
    body = bytearray()
    while part := await response.reader.read(LINE_BYTES_MAX):
        body += part
        if len(body) > bytes_max:
            raise ValueError(f"an answer of more than {bytes_max} bytes")
    announced = response.headers.get("content-length", "")
    if announced.isdigit() and int(announced) != len(body):
        raise ValueError(f"{len(body)} of {announced} bytes arrived")
    return bytes(body)
