"""Quarantine of poison messages: publications at which the broker closes the connection.

MQTT 3.1.1 has no other way to refuse a publication, and a broker may crash on one: when it
arrives, or at QoS 2 when PUBREL releases it. Without quarantine all others would wait behind it
indefinitely. When a connection ends, the first publication whose PUBLISH or PUBREL is not answered
is the suspect. After DISCONNECTS_SUSPECT connections with the same suspect, publications are sent
and released one at a time. After DISCONNECTS_MAX it is quarantined: it stays in the inbox, the
others continue, and it is retried after QUARANTINE_S or a restart.
"""

from collections import Counter
from collections.abc import Sequence

from hansa.delivery.context import Context
from hansa.delivery.inbox import InboxEntry

DISCONNECTS_SUSPECT = 3
"""Connections that end before the handshake of a publication does, until it is sent alone."""

DISCONNECTS_MAX = 5
"""The same before it is quarantined; on the last one no other publication was in flight."""

QUARANTINE_S = 3600.0
"""Seconds until a quarantined publication is retried."""

QUARANTINE_ALARM = "message quarantined"

_SHOWN_CHARS_MAX = 60


class PoisonQuarantine:
    """Suspects and quarantined publications of one broker."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._disconnects: Counter[InboxEntry] = Counter()
        self._quarantined: dict[InboxEntry, float] = {}
        """Quarantined publications, with the time of the retry."""

    @property
    def must_isolate(self) -> bool:
        """Whether publications are sent one at a time."""
        return max(self._disconnects.values(), default=0) >= DISCONNECTS_SUSPECT

    @property
    def deadline(self) -> float | None:
        """When the next publication is retried."""
        return min(self._quarantined.values(), default=None)

    def take_due(self) -> list[InboxEntry]:
        """Return the publications that are retried now."""
        due = [entry for entry, at in self._quarantined.items() if at <= self._context.now]
        for entry in due:
            del self._quarantined[entry]
        return due

    def __contains__(self, entry: InboxEntry) -> bool:
        return entry in self._quarantined

    def __len__(self) -> int:
        return len(self._quarantined)

    def on_disconnected(self, unanswered: Sequence[InboxEntry]) -> bool:
        """Count a connection that ended before these were answered; return whether the first
        one is now quarantined. With several in flight it may be innocent, because the broker's last
        acknowledgements can be lost."""
        entry = unanswered[0]
        self._disconnects[entry] += 1
        if len(unanswered) > 1 or self._disconnects[entry] < DISCONNECTS_MAX:
            return False
        self._quarantined[entry] = self._context.now + QUARANTINE_S
        topic = entry.record.topic[:_SHOWN_CHARS_MAX]
        self._context.set_alarm(
            QUARANTINE_ALARM,
            f"the broker closes the connection at a publication to {topic!r}: "
            f"{len(self)} quarantined, retried in {QUARANTINE_S / 60:.0f} min",
        )
        return True

    def forget(self, entry: InboxEntry) -> None:
        """Forget a publication whose handshake has ended, or that is not retried."""
        if self._disconnects.pop(entry, None) is None:
            return
        self._quarantined.pop(entry, None)
        if not self._quarantined:
            self._context.set_alarm(QUARANTINE_ALARM, "")
