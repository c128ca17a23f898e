"""What an agent reports about its delivery: alarms, counters and a section of `/status`."""

from collections import Counter
from datetime import UTC, datetime

from hansa.agent.admin.status import node_name
from hansa.agent.alarms import Alarms
from hansa.agent.error_text import quote_text
from hansa.delivery.core import DeliveryCore
from hansa.journal.records import GapRecord
from hansa.journal.writer import JournalWriter
from hansa.protocol.effects import DeliveryAbandoned, Effect, Gap, Ignored, Repaired
from hansa.protocol.forwarding.engine import TOO_LARGE
from hansa.protocol.model import NodeId
from hansa.protocol.node import Node

ALARM_NODES_MAX = 3
"""Nodes that an alarm names; it counts the others."""


class DeliveryReports:
    """Losses and faults of one incarnation."""

    def __init__(self, node: Node, core: DeliveryCore, alarms: Alarms) -> None:
        self._node = node
        self._core = core
        self._alarms = alarms
        self.counters: Counter[str] = Counter()
        self._first_sequence = core.outbox.log.first_sequence

    def on_notification(self, notification: Effect) -> None:
        """Turn a notification of the node into alarms and counters."""
        match notification:
            case Gap(origin, _, first, last, reason):
                self.counters["gaps"] += 1
                label = self._label_node(origin)
                text = f"positions {first} to {last} of {label} are lost: {reason}"
                self._alarms.set("delivery gap", text)
            case DeliveryAbandoned(node, _, first, last):
                self.counters["deliveries abandoned"] += 1
                lost = f"positions {first} to {last} were not delivered"
                self._alarms.set(
                    "delivery abandoned",
                    f"{self._label_node(node)} was unreachable for too long: {lost}",
                )
            case Ignored(reason) if reason == TOO_LARGE:
                self._alarms.add_dropped(reason, "", 0)
            case Repaired(_, count):
                self.counters["repaired"] += count
            case _:
                pass

    def add_dropped(self, reason: str, topic: str, qos: int) -> None:
        """Count a publication that will not be delivered; topic and QoS, if known, go to the
        alarm."""
        self.counters[f"dropped: {reason}"] += 1
        self._alarms.add_dropped(reason, topic, qos)

    def on_epoch_started(self) -> None:
        """The positions of a new epoch start at 1."""
        self._first_sequence = 1

    def report_trimmed(self) -> None:
        """After a commit: report pending publications that retention deleted."""
        first = self._core.outbox.log.first_sequence
        if first <= self._first_sequence:
            return
        pending = self._node.delivery.first_pending_before(first)
        if pending:
            oldest = max(self._first_sequence, min(pending.values()))
            self.counters["dropped: retention, not acknowledged"] += first - oldest
            names = ", ".join(self._label_node(node) for node in list(pending)[:ALARM_NODES_MAX])
            more = (
                f" and {len(pending) - ALARM_NODES_MAX} more"
                if len(pending) > ALARM_NODES_MAX
                else ""
            )
            text = f"positions before {first} were deleted, not acknowledged by {names}{more}"
            self._alarms.set("undelivered publications trimmed", text)
        self._first_sequence = first

    def _label_node(self, node: NodeId) -> str:
        name = node_name(self._node, node)
        return f"{node:016x} ({quote_text(name)})" if name else f"{node:016x}"

    def status(self, outbox: JournalWriter) -> dict[str, object]:
        """Return the `delivery` section of `/status`."""
        delivery, inbox = self._node.delivery, self._core.inbox
        epoch, position = delivery.next_position
        return {
            "epoch": epoch,
            "position": position - 1,
            "first_position": outbox.first_sequence,
            "acknowledged_by_all": delivery.acknowledged_by_all,
            "pending": {f"{node:016x}": count for node, count in delivery.pending.items()},
            "journal_bytes": outbox.size,
            "unsynced_bytes": outbox.end - outbox.durable,
            "inbox": len(inbox.entries),
            "inbox_bytes": inbox.total_bytes,
            "inbox_waiting": self._core.injection.waiting_count,
            "gaps": [_gap_status(each) for each in inbox.gaps],
        }


def _gap_status(gap: GapRecord) -> dict[str, object]:
    """Return a gap as `/status` shows it."""
    return {
        "origin": f"{gap.origin:016x}",
        "epoch": gap.epoch,
        "first": gap.first,
        "last": gap.last,
        "reason": gap.reason,
        "time": datetime.fromtimestamp(gap.time_ns // 1_000_000_000, UTC).isoformat(),
    }
