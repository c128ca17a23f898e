"""A broker that has no room for what it is given: what is tried again, when, and how much at once.

It says so of a publication, not for how long, nor whether others would fit. So that one rests, each
time for twice as long, and the others go on: one at a time first, and more with each that fits.
"""

import asyncio
from collections.abc import Callable, Iterable

from hansa.agent.delivery.inbox_journal import PUBLISH_IDS, Backlog, Entry
from hansa.journal.records import Bound

PAUSE_S = 1.0
PAUSE_MAX_S = 64.0
"""Seconds for which a publication rests, at first and at last."""

CROWDED = "it has no room for some publications (quota exceeded), which are tried again"


class Crowding:
    """What one broker had no room for since it was connected."""

    def __init__(
        self, backlog: Backlog, retry: Callable[[Entry], None], rewritten: Callable[[Entry], None]
    ) -> None:
        """`retry` is given what has rested, `rewritten` what was written anew."""
        self.told: Callable[[str], None] = lambda text: None
        """Told that the broker has no room, and an empty text when it has."""
        self.room: int | None = None
        """How many may be under way because of that; None if there is no bound."""
        self._backlog = backlog
        self._retry = retry
        self._rewritten = rewritten
        self._pauses: dict[Entry, float] = {}
        self._resting: dict[Entry, asyncio.TimerHandle] = {}

    def refuse(self, entry: Entry, under_way: Iterable[Entry]) -> None:
        """There was no room for one; `under_way` are those that the broker may have."""
        entry.was_sent = entry.was_repeated
        pause_s = self._pauses[entry] = min(2 * self._pauses.get(entry, PAUSE_S / 2), PAUSE_MAX_S)
        loop = asyncio.get_running_loop()
        self._resting[entry] = loop.call_later(pause_s, self._wake, entry)
        for other in under_way:
            self.surpass(other.bound)
        self.room = 1
        self.told(CROWDED)

    def surpass(self, newer: Bound) -> None:
        """The broker gets this: if it stores it, a value that rests must not replace it later."""
        if not (newer.retain and self._resting):
            return
        for entry, timer in list(self._resting.items()):
            older = entry.bound
            if older.retain and older.topic == newer.topic and older.index < newer.index:
                timer.cancel()
                del self._resting[entry]
                self._backlog.demote(entry)
                self._rewritten(entry)

    def accept(self, entry: Entry) -> None:
        """There was room for one."""
        if self.room is not None:
            self.room = min(2 * self.room, PUBLISH_IDS)
        self.drop(entry)

    def drop(self, entry: Entry) -> None:
        """One is not tried again."""
        if self._pauses.pop(entry, None) is not None and not self._pauses:
            self.forget()

    def forget(self) -> None:
        """Begin anew, without any bound."""
        for timer in self._resting.values():
            timer.cancel()
        self._resting.clear()
        self._pauses.clear()
        self.room = None
        self.told("")

    def _wake(self, entry: Entry) -> None:
        del self._resting[entry]
        self._retry(entry)
