"""ASGI middleware of all routes: rate limit, body size, Host and Origin checks, audit log.

Plain ASGI, because Starlette's middleware classes would buffer event streams.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from hansa.agent.exposure import HostRule, is_by_foreign_page
from hansa.manager.access import AccessControl, RateLimiter
from hansa.manager.connections import REQUEST_TIMEOUT_S
from hansa.manager.members import Member, Members
from hansa.manager.store import ManagerStore, StoreUnavailable

log = logging.getLogger("hansa.manager")

BODY_BYTES_MAX = 1 << 18
"""Largest body: a health report with 4,096 reachable nodes of 19 bytes fits."""

ANONYMOUS_PER_S = 1.0
"""Audited requests per second without a token, so that they cannot displace other entries."""

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RequestGuard:
    def __init__(
        self,
        app: App,
        rate_limiter: RateLimiter,
        store: ManagerStore,
        access: AccessControl,
        rule: HostRule,
        members: Members | None = None,
    ) -> None:
        self._members = members
        self._app = app
        self._access = access
        self._rule = rule
        self._rate_limiter = rate_limiter
        self._anonymous_audit_limiter = RateLimiter(ANONYMOUS_PER_S)
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        remote = scope["client"][0] if scope.get("client") else "-"
        if not self._rate_limiter.admit(remote, time.monotonic()):
            await _refuse(send, 429, "too many requests; wait a second")
            return
        scope.setdefault("state", {})
        member: Member | None = scope["state"].get("member")
        if member is not None:
            scope["state"]["caller"] = member.node or "-"
            if self._members is not None and (reason := self._members.refusal(member)):
                await _refuse(send, 403, reason)
                return
        elif self._access.is_open and not self._is_from_here(scope):
            await _refuse(
                send, 403, "foreign Host or Origin: without tokens only this machine has access"
            )
            return

        async def watch(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start" and _is_audited(scope, message["status"]):
                await self._write_audit(scope, remote, message["status"])
            await send(message)

        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                body = await _read(receive)
        except TimeoutError:
            await _refuse(watch, 408, "the body takes too long")
            return
        if body is None:
            await _refuse(watch, 413, f"a body may have {BODY_BYTES_MAX} bytes at most")
        else:
            await self._app(scope, _replay(body, receive), watch)

    def _is_from_here(self, scope: Scope) -> bool:
        """Whether Host and Origin exclude a request by a web page of another site."""
        pairs = scope["headers"]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
        origin, host = headers.get("origin"), headers.get("host")
        if is_by_foreign_page(headers.get):
            return False
        return self._rule.accepts(host) and (origin is None or origin.partition("://")[2] == host)

    async def _write_audit(self, scope: Scope, remote: str, status: int) -> None:
        who = scope["state"].get("caller", "-")
        if who == "-" and not self._anonymous_audit_limiter.admit(who, time.monotonic()):
            return
        request = (scope["method"][:16], scope["path"][:255].replace("\0", "?"), status)
        try:
            await asyncio.to_thread(
                self._store.add_audit, time.time_ns() / 1e9, who, remote, request
            )
        except StoreUnavailable as error:
            log.error("audit log not written reason=%r", str(error))


def _is_audited(scope: Scope, status: int) -> bool:
    """Whether a request changes something, or tried to. Accepted health reports are not audited:
    they would displace everything else."""
    is_report = scope["path"].endswith("/health") and status == 200
    return scope["method"] not in ("GET", "HEAD", "OPTIONS") and not is_report


async def _read(receive: Receive) -> bytes | None:
    """Return the body of a request; None if it is too large."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            return None
        if not message.get("more_body"):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields the body that was read, then later messages."""
    given = False

    async def read() -> dict[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return read


async def _refuse(send: Send, status: int, reason: str) -> None:
    body = json.dumps({"error": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"1")]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
