"""Follows a topic through the forwarding tables of all nodes, hop by hop, with reasons.

Nothing is published. Each node on the path is asked what it would do with a copy; copies arrive in
the order in which they were sent. So the result is exact for a new QoS 0 publication while nothing
changes; shared subscriptions are shown as interested nodes, without the choice of one.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

import msgspec

from hansa.agent.admin.status import format_node_id
from hansa.agent.queries import QueryFailed, Question
from hansa.protocol.forwarding.trace import CopyTrace, GroupTrace, TracedCopy
from hansa.protocol.model import HOPS_MAX, GroupId, NodeId
from hansa.protocol.node import Node

HOPS_SHOWN_MAX = 2_048
"""Arrivals that one trace follows."""

FILTERS_SHOWN_MAX = 50
"""Filters in one answer."""

Ask = Callable[[NodeId, Question], Awaitable[Any]]


class _CopyQuestion(msgspec.Struct, frozen=True):
    """The question `trace` as another node sends it."""

    topic: str
    origin: NodeId
    sender: NodeId | None = None
    hops: int = 0
    target_groups: tuple[GroupId, ...] = ()
    is_new: bool = True


def trace_question(copy: TracedCopy) -> Question:
    return {"ask": "trace", **asdict(copy)}


def answer_trace(node: Node, question: Question) -> dict[str, object]:
    """Return what this node would do with a copy; raise ValueError for an invalid question."""
    try:
        asked = msgspec.convert({k: v for k, v in question.items() if k != "ask"}, _CopyQuestion)
    except msgspec.ValidationError as error:
        raise ValueError(f"trace: {error}") from error
    copy = TracedCopy(**msgspec.structs.asdict(asked))
    found = node.trace(copy)
    return {
        **asdict(found),
        "local_filters": found.local_filters[:FILTERS_SHOWN_MAX],
        "remote_filters": [asdict(each) for each in found.remote_filters[:FILTERS_SHOWN_MAX]],
    }


class _Walk:
    """One trace: the arrivals that wait, and what was found so far."""

    def __init__(
        self, topic: str, origin: NodeId, name_of: Callable[[NodeId], str], may_publish: bool
    ) -> None:
        """`may_publish`: whether the certificate of the origin allows the topic."""
        self.topic = topic
        self.may_publish = may_publish
        self.origin = origin
        self.name_of = name_of
        self.queue = deque([(origin, TracedCopy(topic, origin))])
        self.hops: list[dict[str, object]] = []
        self.delivered: dict[NodeId, None] = {}
        self.interested: dict[NodeId, list[str]] = {}
        self.stopped: dict[NodeId, str] = {}
        self._sent_towards: dict[NodeId, set[GroupId]] = {}

    def remaining(self, at: NodeId, copy: TracedCopy) -> TracedCopy | None:
        """Return the copy without the groups that the node has sent towards; None if the node
        would drop it as a duplicate."""
        seen = self._sent_towards.get(at)
        if seen is None:
            return copy
        targets = tuple(group for group in copy.target_groups if group not in seen)
        if not targets:
            return None
        return TracedCopy(copy.topic, copy.origin, copy.sender, copy.hops, targets, False)

    def add(self, at: NodeId, copy: TracedCopy, found: CopyTrace) -> None:
        """Record the decision of a node, and queue the copies that it sends."""
        if at == self.origin and copy.is_new:
            for each in found.remote_filters:
                for node in each.nodes:
                    self.interested.setdefault(node, []).append(each.filter)
        if not self.may_publish:
            found = replace(found, copies=(), unroutable=())
        towards = {group for _, groups in found.copies for group in groups}
        self._sent_towards.setdefault(at, set()).update(towards)
        is_delivered = bool(found.local_filters) and copy.is_new and copy.sender is not None
        if is_delivered:
            self.delivered[at] = None
        reasons = list(_reasons(copy, found, self.name_of))
        if not self.may_publish:
            reasons.append("not sent: the certificate of this node does not allow the topic")
        for neighbour, groups in found.copies:
            self.queue.append(
                (neighbour, TracedCopy(copy.topic, copy.origin, at, copy.hops + 1, groups))
            )
        self.hops.append(
            {
                **self._place(at, copy),
                "delivered": is_delivered,
                "duplicate": not copy.is_new,
                "reasons": reasons,
                "to": [
                    {"node": format_node_id(node), "name": self.name_of(node)}
                    for node, _ in found.copies
                ],
            }
        )

    def add_duplicate(self, at: NodeId, copy: TracedCopy) -> None:
        reasons = ["a copy has arrived before: dropped as a duplicate"]
        self.hops.append(
            {
                **self._place(at, copy),
                "delivered": False,
                "duplicate": True,
                "reasons": reasons,
                "to": [],
            }
        )

    def add_failure(self, at: NodeId, copy: TracedCopy, reason: str) -> None:
        """A node gave no answer: the walk cannot continue there."""
        self.stopped[at] = reason
        self._sent_towards.setdefault(at, set())
        self.hops.append(
            {
                **self._place(at, copy),
                "delivered": False,
                "duplicate": False,
                "reasons": [f"no answer from this node: {reason}"],
                "to": [],
            }
        )

    def _place(self, at: NodeId, copy: TracedCopy) -> dict[str, object]:
        return {
            "node": format_node_id(at),
            "name": self.name_of(at),
            "hop": copy.hops,
            "from": None if copy.sender is None else format_node_id(copy.sender),
            "from_name": None if copy.sender is None else self.name_of(copy.sender),
        }

    def document(self, reachable: Iterable[NodeId]) -> dict[str, object]:
        reached = frozenset(reachable)
        return {
            "topic": self.topic,
            "origin": format_node_id(self.origin),
            "origin_name": self.name_of(self.origin),
            "hops": self.hops,
            "delivered": [self._named(node) for node in self.delivered],
            "missed": [
                {**self._named(node), "filters": filters, "reason": self._why_missed(node, reached)}
                for node, filters in sorted(self.interested.items())
                if node not in self.delivered
            ],
            "is_complete": not self.stopped and not self.queue,
        }

    def _named(self, node: NodeId) -> dict[str, object]:
        return {"node": format_node_id(node), "name": self.name_of(node)}

    def _why_missed(self, node: NodeId, reachable: frozenset[NodeId]) -> str:
        if not self.may_publish:
            return f"{self.name_of(self.origin)} may not publish to the topic (may_publish)"
        if node not in reachable:
            return "the node is unreachable; QoS 1 and 2 are stored for it until its lease ends"
        if node in self.stopped:
            return f"the copy reaches the node, which gives no answer: {self.stopped[node]}"
        if self.stopped:
            return "unknown: a node before it gave no answer"
        if node in self._sent_towards:
            return "the copy reaches the node, but no client there subscribes any more"
        return "no copy reaches the node: the hops above show where it stops"


async def trace_topic(node: Node, ask: Ask, topic: str, origin: NodeId) -> dict[str, object]:
    """Follow a topic from an origin; `ask` asks any node, this one included."""
    known = node.membership.known
    may_publish = node.membership.rights_of(origin).allows_publishing(topic)
    walk = _Walk(topic, origin, lambda each: name_of(known, each), may_publish)
    while walk.queue and len(walk.hops) < HOPS_SHOWN_MAX:
        at, arriving = walk.queue.popleft()
        copy = walk.remaining(at, arriving)
        if copy is None:
            walk.add_duplicate(at, arriving)
            continue
        try:
            answer = await ask(at, trace_question(copy))
            walk.add(at, copy, msgspec.convert(answer, CopyTrace))
        except QueryFailed as failed:
            walk.add_failure(at, copy, str(failed))
        except msgspec.ValidationError:
            walk.add_failure(at, copy, "its answer cannot be read; does it run another version?")
    return walk.document(node.membership.reachable)


def name_of(known: Mapping[NodeId, Any], node: NodeId) -> str:
    """Return the name of a node, or its id if the name is unknown."""
    record = known.get(node)
    return record.name if record is not None and record.name else format_node_id(node)


def _reasons(copy: TracedCopy, found: CopyTrace, name_of: Callable[[NodeId], str]) -> Iterable[str]:
    if not found.is_known_sender:
        yield "the link to the node before it has closed: the tables are changing, trace again"
        return
    if copy.sender is None:
        yield from _reasons_at_origin(found)
    elif copy.is_new:
        here = ", ".join(found.local_filters)
        yield f"delivered to clients here: {here}" if here else "no client here subscribes to it"
    spread = ", ".join(name_of(node) for node, targets in found.copies if not targets)
    meshes = ", ".join(group.group for group in found.groups if group.is_member)
    if meshes and copy.is_new:
        yield f"mesh of {meshes}: {f'to {spread}' if spread else 'no other neighbour'}"
    groups = {group.id: group for group in found.groups}
    for node, target in ((node, each) for node, targets in found.copies for each in targets):
        core = groups[target].core if target in groups else None
        towards = "" if core is None else f" {name_of(core)}"
        yield (
            f"not in the mesh of {_label(groups, target)}: to {name_of(node)}, towards its"
            f" core{towards}"
        )
    is_late = copy.hops >= HOPS_MAX
    why = f"after {copy.hops} hops (hop limit)" if is_late else "this node has no route to the core"
    yield from (f"{_label(groups, target)}: dropped, {why}" for target in found.unroutable)


def _label(groups: Mapping[GroupId, GroupTrace], group: GroupId) -> str:
    return groups[group].group if group in groups else "a group that ends"


def _reasons_at_origin(found: CopyTrace) -> Iterable[str]:
    if found.local_filters:
        yield f"clients here subscribe to it too: {', '.join(found.local_filters)} (by the broker)"
    if not found.remote_filters:
        yield "no other node has a subscriber for it: the agent does not subscribe to it here"
    for each in found.remote_filters:
        if not each.is_granted:
            yield (
                f"not installed: the broker here has not granted the subscription to {each.filter},"
                " so publications that match it alone are not captured"
            )
