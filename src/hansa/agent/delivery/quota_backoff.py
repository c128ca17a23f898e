"""Back-off for publications that the broker refuses with "quota exceeded".

The broker says neither how long nor whether other publications would fit. The refused publication
is retried after a pause that doubles up to BACKOFF_MAX_S. The number in flight drops to 1 and
doubles with each accepted publication. A retained value that waits must not replace a newer one: if
a newer value is sent meanwhile, the older one loses its retain flag.
"""

import asyncio
from collections.abc import Callable, Iterable

from hansa.agent.delivery.inbox_journal import PUBLISH_PACKET_IDS, InboxEntry, InboxJournal
from hansa.journal.records import InboxRecord

BACKOFF_MIN_S = 1.0
BACKOFF_MAX_S = 64.0
"""Seconds until a refused publication is retried: first and longest pause."""

QUOTA_EXCEEDED_TEXT = "the broker refuses publications (quota exceeded); they are retried"


class QuotaBackoff:
    """Refused publications of the current connection."""

    def __init__(
        self,
        inbox: InboxJournal,
        retry: Callable[[InboxEntry], None],
        on_rewritten: Callable[[InboxEntry], None],
        set_alarm: Callable[[str], None],
    ) -> None:
        """`retry` gets entries whose pause has ended, `on_rewritten` entries that lost their retain
        flag."""
        self.in_flight_max: int | None = None
        """Limit of publications in flight; None while no publication is refused."""
        self._set_alarm = set_alarm
        self._inbox = inbox
        self._retry = retry
        self._on_rewritten = on_rewritten
        self._delays: dict[InboxEntry, float] = {}
        self._retry_timers: dict[InboxEntry, asyncio.TimerHandle] = {}

    def on_quota_exceeded(self, entry: InboxEntry, in_flight: Iterable[InboxEntry]) -> None:
        """Schedule a retry; `in_flight` are the other publications that the broker may have."""
        entry.was_sent = entry.was_redelivered
        delay_s = self._delays[entry] = min(
            2 * self._delays.get(entry, BACKOFF_MIN_S / 2), BACKOFF_MAX_S
        )
        loop = asyncio.get_running_loop()
        self._retry_timers[entry] = loop.call_later(delay_s, self._retry_now, entry)
        for other in in_flight:
            self.demote_older(other.record)
        self.in_flight_max = 1
        self._set_alarm(QUOTA_EXCEEDED_TEXT)

    def demote_older(self, newer: InboxRecord) -> None:
        """Clear the retain flag of waiting values that are older than one that is sent now."""
        if not (newer.retain and self._retry_timers):
            return
        for entry, timer in list(self._retry_timers.items()):
            older = entry.record
            if older.retain and older.topic == newer.topic and older.index < newer.index:
                timer.cancel()
                del self._retry_timers[entry]
                self._inbox.clear_retain_flag(entry)
                self._on_rewritten(entry)

    def on_accepted(self, entry: InboxEntry) -> None:
        if self.in_flight_max is not None:
            self.in_flight_max = min(2 * self.in_flight_max, PUBLISH_PACKET_IDS)
        self.remove(entry)

    def remove(self, entry: InboxEntry) -> None:
        """Forget an entry that is not retried."""
        if self._delays.pop(entry, None) is not None and not self._delays:
            self.reset()

    def reset(self) -> None:
        """Forget all entries and remove the limit."""
        for timer in self._retry_timers.values():
            timer.cancel()
        self._retry_timers.clear()
        self._delays.clear()
        self.in_flight_max = None
        self._set_alarm("")

    def _retry_now(self, entry: InboxEntry) -> None:
        del self._retry_timers[entry]
        self._retry(entry)
