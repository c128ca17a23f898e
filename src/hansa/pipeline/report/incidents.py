"""Incidents of a run, from records of nodes: unreachable nodes, failed links, lost publications,
alarms.

    node unreachable     from a report `node_unreachable` about it until every reporter reported
                         `node_reachable`
    link down            from a report `link_down` of one end until `link_up`
    publications lost    a node reported `gap`: it will never receive them
    alarm                from `alarm_raised` until `alarm_cleared`, or until the agent ended

Nodes that stopped cleanly, and their links, are no incidents.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

RECORD_KINDS = (
    *("node_unreachable", "node_reachable", "link_down", "link_up", "gap"),
    *("node_started", "node_stopped", "alarm_raised", "alarm_cleared"),
)
STOPPING = timedelta(seconds=5)
"""A node that stops cleanly closes its links first, and records the stop last."""

DEFINITIONS = {
    "node unreachable": "from the first node that could not reach it until all could again",
    "link down": "from the report of one end until the link was up again",
    "publications lost": "a node recorded that publications of another will never arrive",
    "alarm": "from the record of an agent until it cleared the alarm, stopped or started again",
}


@dataclass(slots=True)
class Incident:
    """Something that an operator should know of."""

    at: datetime
    kind: str
    """Key of DEFINITIONS."""
    node_ids: tuple[str, ...]
    """The node, the ends of the link, or origin and receiver."""
    ended_at: datetime | None = None
    """None if it had not ended when the recording did."""
    count: int = 1
    """Lost publications."""
    alarm: str = ""
    """Name of an alarm."""

    @property
    def seconds(self) -> float | None:
        return None if self.ended_at is None else (self.ended_at - self.at).total_seconds()


def find_incidents(records: Sequence[dict[str, Any]]) -> list[Incident]:
    """Return the incidents of one run; `records` are rows of `control_events`, `alarms` and
    `losses_and_repairs` of the RECORD_KINDS, in order of time."""
    found = [*_find_outages(records), *_find_alarms(records)]
    return sorted(found, key=lambda incident: incident.at)


def _find_alarms(records: Iterable[dict[str, Any]]) -> list[Incident]:
    found: list[Incident] = []
    active: dict[str, dict[str, Incident]] = defaultdict(dict)
    for record in records:
        at, kind, node, alarm = (
            record[name] for name in ("recorded_at", "kind", "node_id", "alarm")
        )
        if kind == "alarm_raised":
            active[node][alarm] = Incident(at, "alarm", (node,), alarm=alarm)
            found.append(active[node][alarm])
        elif kind == "alarm_cleared" and alarm in active[node]:
            active[node].pop(alarm).ended_at = at
        elif kind in ("node_started", "node_stopped"):
            for incident in active.pop(node, {}).values():
                incident.ended_at = at
    return found


def count_active(
    incidents: Iterable[Incident], starts: Iterable[datetime], step: timedelta
) -> list[int]:
    """Return how many alarms were active in each period, even if only for a part of it."""
    alarms = [incident for incident in incidents if incident.kind == "alarm"]
    return [
        sum(
            each.at < start + step
            and (each.ended_at is None or each.ended_at > start or each.at >= start)
            for each in alarms
        )
        for start in starts
    ]


def _find_outages(records: Sequence[dict[str, Any]]) -> list[Incident]:
    is_stopped = _clean_stops(records)
    found: list[Incident] = []
    links: dict[tuple[str, ...], Incident] = {}
    unreachable: dict[str, tuple[Incident, set[str]]] = {}
    for record in records:
        at, kind, node, peer = (
            record[name] for name in ("recorded_at", "kind", "node_id", "peer_id")
        )
        ends = tuple(sorted((node, peer or "")))
        if kind == "gap":
            count = record["last_sequence"] - record["first_sequence"] + 1
            found.append(Incident(at, "publications lost", (record["origin_id"], node), at, count))
        elif kind == "node_unreachable" and not is_stopped(peer, at):
            if peer not in unreachable:
                unreachable[peer] = Incident(at, "node unreachable", (peer,)), set()
                found.append(unreachable[peer][0])
            unreachable[peer][1].add(node)
        elif kind == "node_reachable" and peer in unreachable:
            incident, reporters = unreachable[peer]
            reporters.discard(node)
            if not reporters:
                incident.ended_at = at
                del unreachable[peer]
        elif kind == "link_down" and peer and ends not in links:
            if not is_stopped(node, at) and not is_stopped(peer, at):
                links[ends] = Incident(at, "link down", ends)
                found.append(links[ends])
        elif kind == "link_up" and ends in links:
            links.pop(ends).ended_at = at
    return found


def _clean_stops(records: Iterable[dict[str, Any]]) -> Callable[[str, datetime], bool]:
    """Return a function that says whether a node had stopped cleanly at some time."""
    changes: dict[str, list[tuple[datetime, bool]]] = defaultdict(list)
    for record in records:
        if record["kind"] in ("node_stopped", "node_started"):
            changes[record["node_id"]].append(
                (record["recorded_at"], record["kind"] == "node_stopped")
            )

    def is_stopped(node: str, at: datetime) -> bool:
        before = [
            stops for time, stops in changes[node] if time <= (at + STOPPING if stops else at)
        ]
        return bool(before) and before[-1]

    return is_stopped
