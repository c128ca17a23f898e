"""`hansa agent`: run one agent beside its broker."""

import asyncio
import gc
import logging
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hansa.agent.broker.observer_choice import choose_source
from hansa.agent.reload import SettingsReloader
from hansa.agent.service import Agent
from hansa.agent.settings import AgentSettings, load_settings
from hansa.agent.storage.state_directory import StateDirectory
from hansa.agent.topology.service import apply_manager_settings
from hansa.cli.arguments import Parser
from hansa.errors import HansaError
from hansa.printable import log_to_stderr

if TYPE_CHECKING:
    from hansa.agent.broker.proxy import Handover

log = logging.getLogger("hansa.agent")

GC_THRESHOLDS = (10_000, 20, 20)
"""An agent keeps thousands of small objects for publications in flight and makes few cycles. With
Python's defaults, garbage collection took up to 30 % of its CPU at QoS 2."""

EXAMPLES = """\
  hansa agent --config node.toml
  HANSA_BROKER_PORT=1884 HANSA_LINK_NEIGHBOURS=a:10500,b:10500 hansa agent

Every setting of the file is also an environment variable: `[broker] port` is HANSA_BROKER_PORT.
The environment wins. A file for one of two neighbours (docs/node.toml has all settings):

  name = "plant-1"
  state = "/var/lib/hansa/plant-1"
  [broker]
  port = 1883
  [link]
  host = "0.0.0.0"      # beyond loopback only with a certificate: see hansa join
  neighbours = ["plant-2.example:10500"]
"""

SWITCH_INTERVAL_S = 0.0005
"""Seconds that a thread waits at most for the interpreter. Acknowledgements wait for the thread
that syncs the journal; with Python's 5 ms a busy event loop would delay each by that much."""


def run(arguments: list[str]) -> int:
    """Run until SIGTERM or Ctrl-C."""
    parser = Parser("hansa agent", "Run one agent beside its broker.", EXAMPLES)
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings, a TOML file")
    given, others = parser.parse_known_args(arguments)
    if others:
        hint = f"; did you mean --config {others[0]}?" if others[0].endswith(".toml") else ""
        parser.error(f"unrecognized arguments: {' '.join(others)}{hint}")
    settings = load_settings(given.config)
    log_to_stderr(settings.log.upper())
    reloader = SettingsReloader(settings, partial(load_settings, given.config))
    gc.freeze()  # collections need not scan the imported modules
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_run(settings, reloader))
    except HansaError:
        raise
    except Exception:
        log.exception("agent ends with an internal error")
        raise


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        log.warning("uvloop is not installed: publications will need more CPU")
        return None
    return uvloop.new_event_loop


async def _run(settings: AgentSettings, reloader: SettingsReloader) -> int:
    start = partial(_start, settings, reloader)
    if settings.broker.observer == "proxy":
        from hansa.agent.broker.proxy import run_agent  # memory of the other agents

        await run_agent(settings, start)
    else:
        await start(None)
    return 0


async def _start(
    settings: AgentSettings, reloader: SettingsReloader, handover: "Handover | None"
) -> None:
    state = StateDirectory(settings.state_directory)
    try:
        if settings.mode == "mqtt-fed":
            from hansa.agent.mqttfed.service import FedAgent

            await FedAgent(settings).run()
        else:
            settings = await apply_manager_settings(settings, state)
            choose = partial(choose_source, handover=handover)
            await Agent(settings, state, choose).run(reloader.handle_signal)
    finally:
        state.close()
