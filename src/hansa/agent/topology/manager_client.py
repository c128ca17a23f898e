"""The agent's side of the manager protocol: join, report health, follow events; retried for
ever."""

import asyncio
import base64
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from hansa.agent.links.security import LinkSecurity, utc_now
from hansa.agent.topology.http import HttpClient, ManagerRefused, ManagerUnavailable
from hansa.agent.topology.member_connection import Contexts
from hansa.identity.credentials import has_certificate, load_credentials
from hansa.identity.keys import KEY_FILE
from hansa.identity.tls import LinkContexts, make_contexts

log = logging.getLogger("hansa.agent")

_T = TypeVar("_T")

RETRY_MIN_S = 0.5
RETRY_MAX_S = 10.0
STREAM_IDLE_TIMEOUT_S = 30.0
"""Seconds without a line after which a stream counts as broken: the manager sends one every ten."""

REPORT_INTERVAL_MIN_S = 0.1
"""Least seconds between two reports: every client that may publish at the broker can request
one."""

LIST_BYTES_MAX = 150_000
"""Largest revocation list that fits a request."""

CONTACT_INTERVALS = 3.0
"""Health intervals without an answer after which the manager counts as unreachable."""


class NeighbourAssignment(msgspec.Struct, frozen=True):
    id: int
    node: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{16})?$")]
    link: str
    dial: bool


class SharedFederationSettings(msgspec.Struct, frozen=True):
    redundancy: int
    degree_max: int
    beacon_interval: float
    health_interval: float


class TopologyAssignment(msgspec.Struct, frozen=True):
    """The manager's answer to a node."""

    id: int
    version: int
    neighbors: tuple[NeighbourAssignment, ...]
    settings: SharedFederationSettings


@dataclass(frozen=True, slots=True)
class ManagerAddress:
    url: str
    token: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    """Proves that reports come from this agent, to a manager that takes no certificates."""
    contexts: Contexts = lambda: None
    """Returns the certificate of this node."""

    def client(self) -> HttpClient:
        """Return a client that sends requests as this node."""
        return HttpClient(self.url, self.headers(), self.contexts)

    def headers(self) -> dict[str, str]:
        given = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return given | ({"Hansa-Node-Secret": self.secret} if self.secret else {})


@dataclass(frozen=True, slots=True)
class ManagerCallbacks:
    """What the client needs of the agent, and what it reports."""

    make_join_request: Callable[[], dict[str, Any]]
    make_health_report: Callable[[], Awaitable[dict[str, Any]]]
    on_assignment: Callable[[TopologyAssignment], None]
    follows_events: bool = True
    """Whether to follow the manager's stream; otherwise announcements trigger reports."""


def stored_contexts(directory: Path, state: Path) -> Contexts:
    """Return what loads the certificate in a directory, of the key in a state directory."""

    def load() -> LinkContexts | None:
        if not has_certificate(directory):
            return None
        return make_contexts(load_credentials(directory, state / KEY_FILE, utc_now()))

    return load


def contexts_of(security: LinkSecurity | None) -> Contexts:
    """Return what returns the certificate of the links."""
    return lambda: security.contexts if security else None


