"""What the manager knows of a federation and does about it: joins, leaves, reports, repairs.

It keeps the present in memory and writes every change to the store before it counts. Time is an
argument. One call at a time: the lock is here, so callers may be threads.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hansa.manager.exchange import Assignment, Neighbour, Newcomer, Refused, Report
from hansa.manager.planning import changes
from hansa.manager.rows import HistoryRow, LinkRow, NodeRow, Origin, State
from hansa.manager.settings import FederationSettings, settings_of
from hansa.manager.store import Store
from hansa.topology.graph import bridges, graph_of, pair
from hansa.topology.planner import Change

log = logging.getLogger("hansa.manager")

MISSES = 2
"""Health reports in a row that do not come until a node is doubted, as in the paper."""

NODES_MAX = 4_096
"""Nodes that the manager knows, those that left included."""

PATIENCE = 3.0
"""Health intervals that a link has to come up until another is planned for it."""

CLOSING_S = 5.0
"""Seconds more until a link that the manager took away, and that is still there, counts again."""

TITLES_MAX = 20
"""Nodes that one refusal lists."""

FAILED_S = 600.0
"""Seconds that a link which did not come up is not planned again, unless nothing else connects."""


@dataclass(frozen=True, slots=True)
class _Heard:
    at: float
    report: Report


class Federation:
    """The federation as its manager sees it."""

    def __init__(self, store: Store, told: Callable[[list[HistoryRow]], None] = lambda _: None):
        """Take up what the store knows; `told` hears every change once it is written."""
        self._store = store
        self._told = told
        self._lock = threading.RLock()
        self._heard: dict[int, _Heard] = {}
        self._failed: dict[tuple[int, int], float] = {}
        self._dropped: dict[tuple[int, int], float] = {}
        self._began: float | None = None
        self._load()

    def _load(self) -> None:
        self.settings = settings_of(self._store.settings())
        self._nodes = {node.id: node for node in self._store.nodes()}
        self._links = {(link.a, link.b): link for link in self._store.links()}
        self._barred = set(self._store.barred())
        self._version = self._store.version

    # ------------------------------------------------------------ what nodes ask

    def join(self, who: Newcomer, now: float, trusted: bool = True) -> Assignment:
        """Take a node in, or back in: the same agent or the same broker keeps its id, but who is
        not trusted must know the secret that it joined with before."""
        with self._lock:
            known = self._find(who)
            if known and not trusted:
                self.require_owner(known.id, who.secret)
            if known is None and len(self._nodes) >= NODES_MAX:
                raise Refused(409, f"this manager knows {NODES_MAX} nodes, and takes no more")
            number = known.id if known else len(self._nodes)
            node = NodeRow(
                number, who.node, who.name, who.ip, who.link, who.capacity, who.tags,
                State.UP, draining=bool(known and known.draining), joined_at=now, checked_at=now,
                latency_ms=known.latency_ms if known else None,
                secret=who.secret or (known.secret if known else ""),
                announced=who.announced or not who.node,
            )  # fmt: skip
            self._heard.pop(number, None)
            if known is None or known.state is not State.UP:
                self._save([node], told=[("joined", (number,), f"{node.title} joined")], now=now)
            else:
                self._save([node], now=now)
            self._repair(now)
            return self._assignment(number)

    def _find(self, who: Newcomer) -> NodeRow | None:
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
            found = [n for n in found if n.state is not State.LEFT] or found
            if len(found) == 1:
                return found[0].id
            if found:
                raise Refused(409, f"{reference!r} is ambiguous: it names {_titles(found)}")
            known = [n for n in self._nodes.values() if n.state is not State.LEFT]
            listed = f"; there are {_titles(known)}" if names_shown and known else ""
            raise Refused(404, f"there is no node {reference!r}{listed}")

    def require_owner(self, number: int, secret: str) -> None:
        """Refuse who does not know the secret that a node joined with."""
        node = self._require(number)
        if node.secret and node.secret != secret:
            raise Refused(403, f"node {number} joined with a secret, and this is not it")

    def leave(self, number: int, now: float) -> None:
        """A node leaves for good: it is planned around at once."""
        with self._lock:
            node = self._require(number)
            if node.state is not State.LEFT:
                gone = node.changed(state=State.LEFT, draining=False)
                self._save([gone], told=[("left", (number,), f"{node.title} left")], now=now)
                self._repair(now)

    def report(self, number: int, report: Report, now: float) -> Assignment:
        """Take a node's health report; answer with whom it should be linked to."""
        with self._lock:
            node = self._require(number)
            if node.state is State.LEFT:
                raise Refused(409, f"node {number} has left; it may join again")
            self._heard[number] = _Heard(now, report)
            seen = [
                each.changed(state=State.UP, checked_at=now)
                for each in self._nodes.values()
                if each.state is State.GONE and (each is node or each.node in report.members)
            ]
            told = [("returned", (each.id,), f"{each.title} is back") for each in seen]
            self._save(seen, told=told, now=now)
            node = node.changed(state=State.UP, latency_ms=report.latency_ms, checked_at=now)
            self._save([node], self._adopted(node, now), now=now)
            if told:
                self._repair(now)
            return self._assignment(number)

    def _adopted(self, node: NodeRow, now: float) -> list[LinkRow]:
        """Return links that agents have made by themselves: they count from now on. One that was
        just taken away only has not been closed yet."""
        recent = now - PATIENCE * self.settings.health_interval - CLOSING_S
        by_agent = {each.node: each.id for each in self._up() if each.node}
        heard = self._heard[node.id].report.neighbours
        pairs = [_ids(node.id, by_agent[n]) for n in heard if by_agent.get(n, node.id) != node.id]
        return [
            LinkRow(*key, Origin.HEALED, now)
            for key in pairs
            if key not in self._links
            and key not in self._barred
            and self._dropped.get(key, recent) <= recent
        ]

    def topology(self, number: int) -> Assignment:
        """Return whom a node should be linked to."""
        with self._lock:
            self._require(number)
            return self._assignment(number)

    def _assignment(self, number: int) -> Assignment:
        me = self._nodes[number]
        others = sorted(k.a + k.b - number for k in self._counting() if number in (k.a, k.b))
        near = [
            Neighbour(other, bool(other.link) and (number > other.id or not me.link))
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
            rtts = self._round_trips()
            return [(link, key in rtts, rtts.get(key)) for key, link in sorted(self._links.items())]

    def doubted(self, now: float) -> set[int]:
        """Return the nodes that are up and have missed their reports."""
        with self._lock:
            return {node.id for node in self._up() if self._is_late(node, now)}

    def change_settings(self, values: dict[str, object], now: float) -> FederationSettings:
        """Change some settings of the federation."""
        with self._lock:
            merged = settings_of({**self._store.settings(), **values})
            self._store.save_settings(dict(values))
            self.settings = merged
            named = ", ".join(f"{name} = {value}" for name, value in sorted(values.items()))
            self._save(told=[("settings", (), named)], now=now)
            self._repair(now)
            return merged

    def drain(self, number: int, draining: bool, now: float) -> NodeRow:
        """Plan around a node that is about to leave, or take that back."""
        with self._lock:
            node = self._require(number)
            if node.state is not State.UP:
                raise Refused(409, f"node {node.title} is not up")
            kind = "draining" if draining else "kept"
            told = [(kind, (number,), f"an operator wants {node.title} {kind}")]
            self._save([node.changed(draining=draining)], told=told, now=now)
            self._repair(now)
            return self._nodes[number]

    def add_link(self, a: int, b: int, now: float) -> LinkRow:
        """Add a link that the planner must keep."""
        with self._lock:
            for number in (a, b):
                if self._require(number).state is not State.UP:
                    raise Refused(409, f"node {self._nodes[number].title} is not up")
            one, other = self._nodes[a], self._nodes[b]
            if one.is_silent != other.is_silent:
                raise Refused(
                    409,
                    f"only one of {one.title} and {other.title} is an agent: they cannot be linked",
                )
            if a == b:
                raise Refused(409, f"node {one.title} cannot be linked to itself")
            known = self._links.get(_ids(a, b))
            if known is not None and known.origin is Origin.OPERATOR:
                return known
            link = LinkRow(*_ids(a, b), Origin.OPERATOR, now)
            told = [("link added", (link.a, link.b), "an operator wants it")]
            self._save(links=[link], told=told, now=now)
            self._repair(now)
            return link

    def remove_link(self, a: int, b: int, now: float) -> None:
        """Remove a link; the planner will not add it again unless nothing else connects."""
        with self._lock:
            key = _ids(a, b)
            if key not in self._links:
                ends = " and ".join(self._require(number).title for number in key)
                raise Refused(404, f"there is no link between {ends}")
            told = [("link removed", key, "an operator wants it")]
            self._save(barred=[key], told=told, now=now)
            self._repair(now)

    def plan(self) -> list[Change]:
        """Return what would be changed now, and why."""
        with self._lock:
            return self._changes()

    # ------------------------------------------------------------ time

    def tick(self, now: float) -> None:
        """Look after everybody: who is gone, which links do not come up, what to repair."""
        with self._lock:
            if self._began is None:
                self._began = now
            for node in self._up():
                if self._is_gone(node, now):
                    gone = node.changed(state=State.GONE)
                    reason = f"{node.title} sent no report, and nobody else sees it"
                    self._save([gone], told=[("gone", (node.id,), reason)], now=now)
            self._retire_replaced(now)
            self._give_up_links(now)
            self._repair(now)

    def _retire_replaced(self, now: float) -> None:
        """A node that is gone has left for good if another agent has its address now: an agent that
        was installed again has a new id. The new node gets what the operator wanted of the old
        one: links added and links removed, unless the operator has decided about the new one."""
        owners = {node.link: node for node in self._up() if node.node and node.link}
        for old in list(self._nodes.values()):
            new = owners.get(old.link)
            if old.state is not State.GONE or not old.node or new is None:
                continue
            left = old.changed(state=State.LEFT, draining=False)
            reason = f"{new.title} replaced {old.title} at {old.link}"
            wanted = {key for key, k in self._links.items() if k.origin is Origin.OPERATOR}
            added = _moved(wanted, old.id, new.id) - self._barred
            removed = _moved(self._barred, old.id, new.id) - wanted - added
            self._save(
                [left],
                [LinkRow(*key, Origin.OPERATOR, now) for key in sorted(added)],
                barred=sorted(removed),
                told=[
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

    def _is_late(self, node: NodeRow, now: float) -> bool:
        assert node.checked_at is not None
        since = max(node.checked_at, self._began or now)  # what was missed while we were away
        return now - since > MISSES * self.settings.health_interval

    def _is_gone(self, node: NodeRow, now: float) -> bool:
        """Whether a node has missed its reports and others, who did not, do not see it either.

        If nobody reports, it is the manager that is cut off, and it must not tear anything apart.
        """
        if not self._is_late(node, now):
            return False
        fresh = self._fresh(now)
        return bool(fresh) and not any(node.node in report.members for report in fresh)

    def _fresh(self, now: float) -> list[Report]:
        limit = now - MISSES * self.settings.health_interval
        return [
            heard.report
            for number, heard in self._heard.items()
            if heard.at >= limit and self._nodes[number].state is State.UP
        ]

    def _give_up_links(self, now: float) -> None:
        """Drop what was planned and does not come up although both ends are well."""
        self._failed = {key: until for key, until in self._failed.items() if until > now}
        self._dropped = {key: at for key, at in self._dropped.items() if at > now - FAILED_S}
        patience = PATIENCE * self.settings.health_interval
        standing = self._round_trips()
        fresh = {n for n, heard in self._heard.items() if now - heard.at < patience}
        for link in self._counting():
            key = (link.a, link.b)
            late = now - self._awaited_since(link) > patience and key not in standing
            if late and fresh.issuperset(key) and link.origin is not Origin.OPERATOR:
                told = [("link removed", key, "it does not come up")]
                self._save(dropped=[key], told=told, now=now)
                self._failed[key] = now + FAILED_S

    def _repair(self, now: float) -> None:
        """Plan and do it. While something new has yet to stand, nothing that stands is removed."""
        pending = self._pending(now)
        added, dropped, told = [], [], []
        for change in self._changes():
            key = _ids(*map(int, change.link))
            if change.kind == "add":
                added.append(LinkRow(*key, Origin.PLANNED, now))
            elif pending and all(self._nodes[number].state is State.UP for number in key):
                continue
            else:
                dropped.append(key)
            told.append((f"link {change.kind.rstrip('e')}ed", key, change.reason))
        if told:
            self._save(links=added, dropped=dropped, told=told, now=now)

    def _pending(self, now: float) -> bool:
        standing = self._round_trips()
        patience = PATIENCE * self.settings.health_interval
        return any(
            key not in standing and now - self._awaited_since(link) <= patience
            for key, link in self._links.items()
        )

    def _awaited_since(self, link: LinkRow) -> float:
        """Since when a link could have come up: both ends have joined, and we have been here."""
        joined = (self._nodes[number].joined_at for number in (link.a, link.b))
        return max(link.since, self._began or link.since, *joined)

    # ------------------------------------------------------------ what the planner is told

    def _changes(self) -> list[Change]:
        return changes(
            self._nodes.values(),
            self._counting(),
            self._round_trips(),
            self._barred | self._failed.keys(),
            self.settings.degree_max,
        )

    def _counting(self) -> list[LinkRow]:
        """Return the links without those that wait for somebody who is gone."""
        states = {number: node.state for number, node in self._nodes.items()}
        return [link for link in self._links.values() if not link.waits(states)]

    def _round_trips(self) -> dict[tuple[int, int], float | None]:
        """Return the links that stand, as far as one of their ends has said; those of federators
        of the paper's kind, of which nobody says it, are taken to stand."""
        by_agent = {node.node: node.id for node in self._up() if node.node}
        silent = {node.id for node in self._up() if node.is_silent}
        found: dict[tuple[int, int], float | None] = {
            key: None for key in self._links if not silent.isdisjoint(key)
        }
        for number, heard in self._heard.items():
            for agent, rtt in heard.report.neighbours.items():
                if agent in by_agent and by_agent[agent] != number:
                    key = _ids(number, by_agent[agent])
                    found[key] = rtt if found.get(key) is None else found[key]
        return found

    def hanging(self) -> list[tuple[int, int]]:
        """Return the links whose loss would split the federation."""
        with self._lock:
            names = [str(node.id) for node in self._up()]
            found = bridges(graph_of(names, [pair(str(k.a), str(k.b)) for k in self._counting()]))
            return sorted(_ids(int(a), int(b)) for a, b in found)

    # ------------------------------------------------------------ how

    def _up(self) -> list[NodeRow]:
        return [node for node in self._nodes.values() if node.state is State.UP]

    def _require(self, number: int) -> NodeRow:
        node = self._nodes.get(number)
        if node is None:
            raise Refused(404, f"there is no node {number}")
        return node

    def _save(
        self,
        nodes: Iterable[NodeRow] = (),
        links: Iterable[LinkRow] = (),
        dropped: Iterable[tuple[int, int]] = (),
        barred: Iterable[tuple[int, int]] = (),
        *,
        told: Iterable[tuple[str, tuple[int, ...], str]] = (),
        now: float,
    ) -> None:
        nodes, links, dropped, barred = list(nodes), list(links), list(dropped), list(barred)
        rows = self._store.save(
            nodes, links, dropped, barred, [(now, kind, ids, why) for kind, ids, why in told]
        )
        self._nodes |= {node.id: node for node in nodes}
        self._links |= {(link.a, link.b): link for link in links}
        self._barred -= {(link.a, link.b) for link in links}
        self._barred |= set(barred)
        for key in (*dropped, *barred):
            self._links.pop(key, None)
            self._dropped[key] = now
        if rows:
            self._version = rows[-1].number
            self._told(rows)


def _titles(nodes: list[NodeRow]) -> str:
    """Return what to call some nodes in a sentence; of many, the first."""
    shown = ", ".join(node.title for node in nodes[:TITLES_MAX])
    more = len(nodes) - TITLES_MAX
    return f"{shown} and {more} more" if more > 0 else shown


def _ids(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)


def _moved(links: Iterable[tuple[int, int]], old: int, new: int) -> set[tuple[int, int]]:
    """Return the links of one node as links of another one."""
    return {_ids(new, a + b - old) for a, b in links if old in (a, b) and new not in (a, b)}
