"""Quarantine of misbehaving neighbours: closes their links, refuses new ones, raises an alarm.

`links.strikes` decides. Only nodes that have proved their id with a certificate get strikes: the id
in a hello without one may be false, and an attacker would have honest nodes quarantined.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

import msgspec

from hansa.agent.alarms import SetAlarm
from hansa.agent.audit_log import AuditLog
from hansa.agent.error_text import quote_text
from hansa.agent.links.link import Link
from hansa.agent.links.strikes import SavedOffender, StrikeList
from hansa.agent.storage.state_directory import StateDirectory
from hansa.errors import InvalidCertificate, UsageError
from hansa.protocol.model import NodeId

log = logging.getLogger("hansa.agent")

SHOWN_MAX = 8
"""Nodes that the alarm names."""


class QuarantineService:
    def __init__(
        self,
        state: StateDirectory,
        set_alarm: SetAlarm,
        audit: AuditLog,
        name_of: Callable[[NodeId], str],
        wall: Callable[[], float],
    ) -> None:
        """`wall` returns seconds since 1970, for the file."""
        self._wall = wall
        self._state = state
        self._set_alarm = set_alarm
        self._audit = audit
        self._name_of = name_of
        self._strikes = StrikeList()
        self.links: Callable[[], Iterable[Link]] = tuple
        """Returns the open links."""
        self._strikes.restore(_load(state), time.monotonic(), wall())
        for node in self._strikes.quarantined(time.monotonic()):
            self._schedule_end(self._strikes.remaining_s(node, time.monotonic()))
        self._update_alarm()

    def strike(self, node: NodeId, address: str, reason: str) -> None:
        """Count an offence of an authenticated node."""
        self._audit.record("strike", reason, node, address)
        duration = self._strikes.strike(node, reason, time.monotonic())
        if not duration:
            return
        self._audit.record("quarantine", f"{duration:.0f} s: {reason}", node, address)
        log.warning(
            "neighbour quarantined node=%016x name=%r seconds=%d reason=%r",
            *(node, self._name_of(node), duration, reason),
        )
        for link in list(self.links()):
            if link.certificate is not None and link.certificate.node == node:
                link.close(f"quarantined for {duration:.0f} s: {reason}")
        self._schedule_end(duration)
        self._update_alarm()
        self._save()

    def check(self, node: NodeId) -> None:
        """Raise InvalidCertificate for a node in quarantine."""
        remaining = self._strikes.remaining_s(node, time.monotonic())
        if remaining:
            raise InvalidCertificate(
                f"node {node:016x} is in quarantine for another {remaining:.0f} s"
            )

    def status(self) -> list[dict[str, object]]:
        """Return the nodes in quarantine for /status."""
        now = time.monotonic()
        return [
            {
                "node": f"{node:016x}",
                "name": self._name_of(node),
                "reason": found.reason,
                "remaining_s": round(found.until - now, 1),
                "duration_s": found.duration_s,
            }
            for node, found in self._strikes.quarantined(now).items()
        ]

    def release(self, node: NodeId) -> bool:
        """End the quarantine of a node and forget its strikes; return whether it had any."""
        if not self._strikes.release(node):
            return False
        self._audit.record("release", "released by the operator", node)
        log.warning("quarantine released node=%016x name=%r", node, self._name_of(node))
        self._update_alarm()
        self._save()
        return True

    def _schedule_end(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds + 0.01, self._update_alarm)

    def _update_alarm(self) -> None:
        found = self._strikes.quarantined(time.monotonic())
        texts = [
            f"{quote_text(self._name_of(node))} ({node:016x}) for {each.duration_s:.0f} s because"
            f" of {quote_text(each.reason)}"
            for node, each in list(found.items())[:SHOWN_MAX]
        ]
        more = [f"{len(found) - SHOWN_MAX} others"] if len(found) > SHOWN_MAX else []
        self._set_alarm("; ".join([*texts, *more]))

    def _save(self) -> None:
        saved = self._strikes.save(time.monotonic(), self._wall())
        try:
            self._state.save_quarantine(msgspec.msgpack.encode(saved))
        except UsageError as error:
            log.warning("quarantine not saved, a restart forgets it: %s", error)


def _load(state: StateDirectory) -> list[SavedOffender]:
    try:
        return msgspec.msgpack.decode(state.load_quarantine(), type=list[SavedOffender])
    except msgspec.DecodeError:
        return []  # no file yet, or not ours
