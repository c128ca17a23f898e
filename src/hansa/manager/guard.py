"""What stands before every route: how large a request may be, how often one may ask, the audit log.

Plain ASGI, so that streams pass through it untouched.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from hansa.agent.exposure import HostRule
from hansa.manager.access import AccessControl, RateLimiter
from hansa.manager.store import ManagerStore, StoreUnavailable

log = logging.getLogger("hansa.manager")

BODY_BYTES_MAX = 1 << 18
"""4,096 members at 19 bytes each, with room."""

ANONYMOUS_PER_S = 1.0
"""Requests in the audit log of those who show no token: they must not push out the others."""

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RequestGuard:
    """Wraps the routes."""

    def __init__(
        self,
        app: App,
        rate_limiter: RateLimiter,
        store: ManagerStore,
        access: AccessControl,
        rule: HostRule,
    ) -> None:
        """Stand before an application."""
        self._app = app
        self._access = access
        self._rule = rule
        self._rate_limiter = rate_limiter
        self._anonymous_audit_limiter = RateLimiter(ANONYMOUS_PER_S)
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        remote = scope["client"][0] if scope.get("client") else "-"
        if not self._rate_limiter.admit(remote, time.monotonic()):
            await _refuse(send, 429, "too many requests; wait a second")
            return
        if self._access.is_open and not self._is_from_here(scope):
            await _refuse(
                send, 403, "without a token only this machine may ask: foreign Host or Origin"
            )
            return
        scope.setdefault("state", {})

        async def watch(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start" and _is_audited(scope, message["status"]):
                await self._write_audit(scope, remote, message["status"])
            await send(message)

        body = await _read(receive)
        if body is None:
            await _refuse(watch, 413, f"a body may have {BODY_BYTES_MAX} bytes at most")
        else:
            await self._app(scope, _replay(body, receive), watch)

    def _is_from_here(self, scope: Scope) -> bool:
        """Whether neither Host nor Origin shows that a web page of another site asks."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        origin = headers.get(b"origin")
        return self._rule.accepts(headers.get(b"host")) and (
            origin is None or self._rule.accepts(origin.rpartition("//")[2])
        )

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
            log.error("the audit log could not be written reason=%r", str(error))


def _is_audited(scope: Scope, status: int) -> bool:
    """Whether a request belongs into the audit log: it changes something, or tried to. The health
    reports that every node sends every few seconds would leave no room for anything else."""
    is_report = scope["path"].endswith("/health") and status == 200
    return scope["method"] not in ("GET", "HEAD", "OPTIONS") and not is_report


async def _read(receive: Receive) -> bytes | None:
    """Return the body of a request, None if it is too large."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            return None
        if not message.get("more_body"):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return what hands the body over, and then what else happens to the connection."""
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
