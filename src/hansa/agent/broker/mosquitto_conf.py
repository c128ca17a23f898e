"""The settings in a mosquitto.conf, and the queues that they allow a client."""

import time
from functools import lru_cache
from pathlib import Path

from hansa.errors import UsageError

QUEUED_BY_DEFAULT = 1_000
"""Mosquitto's default of `max_queued_messages`."""

FRESH_S = 10.0
"""Seconds for which a file is not read again."""

ConfSettings = dict[str, list[str]]
"""The values of all lines of a setting, by its name."""


def read_settings(path: Path) -> ConfSettings:
    """Read a configuration with the files of its `include_dir`; raise UsageError if a file is not
    readable."""
    settings: ConfSettings = {}
    for line in _text(path).splitlines():
        name, _, value = line.strip().partition(" ")
        if not name or name.startswith("#"):
            continue
        if name == "include_dir":
            for included in sorted((path.parent / value.strip()).glob("*.conf")):
                for key, values in read_settings(included).items():
                    settings.setdefault(key, []).extend(values)
        else:
            settings.setdefault(name, []).append(value.strip())
    return settings


def last_value(settings: ConfSettings, name: str, default: str) -> str:
    """Return the line of a setting that counts."""
    return settings.get(name, [default])[-1]


def queued_max(settings: ConfSettings) -> int:
    """Return the messages that the broker queues for a client; 0 means no limit."""
    value = last_value(settings, "max_queued_messages", "")
    return int(value) if value.isdecimal() else QUEUED_BY_DEFAULT


def configured_queue(file: str) -> dict[str, object]:
    """Return `queued_max` of a configuration, or `config_problem` if it cannot be read; nothing
    without a file."""
    return _configured_queue(file, round(time.monotonic() / FRESH_S)) if file else {}


@lru_cache(maxsize=1)
def _configured_queue(file: str, period: int) -> dict[str, object]:
    try:
        return {"queued_max": queued_max(read_settings(Path(file)))}
    except UsageError as error:
        return {"config_problem": str(error)}


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
