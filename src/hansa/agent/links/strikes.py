"""Decides when a misbehaving node is quarantined, and for how long.

Pure: time is an argument, in seconds of a monotonic clock. A *strike* is one offence that no race
and no fault of the network explains (`protocol.effects.PeerMisbehaved`, an invalid frame, a forged
id). Three strikes within 60 s start a quarantine: the links of the node are closed and new ones are
refused. The first one takes 1 s, each further one twice as long, up to 10 min; after a day
without a strike the first one takes 1 s again.
"""

from collections.abc import Iterable

import msgspec

from hansa.protocol.model import NodeId

STRIKES_MAX = 3
STRIKE_WINDOW_S = 60.0
QUARANTINE_MIN_S = 1.0
QUARANTINE_MAX_S = 600.0
FORGIVEN_AFTER_S = 86_400.0

OFFENDERS_MAX = 1_024
"""Nodes that are remembered; the one with the oldest strike is forgotten first."""

REASON_CHARS_MAX = 200


class SavedOffender(msgspec.Struct, frozen=True, array_like=True):
    """A node that was quarantined, for the state directory."""

    node: NodeId
    reason: str
    duration_s: float
    ended_at: float
    """Seconds since 1970."""


class Offender(msgspec.Struct):
    """A node with strikes."""

    strikes: list[float] = []
    """When the strikes of the last STRIKE_WINDOW_S came."""
    reason: str = ""
    """Of the last strike."""
    duration_s: float = 0.0
    """Of the last quarantine; 0 before the first one."""
    until: float = 0.0
    """When the last quarantine ends, or has ended."""


class StrikeList:
    """The nodes that have misbehaved."""

    def __init__(self) -> None:
        self._offenders: dict[NodeId, Offender] = {}
        """In the order of their last strikes."""

    def strike(self, node: NodeId, reason: str, now: float) -> float:
        """Count an offence; return the duration of the quarantine that it starts, 0 for none."""
        found = self._offenders.pop(node) if node in self._offenders else Offender()
        self._offenders[node] = found
        if len(self._offenders) > OFFENDERS_MAX:
            del self._offenders[next(iter(self._offenders))]
        if now < found.until:
            return 0.0  # sent before its links were closed
        found.reason = reason[:REASON_CHARS_MAX]
        found.strikes = [at for at in found.strikes if now - at <= STRIKE_WINDOW_S] + [now]
        if len(found.strikes) < STRIKES_MAX:
            return 0.0
        is_forgiven = not found.duration_s or now - found.until > FORGIVEN_AFTER_S
        duration = QUARANTINE_MIN_S if is_forgiven else 2 * found.duration_s
        found.duration_s = min(duration, QUARANTINE_MAX_S)
        found.until = now + found.duration_s
        found.strikes = []
        return found.duration_s

    def remaining_s(self, node: NodeId, now: float) -> float:
        """Return how long a node stays in quarantine, 0 if it is not."""
        found = self._offenders.get(node)
        return 0.0 if found is None else max(0.0, found.until - now)

    def quarantined(self, now: float) -> dict[NodeId, Offender]:
        return {node: each for node, each in self._offenders.items() if now < each.until}

    def release(self, node: NodeId) -> bool:
        """Forget a node and its strikes; return whether it was known."""
        return self._offenders.pop(node, None) is not None

    # ------------------------------------------------------------ over restarts

    def save(self, now: float, wall: float) -> list[SavedOffender]:
        """Return what has to survive a restart: the nodes that were quarantined."""
        return [
            SavedOffender(node, each.reason, each.duration_s, wall + each.until - now)
            for node, each in self._offenders.items()
            if each.duration_s
        ]

    def restore(self, saved: Iterable[SavedOffender], now: float, wall: float) -> None:
        """Load what `save` returned. A clock that was set back does not prolong a quarantine."""
        for each in list(saved)[-OFFENDERS_MAX:]:
            duration = min(max(each.duration_s, QUARANTINE_MIN_S), QUARANTINE_MAX_S)
            until = now + min(each.ended_at - wall, duration)
            self._offenders[each.node] = Offender([], each.reason, duration, until)
