"""A broker that has no room for what it is given: what is tried again, when, and how much at once.

It says so of a publication, not for how long, nor whether others would fit. So that one rests, each
time for twice as long, and the others go on: one at a time first, and more with each that fits.
"""

import asyncio
from collections.abc import Callable, Iterable

from hansa.agent.delivery.inbox_journal import PUBLISH_PACKET_IDS, InboxEntry, InboxJournal
from hansa.journal.records import InboxRecord

BACKOFF_MIN_S = 1.0
BACKOFF_MAX_S = 64.0
"""Seconds for which a publication rests, at first and at last."""

QUOTA_EXCEEDED_TEXT = "it has no room for some publications (quota exceeded), which are tried again"


class QuotaBackoff:
    """What one broker had no room for since it was connected."""

    def __init__(
        self,
        inbox: InboxJournal,
        retry: Callable[[InboxEntry], None],
        on_rewritten: Callable[[InboxEntry], None],
    ) -> None:
        """`retry` is given what has rested, `rewritten` what was written anew."""
        self.set_alarm: Callable[[str], None] = lambda text: None
        """Told that the broker has no room, and an empty text when it has."""
        self.in_flight_max: int | None = None
        """How many may be under way because of that; None if there is no bound."""
        self._inbox = inbox
        self._retry = retry
        self._on_rewritten = on_rewritten
        self._delays: dict[InboxEntry, float] = {}
        self._retry_timers: dict[InboxEntry, asyncio.TimerHandle] = {}

    def on_quota_exceeded(self, entry: InboxEntry, in_flight: Iterable[InboxEntry]) -> None:
        """There was no room for one; `under_way` are those that the broker may have."""
        entry.was_sent = entry.was_redelivered
        pause_s = self._delays[entry] = min(
            2 * self._delays.get(entry, BACKOFF_MIN_S / 2), BACKOFF_MAX_S
        )
        loop = asyncio.get_running_loop()
        self._retry_timers[entry] = loop.call_later(pause_s, self._retry_now, entry)
        for other in in_flight:
            self.demote_older(other.record)
        self.in_flight_max = 1
        self.set_alarm(QUOTA_EXCEEDED_TEXT)

    def demote_older(self, newer: InboxRecord) -> None:
        """The broker gets this: if it stores it, a value that rests must not replace it later."""
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
        """There was room for one."""
        if self.in_flight_max is not None:
            self.in_flight_max = min(2 * self.in_flight_max, PUBLISH_PACKET_IDS)
        self.remove(entry)

    def remove(self, entry: InboxEntry) -> None:
        """One is not tried again."""
        if self._delays.pop(entry, None) is not None and not self._delays:
            self.reset()

    def reset(self) -> None:
        """Begin anew, without any bound."""
        for timer in self._retry_timers.values():
            timer.cancel()
        self._retry_timers.clear()
        self._delays.clear()
        self.in_flight_max = None
        self.set_alarm("")

    def _retry_now(self, entry: InboxEntry) -> None:
        del self._retry_timers[entry]
        self._retry(entry)
