"""What an operator has to look at: told once in the log, shown on /status until it is over."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

log = logging.getLogger("hansa.agent")


class Alarms:
    """The alarms of one agent, by name."""

    def __init__(self) -> None:
        """Start without any."""
        self.active: dict[str, str] = {}
        self.counters: Counter[str] = Counter()

    def set(self, name: str, text: str) -> None:
        """Raise an alarm, or end it with an empty text."""
        if text == self.active.get(name, ""):
            return
        if text:
            self.active[name] = text
            self.counters[f"alarms: {name}"] += 1
            log.error("alarm %s: %s", name, text)
        else:
            del self.active[name]
            log.info("alarm over %s", name)

    def add(self, name: str, text: str) -> None:
        """Raise an alarm, or let it say one thing more."""
        said = self.active.get(name, "")
        if text not in said:
            self.set(name, f"{said}; {text}" if said else text)

    def named(self, name: str) -> Callable[[str], None]:
        """Return what raises and ends one of them."""
        return partial(self.set, name)

    def note_fault(self, loop: asyncio.AbstractEventLoop, said: dict[str, Any]) -> None:
        """Raise the alarm that something met a fault of ours and ended; handles the exceptions of
        a loop. What was to follow will not, and nothing else may say so."""
        loop.default_exception_handler(said)
        if "transport" in said and isinstance(said.get("exception"), OSError):
            return  # only a connection that broke; who has it is told
        text = f"{said['message']}: {said.get('exception')!r}; the log says where."
        self.set("fault", f"{text} Report it, and start the agent again")
