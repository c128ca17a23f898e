"""How the user started us, so that commands that we print can be pasted."""

import os
import shlex
import sys

LAUNCHER = "HANSA_LAUNCHER"
"""The variable in which `./run` tells under which name it was called."""


def command_line(*words: str) -> str:
    """Return `hansa` with these words as the user would type it: a checkout has `./run hansa`."""
    launcher = os.environ.get(LAUNCHER)
    return shlex.join([*([launcher] if launcher else []), "hansa", *words])


def command_prefix() -> list[str]:
    """Return how to start `hansa` as we were: by `./run`, which installs what a command needs."""
    launcher = os.environ.get(LAUNCHER)
    return [launcher, "hansa"] if launcher else [sys.executable, "-m", "hansa.cli"]
