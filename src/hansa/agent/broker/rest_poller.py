"""Polls the HTTP API of a broker for the observer `rest`.

Errors do not name the URL or credentials: they appear in the log and in `/status`.
"""

import asyncio
import base64
import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from hansa.agent.broker.access import tls_context
from hansa.agent.broker.own_subscription import OwnSubscription
from hansa.agent.broker.settings import RestSettings
from hansa.agent.error_text import explain_socket_error
from hansa.agent.http_client import HttpServer, read_body
from hansa.agent.settings import AgentSettings
from hansa.observers.base import ObserverOutput
from hansa.observers.rest.answer import (
    InvalidAnswer,
    ListedSubscription,
    Page,
    hash_client_id,
    read_page,
)
from hansa.observers.rest.description import CUSTOM, ListRequest
from hansa.observers.rest.observer import RestObserver

ANSWER_BYTES_MAX = 16 << 20
"""Bytes of one answer."""

PAGES_MAX = 1_000
"""Pages of one list."""

POLL_TIMEOUT_S = 30.0
"""Seconds for all requests of a poll."""

UNCONDITIONAL_S = 60.0
"""Seconds after which a list is requested in full although its `ETag` is known: a server or a cache
may answer that nothing has changed when something has."""

ATTEMPTS = 2
"""Attempts before a poll has failed: one lost connection need not widen the interest."""

OWN_ROLES = ("agent", "observer", "probe", "reader")
"""Ends of the agent's own client ids."""

OK, NOT_MODIFIED, BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 200, 304, 400, 401, 403, 404


@dataclass(frozen=True, slots=True)
class _CachedPage:
    etag: str
    """Empty if the broker sends none. `Last-Modified` is not used: its unit is a second, and a list
    may change twice in a second."""
    received_at: float
    digest: bytes
    page: Page


class RestPoller:
    """Requests the list of subscriptions again and again."""

    def __init__(
        self,
        settings: RestSettings,
        own_prefix: str,
        is_agent_subscribed: Callable[[], bool] = lambda: False,
        own: OwnSubscription | None = None,
    ) -> None:
        """`own_prefix` identifies the agent's own clients. `is_agent_subscribed` says whether the
        broker has a subscription of the agent for another reason than `own`."""
        self._settings = settings
        self._is_agent_subscribed = is_agent_subscribed
        self._was_own_held = False
        """At the previous poll: a subscription may appear in the list a moment later."""
        self._shows_clients = not any(
            request.client_optional for request in settings.requests if settings.kind == CUSTOM
        )
        self._own = own if self._shows_clients else None
        self._server = HttpServer(settings.url, _login(settings), tls_context("rest", settings))
        stale_after_s = 2 * POLL_TIMEOUT_S + 3 * settings.interval
        own_hashes = (hash_client_id(f"{own_prefix}{role}") for role in OWN_ROLES)
        self.observer = RestObserver(own_prefix, stale_after_s, own_hashes)
        self.on_observer_output: Callable[[ObserverOutput], None] = lambda output: None
        self.counters: Counter[str] = Counter()
        self._cache: dict[str, _CachedPage] = {}

    async def run(self) -> None:
        """Poll until cancelled; at most half of the time is spent on it."""
        loop = asyncio.get_running_loop()
        if self._own is not None:
            self._own.connection.start()
        try:
            while True:
                began_at = loop.time()
                self.on_observer_output(await self.poll())
                await asyncio.sleep(max(self._settings.interval, loop.time() - began_at))
        finally:
            if self._own is not None:
                await self._own.connection.stop()
                self._own.connection.abort()

    async def listen(self) -> None:
        """Do nothing: it only sends requests."""

    def stop(self) -> None:
        """Do nothing: `run` is cancelled."""

    def status(self) -> dict[str, object]:
        """Return nothing: the address of the API is not shown."""
        return {}

    def reload(self, settings: AgentSettings, changed: frozenset[str]) -> frozenset[str]:
        """Apply nothing: another API may list other subscriptions."""
        return frozenset()

    async def poll(self) -> ObserverOutput:
        """Poll once."""
        began_at, reason = asyncio.get_running_loop().time(), ""
        was_held, self._was_own_held = self._was_own_held, self._is_own_held()
        for _ in range(ATTEMPTS):
            try:
                async with asyncio.timeout(POLL_TIMEOUT_S):
                    listed, request_count = await self._request_all()
            except (OSError, ValueError, asyncio.IncompleteReadError) as error:
                reason = explain_socket_error(error)
                self.counters["broker API: requests failed"] += 1
            else:
                expects_own = was_held and self._was_own_held and self._is_own_held()
                awaits_own = self._own is not None and not self._own.is_refused
                return self.observer.on_polled(
                    listed, request_count, began_at, expects_own, awaits_own
                )
        return self.observer.on_poll_failed(f"the broker's HTTP API: {reason}")

    def _is_own_held(self) -> bool:
        """Whether the broker has a subscription of the agent, which its list must contain."""
        has_own = self._own is not None and self._own.is_held
        return self._shows_clients and (has_own or self._is_agent_subscribed())

    async def _request_all(self) -> tuple[list[ListedSubscription], int]:
        """Return all rows, and the number of requests."""
        listed: list[ListedSubscription] = []
        cache: dict[str, _CachedPage] = {}
        for request in self._settings.requests:
            item_count = 0
            for number in range(PAGES_MAX):
                path = _page_path(request, number, item_count)
                cache[path] = await self._request_page(request, path)
                page = cache[path].page
                listed += page.subscriptions
                item_count += page.item_count
                if _is_last(request, page, item_count):
                    break
            else:
                raise InvalidAnswer(f"it has more than {PAGES_MAX} pages")
        self._cache = cache
        return listed, len(cache)

    async def _request_page(self, request: ListRequest, path: str) -> _CachedPage:
        cached = self._cache.get(path)
        now = asyncio.get_running_loop().time()
        headers = {"Cache-Control": "no-cache"}
        if cached is not None and cached.etag and now - cached.received_at < UNCONDITIONAL_S:
            headers["If-None-Match"] = cached.etag
        self.counters["broker API: requests"] += 1
        async with asyncio.timeout(self._settings.timeout):
            async with self._server.request("GET", path, headers=headers) as response:
                is_known = response.status == NOT_MODIFIED and "If-None-Match" in headers
                if cached is not None and is_known:
                    self.counters["broker API: not modified"] += 1
                    return cached
                _check_status(response.status)
                body = await read_body(response, ANSWER_BYTES_MAX)
        digest = hashlib.blake2b(body).digest()
        is_same = cached is not None and cached.digest == digest
        page = cached.page if cached is not None and is_same else read_page(request, body)
        return _CachedPage(response.headers.get("etag", ""), now, digest, page)


