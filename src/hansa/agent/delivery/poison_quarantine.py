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

from hansa.agent.delivery.inbox_journal import InboxEntry

DISCONNECTS_SUSPECT = 3
"""Connections that end with no answer to a publication, until it is given alone."""

DISCONNECTS_MAX = 5
"""The same, the last time with no other under way, until it is set aside."""

QUARANTINE_S = 3600.0
"""Seconds until it is tried again."""

_SHOWN_CHARS_MAX = 60


class PoisonQuarantine:
    """What one broker may not bear."""

    def __init__(self, retry: Callable[[InboxEntry], None]) -> None:
        """`retry` is given what gets another chance."""
        self.set_alarm: Callable[[str], None] = lambda text: None
        """Told what is set aside, and an empty text when nothing is."""
        self._retry = retry
        self._disconnects: Counter[InboxEntry] = Counter()
        self._quarantined: dict[InboxEntry, asyncio.TimerHandle] = {}

    @property
    def must_isolate(self) -> bool:
        """Whether one should be published at a time."""
        return max(self._disconnects.values(), default=0) >= DISCONNECTS_SUSPECT

    def __contains__(self, entry: InboxEntry) -> bool:
        """Whether a publication is set aside."""
        return entry in self._quarantined

    def __len__(self) -> int:
        """Return how many are set aside."""
        return len(self._quarantined)

    def on_disconnected(self, unanswered: Sequence[InboxEntry]) -> bool:
        """A connection ended before these were answered; return whether the first is set aside. Of
        several it may be another one: a broker's last answers can be lost."""
        entry = unanswered[0]
        self._disconnects[entry] += 1
        if len(unanswered) > 1 or self._disconnects[entry] < DISCONNECTS_MAX:
            return False
        loop = asyncio.get_running_loop()
        self._quarantined[entry] = loop.call_later(QUARANTINE_S, self._retry_later, entry)
        topic = entry.record.topic[:_SHOWN_CHARS_MAX]
        self.set_alarm(
            f"it ends the connection when it is given a publication to {topic!r}: "
            f"{len(self)} are set aside, and tried again in {QUARANTINE_S / 60:.0f} min"
        )
        return True

    def release(self, entry: InboxEntry) -> None:
        """One was answered, or is not tried again."""
        if self._disconnects.pop(entry, None) is None:
            return
        if entry in self._quarantined:
            self._quarantined.pop(entry).cancel()
        if not self._quarantined:
            self.set_alarm("")

    def stop(self) -> None:
        """Try nothing more."""
        for timer in self._quarantined.values():
            timer.cancel()

    def _retry_later(self, entry: InboxEntry) -> None:
        del self._quarantined[entry]
        self._retry(entry)
