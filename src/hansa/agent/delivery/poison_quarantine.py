"""Quarantine of poison messages: publications at which the broker closes the connection.

MQTT 3.1.1 has no other way to refuse a publication, and a broker may crash on one. Without
quarantine all others would wait behind it indefinitely. When a connection ends, the publication
that has waited longest for its acknowledgement is the suspect. After DISCONNECTS_SUSPECT
connections with the same suspect, publications are sent one at a time. After DISCONNECTS_MAX it is
quarantined: it stays in the inbox, the others continue, and it is retried after QUARANTINE_S or a
restart.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from hansa.agent.delivery.inbox_journal import InboxEntry

DISCONNECTS_SUSPECT = 3
"""Connections that end without an acknowledgement of a publication before it is sent alone."""

DISCONNECTS_MAX = 5
"""The same before it is quarantined; on the last one no other publication was in flight."""

QUARANTINE_S = 3600.0
"""Seconds until a quarantined publication is retried."""

_SHOWN_CHARS_MAX = 60


class PoisonQuarantine:
    """Suspects and quarantined publications of one broker."""

    def __init__(
        self, retry: Callable[[InboxEntry], None], set_alarm: Callable[[str], None]
    ) -> None:
        self._retry = retry
        self._set_alarm = set_alarm
        self._disconnects: Counter[InboxEntry] = Counter()
        self._quarantined: dict[InboxEntry, asyncio.TimerHandle] = {}

    @property
    def must_isolate(self) -> bool:
        """Whether publications are sent one at a time."""
        return max(self._disconnects.values(), default=0) >= DISCONNECTS_SUSPECT

    def __contains__(self, entry: InboxEntry) -> bool:
        return entry in self._quarantined

    def __len__(self) -> int:
        return len(self._quarantined)

    def on_disconnected(self, unanswered: Sequence[InboxEntry]) -> bool:
        """Count a connection that ended before these were acknowledged; return whether the first
        one is now quarantined. With several in flight it may be innocent, because the broker's last
        acknowledgements can be lost."""
        entry = unanswered[0]
        self._disconnects[entry] += 1
        if len(unanswered) > 1 or self._disconnects[entry] < DISCONNECTS_MAX:
            return False
        loop = asyncio.get_running_loop()
        self._quarantined[entry] = loop.call_later(QUARANTINE_S, self._retry_later, entry)
        topic = entry.record.topic[:_SHOWN_CHARS_MAX]
        self._set_alarm(
            f"the broker closes the connection at a publication to {topic!r}: "
            f"{len(self)} quarantined, retried in {QUARANTINE_S / 60:.0f} min"
        )
        return True

    def release(self, entry: InboxEntry) -> None:
        """Forget a publication that was acknowledged or is not retried."""
        if self._disconnects.pop(entry, None) is None:
            return
        if entry in self._quarantined:
            self._quarantined.pop(entry).cancel()
        if not self._quarantined:
            self._set_alarm("")

    def stop(self) -> None:
        """Cancel all retries."""
        for timer in self._quarantined.values():
            timer.cancel()

    def _retry_later(self, entry: InboxEntry) -> None:
        del self._quarantined[entry]
        self._retry(entry)
