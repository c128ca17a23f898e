"""`hansa agent`: run one agent beside its broker."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from hansa.agent.mqttfed.service import FedAgent
from hansa.agent.service import Agent
from hansa.agent.settings import AgentSettings, default_state_directory, load_settings
from hansa.agent.storage.state_directory import StateDirectory
from hansa.agent.topology.service import apply_manager_settings
from hansa.cli.arguments import Parser
from hansa.errors import HansaError
from hansa.printable import log_to_stderr

log = logging.getLogger("hansa.agent")

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
  host = "0.0.0.0"      # beyond loopback only with insecure: links are not encrypted yet,
  insecure = true       # so this is for networks that you trust
  neighbours = ["plant-2.example:10500"]
"""


def run(arguments: list[str]) -> int:
    """Run until SIGTERM or Ctrl-C."""
    parser = Parser("hansa agent", "Run one agent beside its broker.", EXAMPLES)
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings, a TOML file")
    given = parser.parse_args(arguments)
    settings = load_settings(given.config)
    log_to_stderr(settings.log.upper())
    state = StateDirectory(Path(settings.state) if settings.state else default_state_directory())
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_run(settings, state))
    except HansaError:
        raise
    except Exception:
        log.exception("agent ends with an internal error")
        raise
    finally:
        state.close()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        log.warning("uvloop is not installed: publications will need more CPU")
        return None
    return uvloop.new_event_loop


async def _run(settings: AgentSettings, state: StateDirectory) -> int:
    if settings.mode == "mqtt-fed":
        await FedAgent(settings).run()
        return 0
    await Agent(await apply_manager_settings(settings, state), state).run()
    return 0