def _login(settings: RestSettings) -> dict[str, str]:
    if settings.token:
        return {"Authorization": f"Bearer {settings.token}"}
    if settings.username:
        pair = f"{settings.username}:{settings.password}".encode()
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
    return {}


def _page_path(request: ListRequest, number: int, item_count: int) -> str:
    """Return path and query of a page."""
    parameters = []
    if request.paging == "page":
        parameters.append(f"{request.page_parameter}={number + 1}")
    elif request.paging == "offset":
        parameters.append(f"{request.page_parameter}={item_count}")
    if request.limit_parameter:
        parameters.append(f"{request.limit_parameter}={request.limit}")
    if not parameters:
        return request.path
    return request.path + ("&" if "?" in request.path else "?") + "&".join(parameters)


def _is_last(request: ListRequest, page: Page, item_count: int) -> bool:
    """Whether no page follows; raise InvalidAnswer if the list ends before its stated end."""
    if request.paging == "none":
        if request.limit_parameter and page.item_count >= request.limit:
            raise InvalidAnswer(f"it lists {page.item_count} items and may be cut off there")
        return True
    if page.total is None:
        return not page.item_count  # a short page need not be the last: the broker may limit them
    if item_count < page.total and not page.item_count:
        raise InvalidAnswer(f"it lists {item_count} of {page.total} items")
    return item_count >= page.total


def _check_status(status: int) -> None:
    if status == OK:
        return
    reason = f"status {status}"
    if status in (UNAUTHORIZED, FORBIDDEN):
        reason = f"it refuses the login ({status}): check username, password and token in [rest]"
    elif status == NOT_FOUND:
        reason = f"it has no such list ({status}): check kind and url in [rest]"
    elif OK < status < BAD_REQUEST:
        reason = f"it answers with a redirect or without a list ({status}); redirects are refused"
    raise InvalidAnswer(reason)
