"""An agent's talk with its topology manager: join, report, hear what changes; for ever."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import msgspec

from hansa.agent.topology.http import Http, ManagerRefused, ManagerSilent

log = logging.getLogger("hansa.agent")

_T = TypeVar("_T")

RETRY_MIN_S = 0.5
RETRY_MAX_S = 10.0
SILENCE_S = 30.0
"""Seconds without a word after which a stream counts as broken: the manager says something every
ten."""

PAUSE_S = 0.1
"""Seconds between two reports at least: whoever may publish at the broker can ask for one."""

CONTACT = 3.0
"""Health intervals after the last answer until the manager counts as away."""


class Neighbour(msgspec.Struct, frozen=True):
    """Whom to be linked to."""

    id: int
    node: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{16})?$")]
    link: str
    dial: bool


class Federation(msgspec.Struct, frozen=True):
    """What holds for all."""

    redundancy: int
    degree_max: int
    beacon_interval: float
    health_interval: float


class Told(msgspec.Struct, frozen=True):
    """What the manager says to a node."""

    id: int
    version: int
    neighbors: tuple[Neighbour, ...]
    settings: Federation


@dataclass(frozen=True, slots=True)
class ManagerAddress:
    """Where the manager is, and how to be let in."""

    url: str
    token: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    """What shows that it is this agent that reports."""

    def headers(self) -> dict[str, str]:
        """Return what goes with every request."""
        given = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return given | ({"Hansa-Node-Secret": self.secret} if self.secret else {})


@dataclass(frozen=True, slots=True)
class Voice:
    """What the client may ask the agent for, and whom it tells."""

    introduce: Callable[[], dict[str, Any]]
    report: Callable[[], Awaitable[dict[str, Any]]]
    told: Callable[[Told], None]
    listens: bool = True
    """Whether to follow the manager's stream; otherwise somebody else says when to report."""


class ManagerClient:
    """Keeps in touch with the manager."""

    def __init__(self, manager: ManagerAddress, voice: Voice) -> None:
        """Prepare; nothing happens before `run`."""
        self._http = Http(manager.url, manager.headers())
        self._voice = voice
        self._number: int | None = None
        self._interval = 5.0
        self._answered_at: float | None = None
        self._hurry = asyncio.Event()
        self.problem = "not asked yet"
        """Why there is no contact; empty while there is."""

    @property
    def in_contact(self) -> bool:
        """Whether the manager has answered lately."""
        if self._answered_at is None:
            return False
        return self._now() - self._answered_at < CONTACT * self._interval

    async def settings(self) -> Federation:
        """Ask what holds for all."""
        return convert(await self._http.ask("GET", "/api/v1/settings"), Federation)

    async def run(self) -> None:
        """Join, report and listen; whatever goes wrong is tried again."""
        pause = RETRY_MIN_S
        while True:
            try:
                await self._join()
                pause = RETRY_MIN_S
                await self._stay()
            except (ManagerSilent, ManagerRefused) as error:
                self._note(str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_MAX_S)

    def report_soon(self) -> None:
        """Something changed that the manager should know."""
        self._hurry.set()

    async def _join(self) -> None:
        self._take(await self._http.ask("POST", "/api/v1/join", self._voice.introduce()))
        log.info("joined through the manager number=%s", self._number)

    async def _stay(self) -> None:
        """Report and listen until one of them finds that this node has to join again."""
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(self._listen()) if self._voice.listens else None
            try:
                await self._report()
            finally:
                if listening is not None:
                    listening.cancel()

    async def _report(self) -> None:
        """Report until the manager says that it does not know us, or has been away."""
        while True:
            self._hurry.clear()  # what happens from now on may not be in this report
            try:
                path = f"/api/v1/nodes/{self._number}/health"
                self._take(await self._http.ask("POST", path, await self._voice.report()))
            except ManagerRefused as error:
                if error.status in (404, 409):
                    return  # it has forgotten us, or thinks we left: join again
                self._note(str(error))
            except ManagerSilent as error:
                self._note(str(error))
            await asyncio.sleep(PAUSE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._hurry.wait()

    async def _listen(self) -> None:
        """Follow what changes; whatever concerns this node is a reason to ask."""
        pause = RETRY_MIN_S
        while True:
            try:
                async with aclosing(self._http.lines("/api/v1/events", SILENCE_S)) as lines:
                    async for line in lines:
                        pause = RETRY_MIN_S
                        if line.startswith("data: ") and self._concerns_us(line[6:]):
                            path = f"/api/v1/nodes/{self._number}/topology"
                            self._take(await self._http.ask("GET", path))
            except (ManagerSilent, ManagerRefused) as error:
                log.debug("event stream of the manager ended reason=%r", str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_MAX_S)

    def _concerns_us(self, data: str) -> bool:
        try:
            event = json.loads(data)
            return event["kind"] == "settings" or self._number in event["nodes"]
        except (ValueError, TypeError, KeyError):
            return False

    def _take(self, answer: object) -> None:
        told = convert(answer, Told)
        self._number = told.id
        self._interval = max(0.1, told.settings.health_interval)
        self._answered_at = self._now()
        if self.problem:
            log.info("manager answers")
        self.problem = ""
        self._voice.told(told)

    def _note(self, problem: str) -> None:
        if problem != self.problem:  # once: a manager may be away for a day
            log.warning("manager not reached or refuses, still trying reason=%r", problem)
        self.problem = problem

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def convert(value: object, kind: type[_T]) -> _T:
    """Return what the manager said as what it should be."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ManagerSilent(f"the answer is not a manager's: {error}") from error
