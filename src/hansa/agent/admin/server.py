"""HTTP server of an agent: documents and streams (GET), and a few commands (POST).

`access` says which of them need a token. Requests are small and, except for logs and streams,
answered at once, so a minimal HTTP implementation is enough. A command has its parameters in the
query and no body.
"""

import asyncio
import os
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import msgspec

from hansa.agent.admin.access import (
    CHALLENGE,
    LOGS_PATH,
    AdminAccess,
    Scope,
    is_below,
    scope_of,
)
from hansa.agent.admin.socket_owner import find_owner
from hansa.agent.exposure import HostRule, is_by_foreign_page, is_loopback
from hansa.agent.handshakes import SHUTDOWN_TIMEOUT_S, TlsServer
from hansa.agent.sockets import listen
from hansa.web_console import CONTENT_SECURITY_POLICY, load_assets

REQUEST_BYTES_MAX = 8_192
REQUEST_TIMEOUT_S = 5.0
RESPONSE_TIMEOUT_S = 120.0
"""Seconds that a client may take to read a document in pieces."""

EVENT_TIMEOUT_S = 30.0
"""Seconds in which the client of a stream must read some of what was sent; then it is cut off."""

READ_TIMEOUT_S = 30.0
"""Seconds that a client may take to read a document in one piece."""

