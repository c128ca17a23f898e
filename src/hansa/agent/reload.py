"""Reads the settings again at SIGHUP, and applies those that the observer can change while it runs.

A file that is not valid changes nothing and raises an alarm, so it can be tried without a risk.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Protocol

from hansa.agent.alarms import SetAlarm
from hansa.agent.settings import AgentSettings
from hansa.errors import UsageError

log = logging.getLogger("hansa.agent")


class Reloadable(Protocol):
    def reload(self, settings: AgentSettings, changed: frozenset[str]) -> frozenset[str]:
        """Apply changed settings, `[section] name` each; return those that were applied. Raise
        UsageError, and apply nothing, if they are not usable."""


class SettingsReloader:
    """Settings that can change while the agent runs."""

    def __init__(self, settings: AgentSettings, load: Callable[[], AgentSettings]) -> None:
        """`settings` are those that `load` returned at the start."""
        self._settings = settings
        self._load = load

    def handle_signal(self, target: Reloadable, set_alarm: SetAlarm) -> None:
        """At SIGHUP have the running loop reload the settings."""
        loop = asyncio.get_running_loop()

        def reload(*_: object) -> None:
            loop.call_soon_threadsafe(self.reload, target, set_alarm)

        signal.signal(signal.SIGHUP, reload)

    def reload(self, target: Reloadable, set_alarm: SetAlarm) -> None:
        """Read the settings, and apply what can be applied."""
        try:
            found = self._load()
            changed = frozenset(_changed_names(self._settings, found))
            applied = target.reload(found, changed)
        except UsageError as error:
            set_alarm(f"the old settings stay in use: {error}")
            return
        set_alarm("")
        log.info("settings read again applied=%s", ", ".join(sorted(applied)) or "none")
        if waiting := changed - applied:
            log.warning("changed settings need a restart: %s", ", ".join(sorted(waiting)))
        else:
            self._settings = found


def _changed_names(old: Any, new: Any, section: str = "") -> Iterator[str]:
    for item in fields(old):
        before, after = getattr(old, item.name), getattr(new, item.name)
        if is_dataclass(before):
            place = f"{section}.{item.name}" if section else item.name
            yield from _changed_names(before, after, place)
        elif before != after:
            yield f"[{section}] {item.name}" if section else item.name
