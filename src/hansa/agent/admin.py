"""The agent's own pages: /status, /healthz, /readyz and /metrics, for loopback.

Requests are small and answers are made at once, so a few lines of HTTP do; nothing here can change
the agent.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass

REQUEST_BYTES_MAX = 8_192
REQUEST_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a page says."""

    body: str
    status: int = 200
    kind: str = "application/json"


Pages = dict[str, Callable[[], Answer]]
"""The routes: one visible list, made by the service."""

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


def as_json(value: object, status: int = 200) -> Answer:
    """Return a value as a page."""
    return Answer(json.dumps(value, indent=1, sort_keys=True) + "\n", status)


async def serve(host: str, port: int, pages: Pages) -> asyncio.Server:
    """Listen; the server's first socket knows the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_TIMEOUT_S)
            page = _find(request, pages)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            page = as_json({"error": "this is HTTP, with small requests"}, 400)
        except ConnectionError:
            writer.close()
            return
        body = page.body.encode()
        head = (
            f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\n"
            f"Content-Type: {page.kind}; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        writer.close()

    return await asyncio.start_server(answer, host, port, limit=REQUEST_BYTES_MAX)


def _find(request: bytes, pages: Pages) -> Answer:
    words = request.split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3:
        return as_json({"error": "no request line"}, 400)
    if words[0] != b"GET":
        return as_json({"error": "these pages are only read"}, 405)
    path = words[1].split(b"?")[0].decode("latin-1")
    page = pages.get(path)
    if page is None:
        return as_json({"error": f"no page {path}", "pages": sorted(pages)}, 404)
    return page()