CONNECTIONS_MAX = 256
"""Connections at the same time. A further one closes the oldest that has sent no whole request, or
else the oldest that reads a document slowly; it is closed itself if all others are streams."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    body: str | bytes
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamedResponse:
    """A JSON document in pieces. The agent forwards between two of them, and makes the next one
    when the client has read most of the earlier ones, so memory is bounded."""

    pieces: Iterator[bytes]
    status: int = 200


@dataclass(frozen=True, slots=True)
class EventStream:
    """Server-sent events until the generator ends or the client closes the connection."""

    events: AsyncGenerator[bytes, None]


@dataclass(frozen=True, slots=True)
class Protection:
    """Who may send requests."""

    host_rule: HostRule
    access: AdminAccess = field(default_factory=AdminAccess)
    tls: ssl.SSLContext | None = None
    on_refused: Callable[[str, str], None] = lambda remote, reason: None
    """Called with the address and the reason of a refused request."""
    counters: Counter[str] = field(default_factory=Counter)
    """Connections that were closed before a request, by reason."""


@dataclass(frozen=True, slots=True)
class HttpPeer:
    """The other end of a connection."""

    host: str
    find_owner: Callable[[], int | None]
    """Returns the user id of its process, if that runs on this machine and is known."""

    def identify(self) -> str:
        """Return who counts as the sender of wrong tokens. All users of this machine have the same
        address: one of them must not keep the others out."""
        return f"{self.host} user {self.find_owner()}" if is_loopback(self.host) else self.host


Response = HttpResponse | StreamedResponse | EventStream

Endpoints = Mapping[str, Callable[[], Response]]
"""The routes: one visible list, made by the service."""

RequestHandler = Callable[[str, str, Mapping[str, str]], Awaitable[HttpResponse | EventStream]]
"""Gets path, query, and headers in lower case. The route of a command begins with `POST `."""

COMMAND = "POST "

LogHandler = RequestHandler
"""Handles /logs and everything below it."""

PATH_CHARS_MAX = 100
"""Characters of a refused path that are reported."""

_STATUS_TEXTS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    410: "Gone",
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def json_response(value: object, status: int = 200, *, is_compact: bool = False) -> HttpResponse:
    """Return a value as JSON, indented and sorted for people unless it is for a program."""
    # The standard library takes a second for 20 MB, in which the agent would forward nothing.
    if is_compact:
        text = msgspec.json.encode(value)
    else:
        text = msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=1)
    return HttpResponse(text + b"\n", status, "application/json; charset=utf-8")


def console_endpoints() -> Endpoints:
    """Return the files of the web page."""
    headers = {
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }
    responses = {
        path: HttpResponse(text, content_type=content_type, headers=headers)
        for path, (text, content_type) in load_assets().items()
    }
    return {path: partial(lambda found: found, response) for path, response in responses.items()}


class ConnectionPlaces:
    """At most CONNECTIONS_MAX connections. Idle ones of any local user keep no others out."""

    def __init__(self) -> None:
        self._active_count = 0
        self._silent: dict[asyncio.StreamWriter, None] = {}
        """Connections without a whole request, the oldest first."""
        self._reading: dict[asyncio.StreamWriter, None] = {}
        """Connections with a document that the client has not read yet, the oldest first."""

    def enter(self, writer: asyncio.StreamWriter) -> bool:
        """Give a connection a place, if need be that of a silent one; return whether it has one."""
        if self._active_count >= CONNECTIONS_MAX:
            victim = next(iter({**self._silent, **self._reading}), writer)
            victim.transport.abort()
            self.end_silence(victim)
            self._reading.pop(victim, None)
            if victim is writer:
                return False
        self._active_count += 1
        self._silent[writer] = None
        return True

    def end_silence(self, writer: asyncio.StreamWriter) -> None:
        self._silent.pop(writer, None)

    def start_reading(self, writer: asyncio.StreamWriter) -> None:
        """The client has to read a document."""
        self._reading[writer] = None

    def leave(self, writer: asyncio.StreamWriter) -> None:
        self._active_count -= 1
        self.end_silence(writer)
        self._reading.pop(writer, None)


async def serve(
    host: str,
    port: int,
    endpoints: Endpoints,
    logs: LogHandler | None = None,
    protection: Protection | None = None,
    handlers: Mapping[str, RequestHandler] | None = None,
) -> asyncio.Server | TlsServer:
    """Listen; the first socket of the server knows the port. `handlers` are endpoints that read the
    query of a request or take time."""
    protection = protection or Protection(HostRule(host))
    handle = partial(_handle_request, endpoints, logs, handlers or {}, protection)
    places = ConnectionPlaces()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if places.enter(writer):
            try:
                await answer_one(reader, writer)
                places.start_reading(writer)
                await _wait_closed(writer)
            finally:
                places.leave(writer)

    async def answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = (writer.get_extra_info(name) for name in ("peername", "sockname"))
        there, here = there or ("-", 0), here or ("-", 0)
        client = HttpPeer(str(there[0]), partial(find_owner, there[:2], here[:2]))
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = await reader.readuntil(b"\r\n\r\n")
            places.end_silence(writer)
            page = await handle(request, client)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            page = json_response({"error": "this is HTTP, with small requests"}, 400)
        except ConnectionError:
            writer.close()
            return
        if isinstance(page, EventStream):
            await _write_events(page, reader, writer)
            return
        places.start_reading(writer)
        if isinstance(page, StreamedResponse):
            await _write_pieces(page, writer)
            return
        body, kind = page.body, page.content_type
        if isinstance(body, str):
            body, kind = body.encode(), f"{kind}; charset=utf-8"
        more = "".join(f"{name}: {value}\r\n" for name, value in page.headers.items())
        head = (
            f"HTTP/1.1 {page.status} {_STATUS_TEXTS[page.status]}\r\n"
            f"Content-Type: {kind}\r\n{more}"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        await _write_document(head.encode() + body, writer)

    return await _listen(host, port, answer, protection)


async def _listen(
    host: str,
    port: int,
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    protection: Protection,
) -> asyncio.Server | TlsServer:
    if protection.tls is None:
        return await asyncio.start_server(answer, host, port, limit=REQUEST_BYTES_MAX)

    def make_protocol() -> asyncio.Protocol:
        reader = asyncio.StreamReader(limit=REQUEST_BYTES_MAX)
        return asyncio.StreamReaderProtocol(reader, answer)

    sockets = await listen(host, port)
    return TlsServer(sockets, make_protocol, protection.tls, protection.counters)


async def _wait_closed(writer: asyncio.StreamWriter) -> None:
    """Wait until a client of HTTPS has closed its side of TLS, for a while."""
    writer.close()
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(SHUTDOWN_TIMEOUT_S):
            await writer.wait_closed()
    writer.transport.abort()


async def _write_document(document: bytes, writer: asyncio.StreamWriter) -> None:
    """Write a document in one piece; the client must read it in time."""
    writer.transport.set_write_buffer_limits(0)  # `drain` returns when everything is sent
    writer.write(document)
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            await writer.drain()
    except (TimeoutError, ConnectionError):
        writer.transport.abort()
    else:
        writer.close()


async def _write_pieces(response: StreamedResponse, writer: asyncio.StreamWriter) -> None:
    """Write a document in chunks, so that the client notices a missing end."""
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n"
        b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )
    try:
        async with asyncio.timeout(RESPONSE_TIMEOUT_S):
            for piece in response.pieces:
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
                await asyncio.sleep(0)  # drain returns at once while the buffer has room
            writer.write(b"0\r\n\r\n")
    except (TimeoutError, ConnectionError):
        writer.transport.abort()
    else:
        writer.close()


async def _write_events(
    stream: EventStream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Write events until they end, or the client closes or does not read."""
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
        b"Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )

    async def write_all() -> None:
        with suppress(TimeoutError, ConnectionError):
            async for event in stream.events:
                writer.write(event)
                async with asyncio.timeout(EVENT_TIMEOUT_S):
                    await writer.drain()
            return
        writer.transport.abort()

    # A client sends nothing after its request: reading ends when it closes the connection.
    parts = [asyncio.ensure_future(each) for each in (write_all(), reader.read(1))]
    try:
        await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        await stream.events.aclose()
        writer.close()


