"""`hansa agent`: run one agent beside its broker."""

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from hansa.agent.service import Agent
from hansa.agent.settings import load
from hansa.agent.state import StateDirectory
from hansa.errors import UsageError

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}

EPILOG = """\
examples:
  hansa agent --config node.toml
  HANSA_BROKER_PORT=1884 HANSA_LINK_NEIGHBOURS=plant-2.example:10500 hansa agent

Every setting of the file is also an environment variable: `[broker] port` is HANSA_BROKER_PORT,
`[link] neighbours` is HANSA_LINK_NEIGHBOURS (commas between). The environment wins.

A file for one of two neighbours:

  name = "plant-1"
  state = "/var/lib/hansa/plant-1"
  [broker]
  port = 1883
  [link]
  neighbours = ["plant-2.example:10500"]
"""


def run(arguments: list[str]) -> int:
    """Run until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="hansa agent",
        description="Run one agent beside its broker.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings, a TOML file")
    given = parser.parse_args(arguments)
    settings = load(given.config)
    if settings.log not in LEVELS:
        raise UsageError(f"log must be one of {', '.join(LEVELS)}, not {settings.log!r}")
    logging.basicConfig(
        level=LEVELS[settings.log],
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    state = StateDirectory(Path(settings.state))
    try:
        return asyncio.run(_run(settings, state))
    finally:
        state.close()


async def _run(settings: object, state: StateDirectory) -> int:
    reason = await Agent(settings, state).run()  # type: ignore[arg-type]
    if reason:
        print(f"hansa: {reason}", file=sys.stderr)
    return 1 if reason else 0
