"""The registry of a federation: joins, leaves, health reports, planned links.

The current state is in memory; every change is written to the store first. Time is an argument. A
lock serialises all calls, so callers may be threads. A request that cannot be fulfilled raises
RequestRefused.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hansa.manager.planning import plan_manager_changes, urgent_changes
from hansa.manager.rows import HistoryRow, LinkOrigin, LinkRow, NodeRow, NodeState
from hansa.manager.settings import FederationSettings, make_settings
from hansa.manager.store import ManagerStore
from hansa.manager.types import (
    AssignedNeighbour,
    Assignment,
    JoiningNode,
    NodeReport,
    RequestRefused,
)
from hansa.topology.graph import bridges, make_graph, make_link_pair
from hansa.topology.planner import LinkChange

log = logging.getLogger("hansa.manager")

MISSED_REPORTS_MAX = 2
"""Missed health reports in a row after which a node is suspected, as in the paper."""

NODES_MAX = 4_096
"""Limit of known nodes, including those that left."""

LINK_UP_INTERVALS_MAX = 3.0
"""Health intervals until a planned link must be established; then another one is planned."""

LINK_CLOSING_S = 5.0
"""Further seconds after which a removed link that is still reported counts as self-made."""

TITLES_MAX = 20
"""Nodes that one error lists."""

FAILED_LINK_PAUSE_S = 600.0
"""Seconds for which a link that was not established is planned only as the last resort."""


@dataclass(frozen=True, slots=True)
class _ReceivedReport:
    at: float
    report: NodeReport


class FederationRegistry:
    def __init__(
        self, store: ManagerStore, on_history: Callable[[list[HistoryRow]], None] = lambda _: None
    ):
        """Load the store; `on_history` gets every change after it is written."""
        self._store = store
        self._on_history = on_history
        self._lock = threading.RLock()
        self._reports: dict[int, _ReceivedReport] = {}
        self._failed_until: dict[tuple[int, int], float] = {}
        self._removed_at: dict[tuple[int, int], float] = {}
        self._started_at: float | None = None
        self._load()

    def _load(self) -> None:
        self.settings = make_settings(self._store.settings())
        self._nodes = {node.id: node for node in self._store.nodes()}
        self._links = {(link.a, link.b): link for link in self._store.links()}
        self._barred = set(self._store.barred())
        self._version = self._store.version

    # ------------------------------------------------------------ requests of nodes

    def join(self, joining: JoiningNode, now: float, trusted: bool = True) -> Assignment:
        """Register a node. The same agent or broker keeps its id; unless the caller is trusted, it
        must show the secret of its first join."""
        with self._lock:
            known = self._find_known(joining)
            if known and not trusted:
                self.require_owner(known.id, joining.secret)
            if known is None and len(self._nodes) >= NODES_MAX:
                raise RequestRefused(409, f"the limit of {NODES_MAX} nodes is reached")
            number = known.id if known else len(self._nodes)
            node = NodeRow(
                number, joining.node, joining.name, joining.ip, joining.link, joining.capacity,
                joining.tags,
                NodeState.UP, draining=bool(known and known.draining), joined_at=now,
                checked_at=now, latency_ms=known.latency_ms if known else None,
                secret=joining.secret or (known.secret if known else ""),
                announced=joining.announced or not joining.node,
            )  # fmt: skip
            self._reports.pop(number, None)
            if known is None or known.state is not NodeState.UP:
                self._save(
                    [node], history=[("joined", (number,), f"{node.display_name} joined")], now=now
                )
            else:
                self._save([node], now=now)
            self._apply_plan(now)
            return self._assignment(number)

    def _find_known(self, joining: JoiningNode) -> NodeRow | None:
        for node in self._nodes.values():
            if joining.node or node.node:
                same = joining.node == node.node
            else:
                same = node.ip == joining.ip if joining.ip else node.link == joining.link
            if same:
                return node
        return None

    def find(self, reference: str, names_shown: bool = True) -> int:
        """Return the number of a node given by number, name or agent's id. Nodes that left are
        ignored if another node has the name. `names_shown`: whether an error may list nodes."""
        with self._lock:
            if reference.isascii() and reference.isdigit():
                return self._require(int(reference[:20])).id
            found = [n for n in self._nodes.values() if reference and reference in (n.name, n.node)]
            found = [n for n in found if n.state is not NodeState.LEFT] or found
            if len(found) == 1:
                return found[0].id
            if found:
                raise RequestRefused(409, f"{reference!r} is ambiguous: it names {_titles(found)}")
            known = [n for n in self._nodes.values() if n.state is not NodeState.LEFT]
            listed = f"; there are {_titles(known)}" if names_shown and known else ""
            raise RequestRefused(404, f"there is no node {reference!r}{listed}")

    def agent_of(self, number: int) -> str:
        """Return the agent's id of a node, empty for a federator of the paper."""
        with self._lock:
            return self._require(number).node

    def number_of(self, agent: str) -> int:
        """Return the number of an agent that has joined, given by its id."""
        with self._lock:
            for node in self._nodes.values():
                if node.node == agent:
                    return node.id
            raise RequestRefused(404, "this node has not joined")

    def require_owner(self, number: int, secret: str) -> None:
        """Raise RequestRefused unless `secret` is the digest with which the node joined."""
        node = self._require(number)
        if node.secret and node.secret != secret:
            raise RequestRefused(403, f"node {number} joined with another secret")

    def leave(self, number: int, now: float) -> None:
        """Mark a node as left permanently, and plan around it."""
        with self._lock:
            node = self._require(number)
            if node.state is not NodeState.LEFT:
                left = node.with_changes(state=NodeState.LEFT, draining=False)
                self._save(
                    [left], history=[("left", (number,), f"{node.display_name} left")], now=now
                )
                self._apply_plan(now)

    def report(self, number: int, report: NodeReport, now: float) -> Assignment:
        """Process a health report; return the neighbours of the node."""
        with self._lock:
            node = self._require(number)
            if node.state is NodeState.LEFT:
                raise RequestRefused(409, f"node {number} has left; it may join again")
            self._reports[number] = _ReceivedReport(now, report)
            returned = [
                each.with_changes(state=NodeState.UP, checked_at=now)
                for each in self._nodes.values()
                if each.state is NodeState.GONE
                and (each is node or each.node in report.reachable_nodes)
            ]
            history = [
                ("returned", (each.id,), f"{each.display_name} is back") for each in returned
            ]
            self._save(returned, history=history, now=now)
            node = node.with_changes(
                state=NodeState.UP, latency_ms=report.latency_ms, checked_at=now
            )
            self._save([node], self._self_made_links(node, now), now=now)
            if returned:
                self._apply_plan(now)
            return self._assignment(number)

    def _self_made_links(self, node: NodeRow, now: float) -> list[LinkRow]:
        """Return reported links that were not planned: agents made them to heal a split. A link
        that was removed recently may just not be closed yet, and is left out."""
        recent = now - LINK_UP_INTERVALS_MAX * self.settings.health_interval - LINK_CLOSING_S
        by_agent = {each.node: each.id for each in self._nodes_up() if each.node}
        reported = self._reports[node.id].report.neighbours
        pairs = [
            _link_key(node.id, by_agent[n]) for n in reported if by_agent.get(n, node.id) != node.id
        ]
        return [
            LinkRow(*key, LinkOrigin.HEALED, now)
            for key in pairs
            if key not in self._links
            and key not in self._barred
            and self._removed_at.get(key, recent) <= recent
        ]

    def topology(self, number: int) -> Assignment:
        with self._lock:
            self._require(number)
            return self._assignment(number)

    def _assignment(self, number: int) -> Assignment:
        me = self._nodes[number]
        others = sorted(k.a + k.b - number for k in self._active_links() if number in (k.a, k.b))
        near = [
            AssignedNeighbour(other, bool(other.link) and (number > other.id or not me.link))
            for other in (self._nodes[each] for each in others)
        ]
        return Assignment(me, near, self._version, self.settings)

    # ------------------------------------------------------------ requests of operators

    def nodes(self) -> list[NodeRow]:
        with self._lock:
            return list(self._nodes.values())

    def links(self) -> list[tuple[LinkRow, bool, float | None]]:
        """Return all links, whether each is established, and its round trip."""
        with self._lock:
            rtts = self._established_links()
            return [(link, key in rtts, rtts.get(key)) for key, link in sorted(self._links.items())]

    def suspected(self, now: float) -> set[int]:
        """Return the nodes that are up and missed their reports."""
        with self._lock:
            return {node.id for node in self._nodes_up() if self._has_missed_reports(node, now)}

    def change_settings(self, values: dict[str, object], now: float) -> FederationSettings:
        with self._lock:
            merged = make_settings({**self._store.settings(), **values})
            self._store.save_settings(dict(values))
            self.settings = merged
            named = ", ".join(f"{name} = {value}" for name, value in sorted(values.items()))
            self._save(history=[("settings", (), named)], now=now)
            self._apply_plan(now)
            return merged

    def drain(self, number: int, draining: bool, now: float) -> NodeRow:
        """Start or end draining of a node: the planner plans around a draining node."""
        with self._lock:
            node = self._require(number)
            if node.state is not NodeState.UP:
                raise RequestRefused(409, f"node {node.display_name} is not up")
            kind = "draining" if draining else "kept"
            history = [(kind, (number,), f"an operator set {node.display_name} to {kind}")]
            self._save([node.with_changes(draining=draining)], history=history, now=now)
            self._apply_plan(now)
            return self._nodes[number]

    def add_link(self, a: int, b: int, now: float) -> LinkRow:
        """Add a link that the planner must keep."""
        with self._lock:
            for number in (a, b):
                if self._require(number).state is not NodeState.UP:
                    raise RequestRefused(409, f"node {self._nodes[number].display_name} is not up")
            one, other = self._nodes[a], self._nodes[b]
            if one.is_paper_federator != other.is_paper_federator:
                names = f"{one.display_name} and {other.display_name}"
                reason = f"only one of {names} is an agent: they cannot be linked"
                raise RequestRefused(409, reason)
            if a == b:
                raise RequestRefused(409, f"node {one.display_name} cannot be linked to itself")
            known = self._links.get(_link_key(a, b))
            if known is not None and known.origin is LinkOrigin.OPERATOR:
                return known
            link = LinkRow(*_link_key(a, b), LinkOrigin.OPERATOR, now)
            history = [("link added", (link.a, link.b), "by an operator")]
            self._save(links=[link], history=history, now=now)
            self._apply_plan(now)
            return link

    def remove_link(self, a: int, b: int, now: float) -> None:
        """Remove a link; the planner adds it again only if no other path connects its ends."""
        with self._lock:
            key = _link_key(a, b)
            if key not in self._links:
                ends = " and ".join(self._require(number).display_name for number in key)
                raise RequestRefused(404, f"there is no link between {ends}")
            history = [("link removed", key, "by an operator")]
            self._save(barred=[key], history=history, now=now)
            self._apply_plan(now)

    def plan(self) -> list[LinkChange]:
        """Return the changes that the planner would make now."""
        with self._lock:
            return self._changes()

    def apply_change(self, kind: str, a: int, b: int, now: float) -> None:
        """Make a change of the plan that an operator has approved."""
        with self._lock:
            key = _link_key(a, b)
            found = [
                change
                for change in self._changes()
                if (change.kind, _link_key(*map(int, change.link))) == (kind, key)
            ]
            if not found:
                raise RequestRefused(409, "this change is no longer in the plan; look again")
            if kind == "remove" and self._has_pending_links(now):
                raise RequestRefused(409, "new links are not established yet; try again later")
            self._make_changes(found, now)

    # ------------------------------------------------------------ time

    def tick(self, now: float) -> None:
        """Detect nodes that are gone and links that failed, and apply the plan."""
        with self._lock:
            if self._started_at is None:
                self._started_at = now
            for node in self._nodes_up():
                if self._is_gone(node, now):
                    gone = node.with_changes(state=NodeState.GONE)
                    reason = f"{node.display_name} sent no report, and no other node reaches it"
                    self._save([gone], history=[("gone", (node.id,), reason)], now=now)
            self._retire_replaced(now)
            self._remove_failed_links(now)
            self._apply_plan(now)

    def _retire_replaced(self, now: float) -> None:
        """Mark a node that is gone as left if another agent has its address: a reinstalled agent
        has a new id. The new node inherits links that the operator added to or removed from the
        old one, unless the operator has decided otherwise for the new one."""
        owners = {node.link: node for node in self._nodes_up() if node.node and node.link}
        for old in list(self._nodes.values()):
            new = owners.get(old.link)
            if old.state is not NodeState.GONE or not old.node or new is None:
                continue
            left = old.with_changes(state=NodeState.LEFT, draining=False)
            reason = f"{new.display_name} replaced {old.display_name} at {old.link}"
            pinned = {key for key, k in self._links.items() if k.origin is LinkOrigin.OPERATOR}
            added = _moved(pinned, old.id, new.id) - self._barred
            removed = _moved(self._barred, old.id, new.id) - pinned - added
            self._save(
                [left],
                [LinkRow(*key, LinkOrigin.OPERATOR, now) for key in sorted(added)],
                barred=sorted(removed),
                history=[
                    ("left", (old.id,), reason),
                    *(("link added", key, reason) for key in sorted(added - pinned)),
                    *(("link removed", key, reason) for key in sorted(removed - self._barred)),
                ],
                now=now,
            )
            log.info(
                "node replaced old=%d new=%d name=%r address=%s links_added=%d links_removed=%d",
                old.id, new.id, new.name, old.link, len(added), len(removed),
            )  # fmt: skip

    def _has_missed_reports(self, node: NodeRow, now: float) -> bool:
        assert node.checked_at is not None
        # Reports missed while the manager was down do not count.
        since = max(node.checked_at, self._started_at or now)
        return now - since > MISSED_REPORTS_MAX * self.settings.health_interval

    def _is_gone(self, node: NodeRow, now: float) -> bool:
        """Whether a node missed its reports and no reporting node can reach it.

        If no node reports, the manager itself is disconnected, and no node counts as gone.
        """
        if not self._has_missed_reports(node, now):
            return False
        fresh = self._recent_reports(now)
        return bool(fresh) and not any(node.node in report.reachable_nodes for report in fresh)

    def _recent_reports(self, now: float) -> list[NodeReport]:
        limit = now - MISSED_REPORTS_MAX * self.settings.health_interval
        return [
            received.report
            for number, received in self._reports.items()
            if received.at >= limit and self._nodes[number].state is NodeState.UP
        ]

    def _remove_failed_links(self, now: float) -> None:
        """Remove planned links that are not established although both ends report."""
        self._failed_until = {
            key: until for key, until in self._failed_until.items() if until > now
        }
        self._removed_at = {
            key: at for key, at in self._removed_at.items() if at > now - FAILED_LINK_PAUSE_S
        }
        timeout_s = LINK_UP_INTERVALS_MAX * self.settings.health_interval
        established = self._established_links()
        reporting = {n for n, received in self._reports.items() if now - received.at < timeout_s}
        for link in self._active_links():
            key = (link.a, link.b)
            late = now - self._awaited_since(link) > timeout_s and key not in established
            if late and reporting.issuperset(key) and link.origin is not LinkOrigin.OPERATOR:
                history = [("link removed", key, "it was not established")]
                self._save(dropped=[key], history=history, now=now)
                self._failed_until[key] = now + FAILED_LINK_PAUSE_S

    def _apply_plan(self, now: float) -> None:
        """Apply the plan, or what needs no approval of it. While new links are pending, no
        established link is removed."""
        pending = self._has_pending_links(now)
        changes = self._changes()
        if self.settings.approval:
            changes = urgent_changes(changes, self._nodes.values(), self._active_links())
        self._make_changes(
            [
                change
                for change in changes
                if not (pending and change.kind == "remove" and self._are_up(change))
            ],
            now,
        )

    def _are_up(self, change: LinkChange) -> bool:
        return all(self._nodes[int(number)].state is NodeState.UP for number in change.link)

    def _make_changes(self, changes: Iterable[LinkChange], now: float) -> None:
        added, dropped, history = [], [], []
        for change in changes:
            key = _link_key(*map(int, change.link))
            if change.kind == "add":
                added.append(LinkRow(*key, LinkOrigin.PLANNED, now))
            else:
                dropped.append(key)
            history.append((f"link {change.kind.rstrip('e')}ed", key, change.reason))
        if history:
            self._save(links=added, dropped=dropped, history=history, now=now)

    def _has_pending_links(self, now: float) -> bool:
        established = self._established_links()
        timeout_s = LINK_UP_INTERVALS_MAX * self.settings.health_interval
        return any(
            key not in established and now - self._awaited_since(link) <= timeout_s
            for key, link in self._links.items()
        )

    def _awaited_since(self, link: LinkRow) -> float:
        """Time since which a link could be established: both ends joined, the manager running."""
        joined = (self._nodes[number].joined_at for number in (link.a, link.b))
        return max(link.since, self._started_at or link.since, *joined)

    # ------------------------------------------------------------ input of the planner

    def _changes(self) -> list[LinkChange]:
        return plan_manager_changes(
            self._nodes.values(),
            self._active_links(),
            self._established_links(),
            self._barred | self._failed_until.keys(),
            self.settings.degree_max,
        )

    def _active_links(self) -> list[LinkRow]:
        """Return the links except those that wait for a node that is gone."""
        states = {number: node.state for number, node in self._nodes.items()}
        return [link for link in self._links.values() if not link.is_waiting_for_node(states)]

    def _established_links(self) -> dict[tuple[int, int], float | None]:
        """Return the links that one end reports, with round trips. Federators of the paper do not
        report links; theirs count as established."""
        by_agent = {node.node: node.id for node in self._nodes_up() if node.node}
        not_reporting = {node.id for node in self._nodes_up() if node.is_paper_federator}
        found: dict[tuple[int, int], float | None] = {
            key: None for key in self._links if not not_reporting.isdisjoint(key)
        }
        for number, received in self._reports.items():
            for agent, rtt in received.report.neighbours.items():
                if agent in by_agent and by_agent[agent] != number:
                    key = _link_key(number, by_agent[agent])
                    found[key] = rtt if found.get(key) is None else found[key]
        return found

    def bridge_links(self) -> list[tuple[int, int]]:
        """Return the links whose loss would split the federation."""
        with self._lock:
            names = [str(node.id) for node in self._nodes_up()]
            found = bridges(
                make_graph(
                    names, [make_link_pair(str(k.a), str(k.b)) for k in self._active_links()]
                )
            )
            return sorted(_link_key(int(a), int(b)) for a, b in found)

    # ------------------------------------------------------------ state

    def _nodes_up(self) -> list[NodeRow]:
        return [node for node in self._nodes.values() if node.state is NodeState.UP]

    def _require(self, number: int) -> NodeRow:
        node = self._nodes.get(number)
        if node is None:
            raise RequestRefused(404, f"there is no node {number}")
        return node

    def _save(
        self,
        nodes: Iterable[NodeRow] = (),
        links: Iterable[LinkRow] = (),
        dropped: Iterable[tuple[int, int]] = (),
        barred: Iterable[tuple[int, int]] = (),
        *,
        history: Iterable[tuple[str, tuple[int, ...], str]] = (),
        now: float,
    ) -> None:
        nodes, links, dropped, barred = list(nodes), list(links), list(dropped), list(barred)
        rows = self._store.save(
            nodes, links, dropped, barred, [(now, kind, ids, why) for kind, ids, why in history]
        )
        self._nodes |= {node.id: node for node in nodes}
        self._links |= {(link.a, link.b): link for link in links}
        self._barred -= {(link.a, link.b) for link in links}
        self._barred |= set(barred)
        for key in (*dropped, *barred):
            self._links.pop(key, None)
            self._removed_at[key] = now
        if rows:
            self._version = rows[-1].number
            self._on_history(rows)


def _titles(nodes: list[NodeRow]) -> str:
    """Return the names of nodes for a sentence, at most TITLES_MAX."""
    shown = ", ".join(node.display_name for node in nodes[:TITLES_MAX])
    more = len(nodes) - TITLES_MAX
    return f"{shown} and {more} more" if more > 0 else shown


def _link_key(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)


def _moved(links: Iterable[tuple[int, int]], old: int, new: int) -> set[tuple[int, int]]:
    """Return the links of the node `old` as links of the node `new`."""
    return {_link_key(new, a + b - old) for a, b in links if old in (a, b) and new not in (a, b)}
