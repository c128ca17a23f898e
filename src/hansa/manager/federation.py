"""What the manager knows of a federation and does about it: joins, leaves, reports, repairs.

It keeps the present in memory and writes every change to the store before it counts. Time is an
argument. One call at a time: the lock is here, so callers may be threads.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hansa.manager.exchange import (
    AssignedNeighbour,
    Assignment,
    JoiningNode,
    NodeReport,
    RequestRefused,
)
from hansa.manager.planning import plan_manager_changes
from hansa.manager.rows import HistoryRow, LinkOrigin, LinkRow, NodeRow, NodeState
from hansa.manager.settings import FederationSettings, make_settings
from hansa.manager.store import ManagerStore
from hansa.topology.graph import bridges, make_graph, make_link_pair
from hansa.topology.planner import LinkChange

log = logging.getLogger("hansa.manager")

MISSED_REPORTS_MAX = 2
"""Health reports in a row that do not come until a node is doubted, as in the paper."""

NODES_MAX = 4_096
"""Nodes that the manager knows, those that left included."""

LINK_UP_INTERVALS_MAX = 3.0
"""Health intervals that a link has to come up until another is planned for it."""

LINK_CLOSING_S = 5.0
"""Seconds more until a link that the manager took away, and that is still there, counts again."""

TITLES_MAX = 20
"""Nodes that one refusal lists."""

FAILED_LINK_PAUSE_S = 600.0
"""Seconds that a link which did not come up is not planned again, unless nothing else connects."""


@dataclass(frozen=True, slots=True)
class _ReceivedReport:
    at: float
    report: NodeReport


class FederationRegistry:
    """The federation as its manager sees it."""

    def __init__(
        self, store: ManagerStore, on_history: Callable[[list[HistoryRow]], None] = lambda _: None
    ):
        """Take up what the store knows; `told` hears every change once it is written."""
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

    # ------------------------------------------------------------ what nodes ask

    def join(self, who: JoiningNode, now: float, trusted: bool = True) -> Assignment:
        """Take a node in, or back in: the same agent or the same broker keeps its id, but who is
        not trusted must know the secret that it joined with before."""
        with self._lock:
            known = self._find_known(who)
            if known and not trusted:
                self.require_owner(known.id, who.secret)
            if known is None and len(self._nodes) >= NODES_MAX:
                raise RequestRefused(
                    409, f"this manager knows {NODES_MAX} nodes, and takes no more"
                )
            number = known.id if known else len(self._nodes)
            node = NodeRow(
                number, who.node, who.name, who.ip, who.link, who.capacity, who.tags,
                NodeState.UP, draining=bool(known and known.draining), joined_at=now,
                checked_at=now, latency_ms=known.latency_ms if known else None,
                secret=who.secret or (known.secret if known else ""),
                announced=who.announced or not who.node,
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

    def _find_known(self, who: JoiningNode) -> NodeRow | None:
        for node in self._nodes.values():
            if who.node or node.node:
                same = who.node == node.node
            else:
                same = node.ip == who.ip if who.ip else node.link == who.link
            if same:
                return node
        return None

    def find(self, reference: str, names_shown: bool = True) -> int:
        """Return the number of a node. Digits are its number, any other text its name or its
        agent's id; of nodes with the same name, those that have left do not count. `names_shown`:
        whether a refusal may list other nodes."""
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

    def require_owner(self, number: int, secret: str) -> None:
        """Refuse who does not know the secret that a node joined with."""
        node = self._require(number)
        if node.secret and node.secret != secret:
            raise RequestRefused(403, f"node {number} joined with a secret, and this is not it")

    def leave(self, number: int, now: float) -> None:
        """A node leaves for good: it is planned around at once."""
        with self._lock:
            node = self._require(number)
            if node.state is not NodeState.LEFT:
                gone = node.with_changes(state=NodeState.LEFT, draining=False)
                self._save(
                    [gone], history=[("left", (number,), f"{node.display_name} left")], now=now
                )
                self._apply_plan(now)

    def report(self, number: int, report: NodeReport, now: float) -> Assignment:
        """Take a node's health report; answer with whom it should be linked to."""
        with self._lock:
            node = self._require(number)
            if node.state is NodeState.LEFT:
                raise RequestRefused(409, f"node {number} has left; it may join again")
            self._reports[number] = _ReceivedReport(now, report)
            seen = [
                each.with_changes(state=NodeState.UP, checked_at=now)
                for each in self._nodes.values()
                if each.state is NodeState.GONE and (each is node or each.node in report.members)
            ]
            told = [("returned", (each.id,), f"{each.display_name} is back") for each in seen]
            self._save(seen, history=told, now=now)
            node = node.with_changes(
                state=NodeState.UP, latency_ms=report.latency_ms, checked_at=now
            )
            self._save([node], self._self_made_links(node, now), now=now)
            if told:
                self._apply_plan(now)
            return self._assignment(number)

    def _self_made_links(self, node: NodeRow, now: float) -> list[LinkRow]:
        """Return links that agents have made by themselves: they count from now on. One that was
        just taken away only has not been closed yet."""
        recent = now - LINK_UP_INTERVALS_MAX * self.settings.health_interval - LINK_CLOSING_S
        by_agent = {each.node: each.id for each in self._nodes_up() if each.node}
        heard = self._reports[node.id].report.neighbours
        pairs = [
            _link_key(node.id, by_agent[n]) for n in heard if by_agent.get(n, node.id) != node.id
        ]
        return [
            LinkRow(*key, LinkOrigin.HEALED, now)
            for key in pairs
            if key not in self._links
            and key not in self._barred
            and self._removed_at.get(key, recent) <= recent
        ]

    def topology(self, number: int) -> Assignment:
        """Return whom a node should be linked to."""
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

    # ------------------------------------------------------------ what operators ask

    def nodes(self) -> list[NodeRow]:
        """Return all nodes."""
        with self._lock:
            return list(self._nodes.values())

    def links(self) -> list[tuple[LinkRow, bool, float | None]]:
        """Return the links that should be; whether each stands, and its round trip."""
        with self._lock:
            rtts = self._established_links()
            return [(link, key in rtts, rtts.get(key)) for key, link in sorted(self._links.items())]

    def suspected(self, now: float) -> set[int]:
        """Return the nodes that are up and have missed their reports."""
        with self._lock:
            return {node.id for node in self._nodes_up() if self._has_missed_reports(node, now)}

    def change_settings(self, values: dict[str, object], now: float) -> FederationSettings:
        """Change some settings of the federation."""
        with self._lock:
            merged = make_settings({**self._store.settings(), **values})
            self._store.save_settings(dict(values))
            self.settings = merged
            named = ", ".join(f"{name} = {value}" for name, value in sorted(values.items()))
            self._save(history=[("settings", (), named)], now=now)
            self._apply_plan(now)
            return merged

    def drain(self, number: int, draining: bool, now: float) -> NodeRow:
        """Plan around a node that is about to leave, or take that back."""
        with self._lock:
            node = self._require(number)
            if node.state is not NodeState.UP:
                raise RequestRefused(409, f"node {node.display_name} is not up")
            kind = "draining" if draining else "kept"
            told = [(kind, (number,), f"an operator wants {node.display_name} {kind}")]
            self._save([node.with_changes(draining=draining)], history=told, now=now)
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
            told = [("link added", (link.a, link.b), "an operator wants it")]
            self._save(links=[link], history=told, now=now)
            self._apply_plan(now)
            return link

    def remove_link(self, a: int, b: int, now: float) -> None:
        """Remove a link; the planner will not add it again unless nothing else connects."""
        with self._lock:
            key = _link_key(a, b)
            if key not in self._links:
                ends = " and ".join(self._require(number).display_name for number in key)
                raise RequestRefused(404, f"there is no link between {ends}")
            told = [("link removed", key, "an operator wants it")]
            self._save(barred=[key], history=told, now=now)
            self._apply_plan(now)

    def plan(self) -> list[LinkChange]:
        """Return what would be changed now, and why."""
        with self._lock:
            return self._changes()

    # ------------------------------------------------------------ time

    def tick(self, now: float) -> None:
        """Look after everybody: who is gone, which links do not come up, what to repair."""
        with self._lock:
            if self._started_at is None:
                self._started_at = now
            for node in self._nodes_up():
                if self._is_gone(node, now):
                    gone = node.with_changes(state=NodeState.GONE)
                    reason = f"{node.display_name} sent no report, and nobody else sees it"
                    self._save([gone], history=[("gone", (node.id,), reason)], now=now)
            self._retire_replaced(now)
            self._remove_failed_links(now)
            self._apply_plan(now)

    def _retire_replaced(self, now: float) -> None:
        """A node that is gone has left for good if another agent has its address now: an agent that
        was installed again has a new id. The new node gets what the operator wanted of the old
        one: links added and links removed, unless the operator has decided about the new one."""
        owners = {node.link: node for node in self._nodes_up() if node.node and node.link}
        for old in list(self._nodes.values()):
            new = owners.get(old.link)
            if old.state is not NodeState.GONE or not old.node or new is None:
                continue
            left = old.with_changes(state=NodeState.LEFT, draining=False)
            reason = f"{new.display_name} replaced {old.display_name} at {old.link}"
            wanted = {key for key, k in self._links.items() if k.origin is LinkOrigin.OPERATOR}
            added = _moved(wanted, old.id, new.id) - self._barred
            removed = _moved(self._barred, old.id, new.id) - wanted - added
            self._save(
                [left],
                [LinkRow(*key, LinkOrigin.OPERATOR, now) for key in sorted(added)],
                barred=sorted(removed),
                history=[
                    ("left", (old.id,), reason),
                    *(("link added", key, reason) for key in sorted(added - wanted)),
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
        since = max(node.checked_at, self._started_at or now)  # what was missed while we were away
        return now - since > MISSED_REPORTS_MAX * self.settings.health_interval

    def _is_gone(self, node: NodeRow, now: float) -> bool:
        """Whether a node has missed its reports and others, who did not, do not see it either.

        If nobody reports, it is the manager that is cut off, and it must not tear anything apart.
        """
        if not self._has_missed_reports(node, now):
            return False
        fresh = self._recent_reports(now)
        return bool(fresh) and not any(node.node in report.members for report in fresh)

    def _recent_reports(self, now: float) -> list[NodeReport]:
        limit = now - MISSED_REPORTS_MAX * self.settings.health_interval
        return [
            heard.report
            for number, heard in self._reports.items()
            if heard.at >= limit and self._nodes[number].state is NodeState.UP
        ]

    def _remove_failed_links(self, now: float) -> None:
        """Drop what was planned and does not come up although both ends are well."""
        self._failed_until = {
            key: until for key, until in self._failed_until.items() if until > now
        }
        self._removed_at = {
            key: at for key, at in self._removed_at.items() if at > now - FAILED_LINK_PAUSE_S
        }
        patience = LINK_UP_INTERVALS_MAX * self.settings.health_interval
        standing = self._established_links()
        fresh = {n for n, heard in self._reports.items() if now - heard.at < patience}
        for link in self._active_links():
            key = (link.a, link.b)
            late = now - self._awaited_since(link) > patience and key not in standing
            if late and fresh.issuperset(key) and link.origin is not LinkOrigin.OPERATOR:
                told = [("link removed", key, "it does not come up")]
                self._save(dropped=[key], history=told, now=now)
                self._failed_until[key] = now + FAILED_LINK_PAUSE_S

    def _apply_plan(self, now: float) -> None:
        """Plan and do it. While something new has yet to stand, nothing that stands is removed."""
        pending = self._has_pending_links(now)
        added, dropped, told = [], [], []
        for change in self._changes():
            key = _link_key(*map(int, change.link))
            if change.kind == "add":
                added.append(LinkRow(*key, LinkOrigin.PLANNED, now))
            elif pending and all(self._nodes[number].state is NodeState.UP for number in key):
                continue
            else:
                dropped.append(key)
            told.append((f"link {change.kind.rstrip('e')}ed", key, change.reason))
        if told:
            self._save(links=added, dropped=dropped, history=told, now=now)

    def _has_pending_links(self, now: float) -> bool:
        standing = self._established_links()
        patience = LINK_UP_INTERVALS_MAX * self.settings.health_interval
        return any(
            key not in standing and now - self._awaited_since(link) <= patience
            for key, link in self._links.items()
        )

    def _awaited_since(self, link: LinkRow) -> float:
        """Since when a link could have come up: both ends have joined, and we have been here."""
        joined = (self._nodes[number].joined_at for number in (link.a, link.b))
        return max(link.since, self._started_at or link.since, *joined)

    # ------------------------------------------------------------ what the planner is told

    def _changes(self) -> list[LinkChange]:
        return plan_manager_changes(
            self._nodes.values(),
            self._active_links(),
            self._established_links(),
            self._barred | self._failed_until.keys(),
            self.settings.degree_max,
        )

    def _active_links(self) -> list[LinkRow]:
        """Return the links without those that wait for somebody who is gone."""
        states = {number: node.state for number, node in self._nodes.items()}
        return [link for link in self._links.values() if not link.is_waiting_for_node(states)]

    def _established_links(self) -> dict[tuple[int, int], float | None]:
        """Return the links that stand, as far as one of their ends has said; those of federators
        of the paper's kind, of which nobody says it, are taken to stand."""
        by_agent = {node.node: node.id for node in self._nodes_up() if node.node}
        silent = {node.id for node in self._nodes_up() if node.is_paper_federator}
        found: dict[tuple[int, int], float | None] = {
            key: None for key in self._links if not silent.isdisjoint(key)
        }
        for number, heard in self._reports.items():
            for agent, rtt in heard.report.neighbours.items():
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

    # ------------------------------------------------------------ how

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
    """Return what to call some nodes in a sentence; of many, the first."""
    shown = ", ".join(node.display_name for node in nodes[:TITLES_MAX])
    more = len(nodes) - TITLES_MAX
    return f"{shown} and {more} more" if more > 0 else shown


def _link_key(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)


def _moved(links: Iterable[tuple[int, int]], old: int, new: int) -> set[tuple[int, int]]:
    """Return the links of one node as links of another one."""
    return {_link_key(new, a + b - old) for a, b in links if old in (a, b) and new not in (a, b)}