class ManagerClient:
    def __init__(self, manager: ManagerAddress, callbacks: ManagerCallbacks) -> None:
        self._http = manager.client()
        self._contexts = manager.contexts
        self._lists_sent: tuple[bytes, ...] = ()
        self._callbacks = callbacks
        self._node_number: int | None = None
        self._report_interval = 5.0
        self._answered_at: float | None = None
        self._report_requested = asyncio.Event()
        self.problem = "not asked yet"
        """Why there is no contact; empty while there is."""

    @property
    def is_in_contact(self) -> bool:
        """Whether the manager has answered lately."""
        if self._answered_at is None:
            return False
        return self._now() - self._answered_at < CONTACT_INTERVALS * self._report_interval

    async def fetch_settings(self) -> SharedFederationSettings:
        return parse_answer(
            await self._http.request_json("GET", "/api/v1/settings"), SharedFederationSettings
        )

    async def run(self) -> None:
        """Join, report and listen; retry after every failure."""
        pause = RETRY_MIN_S
        while True:
            try:
                await self._join()
                pause = RETRY_MIN_S
                await self._report_and_listen()
            except (ManagerUnavailable, ManagerRefused) as error:
                self._set_problem(str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_MAX_S)

    def request_report(self) -> None:
        """Report soon: something changed."""
        self._report_requested.set()

    async def _join(self) -> None:
        self._apply_answer(
            await self._http.request_json(
                "POST", "/api/v1/join", self._callbacks.make_join_request()
            )
        )
        log.info("joined manager node_number=%s", self._node_number)

    async def _report_and_listen(self) -> None:
        """Report and listen until this node has to join again."""
        async with asyncio.TaskGroup() as group:
            listening = (
                group.create_task(self._follow_events()) if self._callbacks.follows_events else None
            )
            try:
                await self._report_health()
            finally:
                if listening is not None:
                    listening.cancel()

    async def _report_health(self) -> None:
        """Report until the manager does not know this node, or is unreachable."""
        while True:
            self._report_requested.clear()  # later changes may not be in this report
            try:
                await self._send_revocations()
                path = f"/api/v1/nodes/{self._node_number}/health"
                self._apply_answer(
                    await self._http.request_json(
                        "POST", path, await self._callbacks.make_health_report()
                    )
                )
            except ManagerRefused as error:
                if error.status in (404, 409):
                    return  # the manager lost this node or regards it as gone: join again
                self._set_problem(str(error))
            except ManagerUnavailable as error:
                self._set_problem(str(error))
            await asyncio.sleep(REPORT_INTERVAL_MIN_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._report_interval):
                    await self._report_requested.wait()

    async def _send_revocations(self) -> None:
        """Send new revocation lists: the manager has no links over which it could get them."""
        contexts = self._contexts()
        if contexts is None or not self._http.is_member:
            return
        lists = tuple(each.data for each in contexts.credentials.revoked.lists)
        for each in lists:
            if each not in self._lists_sent and len(each) <= LIST_BYTES_MAX:
                body = {"revocation_list": base64.b64encode(each).decode()}
                await self._http.request_json("POST", "/api/v1/revocations", body)
        self._lists_sent = lists

    async def _follow_events(self) -> None:
        """Follow events; each one that concerns this node triggers a report."""
        pause = RETRY_MIN_S
        while True:
            try:
                async with aclosing(
                    self._http.stream_lines("/api/v1/events", STREAM_IDLE_TIMEOUT_S)
                ) as lines:
                    async for line in lines:
                        pause = RETRY_MIN_S
                        if line.startswith("data: ") and self._concerns_us(line[6:]):
                            path = f"/api/v1/nodes/{self._node_number}/topology"
                            self._apply_answer(await self._http.request_json("GET", path))
            except (ManagerUnavailable, ManagerRefused) as error:
                log.debug("event stream of the manager ended reason=%r", str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_MAX_S)

    def _concerns_us(self, data: str) -> bool:
        try:
            event = json.loads(data)
            return event["kind"] == "settings" or self._node_number in event["nodes"]
        except (ValueError, TypeError, KeyError):
            return False

    def _apply_answer(self, answer: object) -> None:
        assignment = parse_answer(answer, TopologyAssignment)
        self._node_number = assignment.id
        self._report_interval = max(0.1, assignment.settings.health_interval)
        self._answered_at = self._now()
        if self.problem:
            log.info("manager answers")
        self.problem = ""
        self._callbacks.on_assignment(assignment)

    def _set_problem(self, problem: str) -> None:
        if problem != self.problem:  # once: a manager may be down for a day
            log.warning("manager not reached or refuses, still trying reason=%r", problem)
        self.problem = problem

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def parse_answer(value: object, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ManagerUnavailable(f"the answer is not a manager's: {error}") from error
