"""HTTP server of an agent: /status, /overview, /healthz, /readyz and /metrics without a token,
/logs with one.

Requests are small and, except for logs, answered at once, so a minimal HTTP implementation is
enough. No endpoint changes the agent.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from hansa.agent.exposure import HostRule
from hansa.web_console import CONTENT_SECURITY_POLICY, load_assets

REQUEST_BYTES_MAX = 8_192
REQUEST_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class HttpResponse:
    body: str | bytes
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


Endpoints = dict[str, Callable[[], HttpResponse]]
"""The routes: one visible list, made by the service."""

LogHandler = Callable[[str, str, Mapping[str, str]], Awaitable[HttpResponse]]
"""Handles /logs and everything below it: path, query, headers in lower case."""

LOGS_PATH = "/logs"

_STATUS_TEXTS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    410: "Gone",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def json_response(value: object, status: int = 200, *, is_compact: bool = False) -> HttpResponse:
    """Return a value as JSON, indented and sorted for people unless it is for a program."""
    text = json.dumps(value) if is_compact else json.dumps(value, indent=1, sort_keys=True)
    return HttpResponse(text + "\n", status)


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


async def serve(
    host: str,
    port: int,
    endpoints: Endpoints,
    logs: LogHandler | None = None,
    host_names: Sequence[str] = (),
) -> asyncio.Server:
    """Listen; the first socket of the server knows the port. `names` are host names, besides
    those of this machine, that requests may use."""
    host_rule = HostRule(host, host_names)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = await reader.readuntil(b"\r\n\r\n")
            page = await _handle_request(request, endpoints, logs, host_rule)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            page = json_response({"error": "this is HTTP, with small requests"}, 400)
        except ConnectionError:
            writer.close()
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
        writer.write(head.encode() + body)
        writer.close()

    return await asyncio.start_server(answer, host, port, limit=REQUEST_BYTES_MAX)


async def _handle_request(
    request: bytes, endpoints: Endpoints, logs: LogHandler | None, host_rule: HostRule
) -> HttpResponse:
    first, *rest = request.split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3:
        return json_response({"error": "no request line"}, 400)
    if words[0] != b"GET":
        return json_response({"error": "these pages are only read"}, 405)
    path, _, query = words[1].decode("latin-1").partition("?")
    pairs = (line.decode("latin-1").partition(":") for line in rest)
    headers = {name.lower(): text.strip() for name, _, text in pairs}
    if not host_rule.accepts(headers.get("host")):
        return json_response({"error": "this host name is not in [admin] names"}, 403)
    if logs is not None and (path == LOGS_PATH or path.startswith(f"{LOGS_PATH}/")):
        return await logs(path, query, headers)
    endpoint = endpoints.get(path)
    if endpoint is None:
        return json_response({"error": f"no page {path}", "endpoints": sorted(endpoints)}, 404)
    return endpoint()
