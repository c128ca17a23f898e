"""A publication at which the broker ends the connection instead of answering, again and again.

MQTT 3.1.1 has no other way to refuse one, and a broker may stumble over one. All others would wait
behind it for ever. So when a connection ends, the one that had waited longest for its answer is
suspected; after some more for the same one, the next connection takes one at a time. What sees it
end even so is set aside: it stays in the inbox, the others go on, and much later it gets another
chance.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from hansa.agent.delivery.inbox_journal import Entry

ENDINGS_ALERT = 3
"""Connections that end with no answer to a publication, until it is given alone."""

ENDINGS_MAX = 5
"""The same, the last time with no other under way, until it is set aside."""

ASIDE_S = 3600.0
"""Seconds until it is tried again."""

_SHOWN_CHARS_MAX = 60


class Suspicion:
    """What one broker may not bear."""

    def __init__(self, retry: Callable[[Entry], None]) -> None:
        """`retry` is given what gets another chance."""
        self.told: Callable[[str], None] = lambda text: None
        """Told what is set aside, and an empty text when nothing is."""
        self._retry = retry
        self._endings: Counter[Entry] = Counter()
        self._aside: dict[Entry, asyncio.TimerHandle] = {}

    @property
    def is_alert(self) -> bool:
        """Whether one should be published at a time."""
        return max(self._endings.values(), default=0) >= ENDINGS_ALERT

    def __contains__(self, entry: Entry) -> bool:
        """Whether a publication is set aside."""
        return entry in self._aside

    def __len__(self) -> int:
        """Return how many are set aside."""
        return len(self._aside)

    def note_ending(self, unanswered: Sequence[Entry]) -> bool:
        """A connection ended before these were answered; return whether the first is set aside. Of
        several it may be another one: a broker's last answers can be lost."""
        entry = unanswered[0]
        self._endings[entry] += 1
        if len(unanswered) > 1 or self._endings[entry] < ENDINGS_MAX:
            return False
        loop = asyncio.get_running_loop()
        self._aside[entry] = loop.call_later(ASIDE_S, self._wake, entry)
        topic = entry.bound.topic[:_SHOWN_CHARS_MAX]
        self.told(
            f"it ends the connection when it is given a publication to {topic!r}: "
            f"{len(self)} are set aside, and tried again in {ASIDE_S / 60:.0f} min"
        )
        return True

    def clear(self, entry: Entry) -> None:
        """One was answered, or is not tried again."""
        if self._endings.pop(entry, None) is None:
            return
        if entry in self._aside:
            self._aside.pop(entry).cancel()
        if not self._aside:
            self.told("")

    def stop(self) -> None:
        """Try nothing more."""
        for timer in self._aside.values():
            timer.cancel()

    def _wake(self, entry: Entry) -> None:
        del self._aside[entry]
        self._retry(entry)
