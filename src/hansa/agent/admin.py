"""The agent's own pages: /status, /healthz, /readyz and /metrics, for loopback; and, for who has a
token, /logs.

Requests are small and answers are made at once, but for logs, so a few lines of HTTP do; nothing
here can change the agent.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hansa.agent.exposure import HostRule

REQUEST_BYTES_MAX = 8_192
REQUEST_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a page says."""

    body: str | bytes
    status: int = 200
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


Pages = dict[str, Callable[[], Answer]]
"""The routes: one visible list, made by the service."""

Logs = Callable[[str, str, Mapping[str, str]], Awaitable[Answer]]
"""Answers for /logs and all below it: path, query, headers with small letters."""

LOGS = "/logs"

_REASONS = {
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


def as_json(value: object, status: int = 200) -> Answer:
    """Return a value as a page."""
    return Answer(json.dumps(value, indent=1, sort_keys=True) + "\n", status)


async def serve(
    host: str, port: int, pages: Pages, logs: Logs | None = None, names: Sequence[str] = ()
) -> asyncio.Server:
    """Listen; the server's first socket knows the port. `names` are other hosts than this machine
    that requests may name."""
    rule = HostRule(host, names)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = await reader.readuntil(b"\r\n\r\n")
            page = await _find(request, pages, logs, rule)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            page = as_json({"error": "this is HTTP, with small requests"}, 400)
        except ConnectionError:
            writer.close()
            return
        body, kind = page.body, page.kind
        if isinstance(body, str):
            body, kind = body.encode(), f"{kind}; charset=utf-8"
        more = "".join(f"{name}: {value}\r\n" for name, value in page.headers.items())
        head = (
            f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\n"
            f"Content-Type: {kind}\r\n{more}"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        writer.close()

    return await asyncio.start_server(answer, host, port, limit=REQUEST_BYTES_MAX)


async def _find(request: bytes, pages: Pages, logs: Logs | None, rule: HostRule) -> Answer:
    first, *rest = request.split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3:
        return as_json({"error": "no request line"}, 400)
    if words[0] != b"GET":
        return as_json({"error": "these pages are only read"}, 405)
    path, _, query = words[1].decode("latin-1").partition("?")
    pairs = (line.decode("latin-1").partition(":") for line in rest)
    headers = {name.lower(): text.strip() for name, _, text in pairs}
    if not rule.accepts(headers.get("host")):
        return as_json({"error": "this host name is not in [admin] names"}, 403)
    if logs is not None and (path == LOGS or path.startswith(f"{LOGS}/")):
        return await logs(path, query, headers)
    page = pages.get(path)
    if page is None:
        return as_json({"error": f"no page {path}", "pages": sorted(pages)}, 404)
    return page()
