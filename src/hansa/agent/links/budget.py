"""How much a neighbour may send: token buckets for frames, bytes, records and unicast frames.

Pure: time is an argument. A neighbour that exceeds its budget is not punished, because an honest
one does it when a large federation changes; its link is not read for a while, so that it costs the
agent no more than the limits allow, and other links get the time.

Unicast frames beyond their limit are dropped first; their senders send them again. A neighbour may
only be the relay of a flood, and a pause would delay the publications of others on its link. The
link is paused when twice as many arrive, which a relay with the same limit does not forward.
"""

from dataclasses import asdict, dataclass, fields

from hansa.agent.token_bucket import TokenBucket
from hansa.errors import UsageError
from hansa.protocol.membership.records import NodeRecord
from hansa.protocol.model import Publication
from hansa.protocol.wire.frames import (
    UNICASTS,
    AnyFrame,
    InterestAcks,
    SealedUnicast,
    SequencedFrame,
    Update,
)

BURST_S = 10.0
"""Seconds for which a neighbour may send everything at once that it may send in that time: a node
that joins gets the whole database."""

_UNICASTS = (SealedUnicast, *UNICASTS)

PAUSE_MAX_S = 1.0
"""Longest pause in seconds: less than the time after which a silent neighbour is given up."""


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """What one neighbour may send per second, on average over 10 s; the agent reads its link more
    slowly beyond that. Lower values protect this agent better from a neighbour that floods it;
    higher ones let large federations converge faster."""

    frames: int = 1_000_000
    """Frames, publications included."""
    bytes: int = 1 << 30
    """Bytes on the link."""
    records: int = 10_000
    """Records, each filter and each link in them, as they arrive when nodes and filters change."""
    unicasts: int = 10_000
    """Frames to one node: receipts, repairs, acknowledgements of interest, retained values."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) < 1:
                raise UsageError(f"[link.limits] {each.name} must be at least 1")


class NeighbourBudget:
    """The buckets of one link."""

    __slots__ = ("_accepted_unicasts", "_buckets", "_records", "_unicasts")

    def __init__(self, limits: LimitSettings, now: float) -> None:
        rates = asdict(limits)
        rates["unicasts"] *= 2
        self._buckets = {name: TokenBucket(rate, BURST_S, now) for name, rate in rates.items()}
        self._accepted_unicasts = TokenBucket(limits.unicasts, BURST_S, now)
        self._records = 0
        self._unicasts = 0

    def note_control_frame(self, frame: AnyFrame | Publication, now: float) -> bool:
        """Count a control frame for the next charge; return whether to handle it."""
        inner = frame.frame if isinstance(frame, SequencedFrame) else frame
        if isinstance(inner, InterestAcks):
            return self._note_unicasts(len(inner.entries), now)
        if isinstance(inner, _UNICASTS):
            return self._note_unicasts(1, now)
        if not isinstance(inner, Update):
            self._records += 1
        else:
            self._records += sum(
                1 + (len(r.links) if isinstance(r, NodeRecord) else len(r.added) + len(r.removed))
                for r in inner.records
            )
        return True

    def _note_unicasts(self, count: int, now: float) -> bool:
        self._unicasts += count
        if self._accepted_unicasts.is_overdrawn(now):
            return False
        self._accepted_unicasts.charge(count, now)
        return True

    def note_records(self, count: int) -> None:
        self._records += count

    def charge(self, frames: int, size: int, now: float) -> tuple[float, str]:
        """Charge a batch with the control frames noted since the last one; return for how many
        seconds the link must not be read, and which limit was exceeded."""
        amounts = (frames, size, self._records, self._unicasts)
        self._records = self._unicasts = 0
        pause, exceeded = 0.0, ""
        for (name, bucket), amount in zip(self._buckets.items(), amounts, strict=True):
            needed = bucket.charge(amount, now) if amount else 0.0
            if needed > pause:
                pause, exceeded = needed, name
        return min(pause, PAUSE_MAX_S), exceeded
