"""Saved contexts: how to reach the agents of a federation, by name.

They are in `$XDG_CONFIG_HOME/hansa/contexts.json` (usually `~/.config/hansa/contexts.json`), mode
0600. A token itself is never stored there, only the file that holds it.
"""

import json
import os
from pathlib import Path

import msgspec

from hansa.errors import UsageError
from hansa.launcher import command_line

CONTEXT_VARIABLE = "HANSA_CONTEXT"
"""Environment variable that selects a context for one command or shell."""

CONTEXTS_MAX = 256


class AgentContext(msgspec.Struct, frozen=True):
    """How to reach some agents of one federation."""

    urls: tuple[str, ...]
    """Admin addresses, tried in order: one that answers is enough."""
    token_file: str = ""
    ca_file: str = ""


class Contexts(msgspec.Struct):
    """All contexts of a user."""

    current: str = ""
    contexts: dict[str, AgentContext] = {}

    def get(self, name: str) -> AgentContext:
        """Return a context; raise UsageError if there is none with this name."""
        found = self.contexts.get(name)
        if found is None:
            names = ", ".join(sorted(self.contexts)) or "none yet"
            raise UsageError(
                f"there is no context {name!r}; there are: {names}. Add one with"
                f" `{command_line('context', 'add')} {name} URL`"
            )
        return found


def contexts_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "")
    directory = Path(base) if base.startswith("/") else Path.home() / ".config"
    return directory / "hansa" / "contexts.json"


def load_contexts() -> Contexts:
    """Return the saved contexts; raise UsageError if the file is unreadable."""
    file = contexts_file()
    try:
        return msgspec.json.decode(file.read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise UsageError(
            f"{file} is damaged ({error}): remove it, and add contexts again"
        ) from error


def save_contexts(contexts: Contexts) -> None:
    """Write the file for its owner only; raise UsageError if that fails."""
    file = contexts_file()
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    text = json.dumps(msgspec.to_builtins(contexts), indent=1, sort_keys=True) + "\n"
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        temporary.replace(file)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from error
