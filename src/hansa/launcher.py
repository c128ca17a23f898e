"""How `hansa` was started, so that printed commands can be pasted."""

import os
import shlex
import sys

LAUNCHER = "HANSA_LAUNCHER"
"""Environment variable that `./run` sets to its own path."""


def command_line(*words: str) -> str:
    """Return the command `hansa WORDS` as the user must type it; in a checkout, `./run hansa`."""
    launcher = os.environ.get(LAUNCHER)
    return shlex.join([*([launcher] if launcher else []), "hansa", *words])


def command_prefix() -> list[str]:
    """Return the words that start `hansa` in a process; `./run` installs what a command needs."""
    launcher = os.environ.get(LAUNCHER)
    return [launcher, "hansa"] if launcher else [sys.executable, "-m", "hansa.cli"]
