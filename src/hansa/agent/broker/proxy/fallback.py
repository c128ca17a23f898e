"""Makes the proxy of an agent, and serves its clients while the agent cannot start: unread,
straight to the broker.

The state directory may be full, read-only or damaged, a link port occupied. Clients must not pay
for that. So the agent is started again every RETRY_S seconds, and meanwhile the ports of the proxy
are served without it:

    start fails -> clients pass unread -> an attempt succeeds -> their connections end, and they
    connect to the proxy

Their subscriptions are unknown, so an agent that starts after that is not complete until the
operator says so (`SessionFile.declare`).
"""

import asyncio
import gc
import logging
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from hansa.agent import tasks
from hansa.agent.alarms import Alarms
from hansa.agent.broker.access import tls_context
from hansa.agent.broker.proxy.handover import Handover
from hansa.agent.broker.proxy.listening import ListeningSockets
from hansa.agent.broker.proxy.server import ProxyServer
from hansa.agent.links.link import Address
from hansa.agent.settings import AgentSettings
from hansa.agent.storage.proxy_sessions import SESSIONS_FILE, SessionFile, mark_missed_changes
from hansa.errors import UsageError

log = logging.getLogger("hansa.agent")

RETRY_S = 10.0
"""Seconds between two attempts to start the agent."""


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
    serves clients, serve them without it, and try again. Raise its error if even that fails."""
    handover = Handover(ListeningSockets.from_service_manager())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a reload before the agent runs must not end it
    while True:
        try:
            return await start(handover)
        except Exception as error:
            if handover.is_over:
                raise
            await _serve(settings, handover, error)
        gc.collect()  # what the attempt has opened
        await asyncio.sleep(retry_s)


async def _serve(settings: AgentSettings, handover: Handover, error: Exception) -> None:
    """Serve clients after a failed start; the first time, open the ports."""
    if not isinstance(error, UsageError):
        log.error("a fault of Hansa at the start", exc_info=error)
    handover.alarms.set("agent cannot start", f"{error}; the next attempt is in {RETRY_S:g} s")
    if handover.fallback is not None:
        return
    made = _make(settings, handover.alarms, None, handover)
    try:
        await made.listen()
    except UsageError:
        raise error from None
    log.error("clients of the proxy are passed to the broker without being observed until it can")
    handover.fallback = made
    sessions = settings.state_directory / SESSIONS_FILE
    handover.on_first_missed = lambda: tasks.start_task(
        asyncio.to_thread(mark_missed_changes, sessions)
    )
    made.accept_clients()
