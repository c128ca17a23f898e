"""How the user started us, so that commands that we print can be pasted."""

import os
import shlex

LAUNCHER = "HANSA_LAUNCHER"
"""The variable in which `./run` tells under which name it was called."""


def command(*words: str) -> str:
    """Return `hansa` with these words as the user would type it: a checkout has `./run hansa`."""
    launcher = os.environ.get(LAUNCHER)
    return shlex.join([*([launcher] if launcher else []), "hansa", *words])
