"""What an operator has to look at: told once in the log, shown on /status until it is over."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from hansa.agent.error_text import describe_fault, quote_text
from hansa.mqtt.types import Reason, describe_reason

log = logging.getLogger("hansa.agent")


TOPICS_MAX = 3
"""Topics that the alarm `dropped` names for each reason."""

NOT_AUTHORIZED = describe_reason(Reason.NOT_AUTHORIZED)
ADVICE = " (allow the agent's user to publish to them, in the broker's access list)"


class Alarms:
    """The alarms of one agent, by name."""

    def __init__(self) -> None:
        """Start without any."""
        self.active: dict[str, str] = {}
        self.counters: Counter[str] = Counter()
        self._dropped: dict[str, dict[str, None]] = {}
        """For each reason, the topics that the alarm `dropped` names."""

    def set(self, name: str, text: str) -> None:
        """Raise an alarm, change its text, or end it with an empty text."""
        if text == self.active.get(name, ""):
            return
        if text:
            if name not in self.active:
                self.counters[f"alarms: {name}"] += 1
            self.active[name] = text
            log.error("alarm %s: %s", name, text)
        else:
            del self.active[name]
            log.info("alarm cleared %s", name)

    def add_dropped(self, reason: str, topic: str, qos: int) -> None:
        """Raise the alarm `dropped`, or add a reason to it, or a topic to a reason. Its text, and
        so the lines in the log, are bounded: further topics are only `other topics`."""
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
        self.set("dropped", "; ".join(texts))

    def setter(self, name: str) -> Callable[[str], None]:
        """Return what raises and ends one of them."""
        return partial(self.set, name)

    def on_loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Raise the alarm that something met a fault of ours and ended; handles the exceptions of
        a loop. What was to follow will not, and nothing else may say so."""
        loop.default_exception_handler(context)
        if "transport" in context and isinstance(context.get("exception"), OSError):
            return  # only a connection that broke; who has it is told
        text = (
            f"{context['message']}: {describe_fault(context.get('exception'))}; the log says where."
        )
        self.set("fault", f"{text} Report it, and start the agent again")
