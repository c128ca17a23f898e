"""Requests to the topology manager: JSON, and a stream of lines."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

from hansa.agent.error_text import explain_socket_error
from hansa.agent.http_client import HttpServer, read_body
from hansa.agent.topology.member_connection import SCHEME, Contexts, connect_as_member
from hansa.errors import HansaError

TIMEOUT_S = 5.0
ANSWER_BYTES_MAX = 1 << 20


class ManagerUnavailable(HansaError):
    """The manager does not answer, or not as a manager."""


class ManagerRefused(HansaError):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{reason} ({status})")
        self.status = status


class HttpClient:
    """Sends requests to one server."""

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, contexts: Contexts = lambda: None
    ) -> None:
        """`url` may have a path, which precedes all others. For hansa://HOST:PORT the client shows
        the certificate of this node."""
        self.is_member = urlsplit(url).scheme == SCHEME
        connect = connect_as_member(contexts) if self.is_member else None
        self._server = HttpServer(url, headers, connect=connect)

    async def request_json(self, method: str, path: str, body: object = None) -> Any:
        """Send a request; return the JSON of the response."""
        data = b"" if body is None else json.dumps(body).encode()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                async with self._server.request(method, path, data) as response:
                    answer = await read_body(response, ANSWER_BYTES_MAX)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
            raise ManagerUnavailable(explain_socket_error(error)) from error
        return _parse(response.status, answer)

    async def stream_lines(self, path: str, idle_timeout_s: float) -> AsyncGenerator[str, None]:
        """Yield the lines of an endless response; raise when it ends or is idle too long."""
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(TIMEOUT_S):
                    request = self._server.request("GET", path)
                    response = await stack.enter_async_context(request)
                    if response.status != 200:
                        body = await read_body(response, ANSWER_BYTES_MAX)
                        _parse(response.status, body)
                while True:
                    async with asyncio.timeout(idle_timeout_s):  # not while a line is processed
                        line = await response.reader.readline()
                    if not line:
                        raise ManagerUnavailable("the stream has ended")
                    yield line.decode(errors="replace").rstrip("\r\n")
        except (OSError, TimeoutError, ValueError) as error:
            raise ManagerUnavailable(explain_socket_error(error)) from error


def _parse(status: int, answer: bytes) -> Any:
    try:
        value = json.loads(answer) if answer else None
    except ValueError as error:
        raise ManagerUnavailable("the answer is no JSON") from error
    if not 200 <= status < 300:
        reason = value.get("error", "") if isinstance(value, dict) else ""
        raise ManagerRefused(status, str(reason))
    return value
