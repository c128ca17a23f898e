"""What an agent loads: modules for other modes cost memory on a gateway."""

import subprocess
import sys

UNUSED = (
    "difflib",
    "hansa.agent.broker.embedded",
    "hansa.agent.broker.proxy",
    "hansa.agent.broker.rest_poller",
    "hansa.agent.mqttfed.service",
    "hansa.agent.telemetry.trace_exporter",
    "hansa.console.terminal",
    "hansa.simulator",
    "importlib.resources",
    "rich",
    "sqlalchemy",
    "unittest",
)
"""Loaded only by agents with other settings, or by other commands."""


def test_agent_loads_no_modules_of_other_modes():
    program = "import sys, hansa.cli.main, hansa.cli.agent; print(*sys.modules, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert [name for name in UNUSED if name in done.stdout.split()] == []
