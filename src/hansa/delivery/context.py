"""What the parts of the delivery core share."""

from collections import Counter
from collections.abc import Callable

from hansa.delivery.effects import Effect, SetAlarm


class Context:
    """The time of the current input, the effects that it has caused so far, the counters, and what
    one part waits for on account of another."""

    def __init__(self, wall_ns: Callable[[], int]) -> None:
        """`wall_ns` returns the wall clock in nanoseconds since 1970, for the times
        in records and for message expiry."""
        self.wall_ns = wall_ns
        self.now = 0.0
        """Monotonic seconds."""
        self.effects: list[Effect] = []
        self.counters: Counter[str] = Counter()
        self.is_change_waiting = False
        """Whether new publications wait for a change of subscriptions (`change_gate`)."""
        self._alarms: dict[str, str] = {}

    def set_alarm(self, name: str, text: str) -> None:
        """Raise, change or clear an alarm."""
        if text != self._alarms.get(name, ""):
            self._alarms[name] = text
            self.effects.append(SetAlarm(name, text))

    def take_effects(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects
