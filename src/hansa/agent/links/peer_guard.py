"""Watches what neighbours send: slows down those that send too much, counts offences.

A node with a certificate gets strikes, which lead to quarantine. A link without one is closed after
as many offences, and nothing is remembered.
"""

import logging
from collections import Counter
from time import monotonic

from hansa.agent.error_text import quote_text
from hansa.agent.links.budget import LimitSettings, NeighbourBudget
from hansa.agent.links.link import Link
from hansa.agent.links.security import REVOCATION_FRAME, LinkSecurity
from hansa.agent.links.settings import NODE_ID
from hansa.agent.links.strikes import STRIKES_MAX
from hansa.agent.quarantine import QuarantineService
from hansa.errors import InvalidFrame
from hansa.protocol.model import LinkId, NodeId, Publication
from hansa.protocol.wire.frames import AnyFrame

log = logging.getLogger("hansa.agent")

REVOCATION_RECORDS = 100
REVOCATION_BYTES_PER_RECORD = 1_024
"""Records that a revocation list counts as, against the limits of a link, and bytes of it that
count as one more: its signature is checked, also if the list is an old one."""

DEFAULT_LIMITS = LimitSettings()


class _WatchedLink:
    __slots__ = ("budget", "bytes_charged", "offences", "paused_until")

    def __init__(self, link: Link, limits: LimitSettings) -> None:
        self.budget = NeighbourBudget(limits, monotonic())
        self.bytes_charged = link.bytes_in
        self.offences = 0
        self.paused_until = 0.0


class PeerGuard:
    """All open links of an agent."""

    def __init__(self) -> None:
        self.limits = DEFAULT_LIMITS
        self.quarantine: QuarantineService | None = None
        self.security: LinkSecurity | None = None
        self.counters: Counter[str] = Counter()
        self._watched: dict[LinkId, _WatchedLink] = {}

    def link_opened(self, link: Link) -> None:
        self._watched[link.id] = _WatchedLink(link, self.limits)

    def link_admitted(self, link: Link) -> None:
        """Send the revocation list to a new neighbour."""
        if self.security is not None:
            self.security.send_revocations(link)

    def link_closed(self, link: Link) -> None:
        self._watched.pop(link.id, None)

    def accepts(self, link: Link, frame: AnyFrame | Publication) -> bool:
        """Count a control frame towards the limits of its link; return whether to handle it."""
        watched = self._watched.get(link.id)
        if watched is None or watched.budget.note_control_frame(frame, monotonic()):
            return True
        self.counters["dropped: unicast frames of a neighbour beyond [link.limits]"] += 1
        return False

    def receive_revocations(self, link: Link, frame: bytes) -> bool:
        """Take a revocation list from an authenticated neighbour; return whether it is one."""
        if frame[:1] != REVOCATION_FRAME or self.security is None:
            return False
        if link.certificate is None or not link.is_admitted:
            return False
        if (watched := self._watched.get(link.id)) is not None:
            records = REVOCATION_RECORDS + len(frame) // REVOCATION_BYTES_PER_RECORD
            watched.budget.note_records(records)
        try:
            self.security.receive_revocations(frame)
        except InvalidFrame:
            # While a root is replaced, a neighbour may know a root that this node does not know.
            self.counters["revocation lists refused"] += 1
        return True

    def drops_frames(self, link: Link) -> bool:
        """Whether to drop what arrives: a link without order cannot be paused, and sends control
        frames again."""
        watched = self._watched.get(link.id)
        return not link.is_ordered and watched is not None and monotonic() < watched.paused_until

    def charge(self, link: Link, frames: int) -> None:
        """Charge a batch of frames; if the link has exceeded a limit, do not read it for a
        while."""
        if (watched := self._watched.get(link.id)) is None:
            return
        size, watched.bytes_charged = link.bytes_in - watched.bytes_charged, link.bytes_in
        pause, limit = watched.budget.charge(frames, size, monotonic())
        if pause:
            self.counters[f"slowed down: a neighbour sent more {limit} than [link.limits]"] += 1
            watched.paused_until = monotonic() + pause
            link.pause(pause)

    def misbehaved(self, link: Link, reason: str) -> None:
        """Count an offence that no honest node commits."""
        self.counters["misbehaviour"] += 1
        log.warning("misbehaviour remote=%s reason=%s", link.remote, quote_text(reason))
        if link.certificate is not None and self.quarantine is not None:
            self.quarantine.strike(link.certificate.node, link.remote, reason)
        elif (watched := self._watched.get(link.id)) is not None:
            watched.offences += 1
            if watched.offences >= STRIKES_MAX:
                link.close(f"misbehaved {watched.offences} times, last: {reason}")

    # ------------------------------------------------------------ for the operator

    def quarantined(self) -> list[dict[str, object]]:
        """Return the nodes in quarantine for /status."""
        return [] if self.quarantine is None else self.quarantine.status()

    def release(self, text: str) -> str:
        """Release a node, given by its id; return why that is impossible, empty if it was done."""
        if self.quarantine is None or not NODE_ID.fullmatch(text):
            return f"{quote_text(text)} is no node id of 16 hexadecimal digits"
        is_done = self.quarantine.release(NodeId(int(text, 16)))
        return "" if is_done else f"no strikes of node {text} are known"
