"""Makes the proxy of an agent, and serves its clients while the agent cannot start: unread,
straight to the broker.

The state directory may be full, read-only or damaged, a port occupied. Clients must not pay for
that. So the agent is started again and again, and meanwhile the ports of the proxy are served
without it:

    start fails -> clients pass unread -> an attempt succeeds -> their connections end, and they
    connect to the proxy

Their subscriptions are unknown, so an agent that starts after that is not complete until the
operator says so (`SessionFile.declare`).

A port of the proxy itself may be unavailable, too: its address is not there yet while the machine
boots, or another process has it. Then the other ports are served, and it is tried again likewise.
"""

import asyncio
import gc
import logging
import signal
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

from hansa.agent import tasks
from hansa.agent.alarms import Alarms
from hansa.agent.broker.access import tls_context
from hansa.agent.broker.proxy.handover import Handover
from hansa.agent.broker.proxy.listening import ListeningSockets, PortUnavailable
from hansa.agent.broker.proxy.server import ProxyServer
from hansa.agent.error_text import describe_fault
from hansa.agent.links.link import Address
from hansa.agent.settings import AgentSettings
from hansa.agent.storage.proxy_sessions import SESSIONS_FILE, SessionFile, mark_missed_changes
from hansa.errors import UsageError

log = logging.getLogger("hansa.agent")

RETRY_S = 10.0
"""Seconds between two attempts to start the agent, at least."""

RETRY_MOST_S = 300.0
"""Seconds between two attempts, at most."""

PAUSE_FACTOR = 10
"""An attempt may read large journals, and meanwhile the event loop forwards nothing: so the pause
after it takes this many times as long."""


def make_proxy(
    settings: AgentSettings, state_path: Path, alarms: Alarms, handover: Handover | None
) -> ProxyServer:
    """Make the proxy of an agent; raise UsageError if its file of sessions cannot be read."""
    file = SessionFile(
        state_path / SESSIONS_FILE,
        settings.proxy.no_earlier_sessions,
        alarms.setter("proxy sessions not saved"),
    )
    return _make(settings, alarms, file, handover)


def _make(
    settings: AgentSettings, alarms: Alarms, file: SessionFile | None, handover: Handover | None
) -> ProxyServer:
    address = Address(settings.broker.host, settings.broker.port)
    tls = tls_context("broker", settings.broker)
    return ProxyServer(settings.proxy, address, tls, alarms, file, handover)


async def run_agent(
    settings: AgentSettings,
    start: Callable[[Handover], Awaitable[None]],
    retry_s: float = RETRY_S,
) -> None:
    """Run `start`, which starts the agent and returns when it has ended. If it fails before it
    serves clients, serve them without it, and try again. Raise its error if its settings do not
    even allow that."""
    handover = Handover(ListeningSockets.from_service_manager())
    standby = _Standby(settings, handover)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a reload before the agent runs must not end it
    while True:
        began = time.monotonic()
        try:
            return await start(handover)
        except Exception as error:
            if handover.is_over:
                raise
            pause = _pause_s(time.monotonic() - began, retry_s)
            await standby.serve(error)
        gc.collect()  # what the attempt has opened
        await asyncio.sleep(pause)


def _pause_s(attempt_s: float, retry_s: float) -> float:
    """Return the pause after an attempt that took so long."""
    return min(max(retry_s, PAUSE_FACTOR * attempt_s), RETRY_MOST_S)


class _Standby:
    """Serves clients after failed starts."""

    def __init__(self, settings: AgentSettings, handover: Handover) -> None:
        self._settings = settings
        self._handover = handover
        self._server: ProxyServer | None = None
        self._sessions = settings.state_directory / SESSIONS_FILE
        self._marking: asyncio.Task[None] | None = None
        self._logged_faults: set[str] = set()
        handover.on_first_missed = self._mark_sessions

    async def serve(self, error: Exception) -> None:
        """Serve clients from now on, or as before."""
        text = str(error) if isinstance(error, UsageError) else self._log_fault(error)
        if self._handover.has_missed_clients:
            self._mark_sessions()  # the directory may have been missing or read-only before
        if self._server is None:
            self._server = _make(self._settings, self._handover.alarms, None, self._handover)
        try:
            await self._server.listen()
        except UsageError as problem:
            if self._handover.fallback is None and not isinstance(problem, PortUnavailable):
                raise error from None
            if str(problem) != text:
                text += f"; {problem}"
        again = f"it is tried again every {RETRY_S:g} s, or less often if an attempt takes long"
        self._handover.alarms.set("agent cannot start", f"{text}; {again}")
        if not self._server.is_listening:
            return
        if self._handover.fallback is None:
            log.error(
                "clients of the proxy are passed to the broker without being observed until it can"
            )
            self._handover.fallback = self._server
        self._server.accept_clients()

    def _log_fault(self, error: Exception) -> str:
        """Return what an error that is no UsageError says; log where it was raised, once."""
        place = traceback.extract_tb(error.__traceback__)[-1]
        fault = f"{type(error).__name__} {place.filename} {place.lineno}"
        if fault not in self._logged_faults:
            self._logged_faults.add(fault)
            log.error("a fault of Hansa at the start", exc_info=error)
        return describe_fault(error)

    def _mark_sessions(self) -> None:
        """Note in the file of sessions that clients were not observed."""
        if not tasks.is_running(self._marking):
            work = asyncio.to_thread(mark_missed_changes, self._sessions)
            self._marking = tasks.start_task(work)
