"""Alarms of an agent: logged when raised, changed or cleared; shown on /status until cleared."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from hansa.agent.error_text import describe_fault, quote_text
from hansa.mqtt.types import Reason, describe_reason

log = logging.getLogger("hansa.agent")


SetAlarm = Callable[[str], None]
"""Raises an alarm with a text, changes the text, or clears the alarm with an empty text."""

TOPICS_MAX = 3
"""Topics that the alarm `publications dropped` names per reason."""

NOT_AUTHORIZED = describe_reason(Reason.NOT_AUTHORIZED)
ADVICE = " (allow the agent's user to publish to them, in the broker's access list)"


class Alarms:
    def __init__(self) -> None:
        self.active: dict[str, str] = {}
        self.counters: Counter[str] = Counter()
        self.on_changed: Callable[[str, str, str], None] = lambda name, text, change: None
        """Called with name and text of an alarm that was `raised`, `changed` or `cleared`."""
        self._dropped: dict[str, dict[str, None]] = {}
        """Topics that the alarm `publications dropped` names, by reason."""

    def set(self, name: str, text: str) -> None:
        """Raise an alarm, change its text, or clear it with an empty text."""
        if text == self.active.get(name, ""):
            return
        if text:
            is_new = name not in self.active
            if is_new:
                self.counters[f"alarms: {name}"] += 1
            self.active[name] = text
            log.error("alarm %s: %s", name, text)
            self.on_changed(name, text, "raised" if is_new else "changed")
        else:
            self.on_changed(name, self.active.pop(name), "cleared")
            log.info("alarm cleared %s", name)

    def add_dropped(self, reason: str, topic: str, qos: int) -> None:
        """Raise the alarm `publications dropped`, or add a reason or a topic to it. Its text, and
        so the log lines, are bounded: further topics are only `other topics`."""
        topics = self._dropped.setdefault(reason, {})
        if topic:
            if len(topics) < TOPICS_MAX:
                topics[f"{quote_text(topic)} at QoS {qos}"] = None
            elif f"{quote_text(topic)} at QoS {qos}" not in topics:
                topics["other topics"] = None
        texts = [
            (f"{why}: {', '.join(on)}" if on else why) + (ADVICE if NOT_AUTHORIZED in why else "")
            for why, on in self._dropped.items()
        ]
        self.set("publications dropped", "; ".join(texts))

    def setter(self, name: str) -> SetAlarm:
        """Return a function that raises and clears one alarm."""
        return partial(self.set, name)

    def on_loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Raise the alarm `internal error` for an unhandled exception of the event loop: a
        callback or task has ended."""
        loop.default_exception_handler(context)
        if "transport" in context and isinstance(context.get("exception"), OSError):
            return  # a lost connection; its owner knows
        text = (
            f"{context['message']}: {describe_fault(context.get('exception'))}; the log says where."
        )
        self.set("internal error", f"{text} Report it, and start the agent again")
