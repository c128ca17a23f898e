"""Back-off for publications that the broker refuses with "quota exceeded".

The broker says neither how long nor whether other publications would fit. The refused publication
is retried after a pause that doubles up to BACKOFF_MAX_S. The number in flight drops to 1 and
doubles with each completed publication. A retained value that waits must not replace a newer one:
if a newer value is sent meanwhile, the older one loses its retain flag.
"""

from collections.abc import Callable, Iterable

from hansa.delivery.context import Context
from hansa.delivery.inbox import PUBLISH_PACKET_IDS, InboxEntry, InboxLog
from hansa.journal.records import InboxRecord

BACKOFF_MIN_S = 1.0
BACKOFF_MAX_S = 64.0
"""Seconds until a refused publication is retried: first and longest pause."""

QUOTA_ALARM = "broker quota exceeded"
QUOTA_EXCEEDED_TEXT = "the broker refuses publications (quota exceeded); they are retried"


class QuotaBackoff:
    """Refused publications of the current connection."""

    def __init__(
        self, context: Context, inbox: InboxLog, on_rewritten: Callable[[InboxEntry], None]
    ) -> None:
        """`on_rewritten` gets entries that lost their retain flag."""
        self.in_flight_max: int | None = None
        """Limit of publications in flight; None while no publication is refused."""
        self._context = context
        self._inbox = inbox
        self._on_rewritten = on_rewritten
        self._delays: dict[InboxEntry, float] = {}
        self._retry_at: dict[InboxEntry, float] = {}

    def __contains__(self, entry: InboxEntry) -> bool:
        """Whether the broker has refused a publication and not taken it since."""
        return entry in self._delays

    @property
    def deadline(self) -> float | None:
        """When the next publication is retried."""
        return min(self._retry_at.values(), default=None)

    def take_due(self) -> list[InboxEntry]:
        """Return the publications that are retried now."""
        due = [entry for entry, at in self._retry_at.items() if at <= self._context.now]
        for entry in due:
            del self._retry_at[entry]
        return due

    def on_quota_exceeded(self, entry: InboxEntry, in_flight: Iterable[InboxEntry]) -> None:
        """Schedule a retry; `in_flight` are the other publications that the broker may have."""
        entry.was_sent = entry.was_redelivered
        delay_s = self._delays[entry] = min(
            2 * self._delays.get(entry, BACKOFF_MIN_S / 2), BACKOFF_MAX_S
        )
        self._retry_at[entry] = self._context.now + delay_s
        for other in in_flight:
            self.demote_older(other.record)
        self.in_flight_max = 1
        self._context.set_alarm(QUOTA_ALARM, QUOTA_EXCEEDED_TEXT)

    def demote_older(self, newer: InboxRecord) -> None:
        """Clear the retain flag of waiting values that are older than one that is sent now."""
        if not (newer.retain and self._retry_at):
            return
        for entry in list(self._retry_at):
            older = entry.record
            if older.retain and older.topic == newer.topic and older.index < newer.index:
                del self._retry_at[entry]
                self._inbox.clear_retain_flag(entry)
                self._on_rewritten(entry)

    def on_completed(self, entry: InboxEntry) -> None:
        """The handshake of a publication has ended, not for lack of quota."""
        if self.in_flight_max is not None:
            self.in_flight_max = min(2 * self.in_flight_max, PUBLISH_PACKET_IDS)
        self.remove(entry)

    def remove(self, entry: InboxEntry) -> None:
        """Forget an entry that is not retried."""
        if self._delays.pop(entry, None) is not None and not self._delays:
            self.reset()

    def reset(self) -> None:
        """Forget all entries and remove the limit."""
        self._retry_at.clear()
        self._delays.clear()
        self.in_flight_max = None
        self._context.set_alarm(QUOTA_ALARM, "")