async def _handle_request(
    endpoints: Endpoints,
    logs: LogHandler | None,
    handlers: Mapping[str, RequestHandler],
    protection: Protection,
    request: bytes,
    client: HttpPeer,
) -> Response:
    first, *rest = request.split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3:
        return json_response({"error": "no request line"}, 400)
    path, _, query = words[1].decode("latin-1").partition("?")
    pairs = (line.decode("latin-1").partition(":") for line in rest)
    headers = {name.lower(): text.strip() for name, _, text in pairs}
    command = handlers.get(COMMAND + path) if words[0] == b"POST" else None
    if words[0] != b"GET" and command is None:
        return json_response({"error": "there is no such command"}, 405)
    scope = scope_of(path) if command is None else Scope.OPERATE
    refusal = _refusal(protection, path, headers, client, scope)
    if refusal is None and command is not None and not protection.access.may_command(headers):
        refusal = _refuse_other_users(client.find_owner())
    if refusal is not None:
        protection.on_refused(client.host, f"{refusal.status} {path[:PATH_CHARS_MAX]}")
        return refusal
    if logs is not None and is_below(path, LOGS_PATH):
        return await logs(path, query, headers)
    handler = command or handlers.get(path)
    if handler is not None:
        return await handler(path, query, headers)
    endpoint = endpoints.get(path)
    if endpoint is None:
        paths = sorted({*endpoints, *handlers})
        return json_response({"error": f"no endpoint {path}", "endpoints": paths}, 404)
    return endpoint()


def _refusal(
    protection: Protection, path: str, headers: Mapping[str, str], client: HttpPeer, scope: Scope
) -> HttpResponse | None:
    """Return the answer to a request that is not allowed."""
    if not protection.host_rule.accepts(headers.get("host")):
        return json_response({"error": "this host name is not in [admin] names"}, 403)
    if is_by_foreign_page(headers.get):
        return json_response({"error": "requests of other web pages are refused"}, 403)
    if scope is Scope.OPERATE and not is_same_origin(headers):
        return json_response({"error": "commands of other web pages are refused"}, 403)
    now = asyncio.get_running_loop().time()
    if (refused := protection.access.refusal(path, headers, client.identify, now, scope)) is None:
        return None
    body = json_response({"error": refused[1]}).body
    # The page asks for the token of a restricted path itself: no login dialogue.
    is_challenged = refused[0] == 401 and scope is not Scope.ADMIN
    return HttpResponse(body, refused[0], headers=CHALLENGE if is_challenged else {})


def _refuse_other_users(owner: int | None) -> HttpResponse | None:
    """Without a token, every user of this machine reaches the endpoints on loopback."""
    if owner in (0, os.geteuid()):
        return None
    text = "this command needs root, the user of the agent, or a token of [admin] operate_token"
    return json_response({"error": text}, 403)


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Whether a request comes from a program, or from a page of this server: a browser sends the
    origin of the page with every POST."""
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host")
