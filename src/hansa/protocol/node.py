"""One node: the overlay, the interest, a strategy and the forwarding plane, put together.

`handle(event, now)` applies one input and returns what must be done, in order. Parts never call one
another: this module carries what one reports to those that care, and nothing else.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from hansa.protocol.changes import CapacityChanged, Change, NewLife, Passed
from hansa.protocol.confirmation import Installation, Post
from hansa.protocol.database import SetChange
from hansa.protocol.deadlines import earliest
from hansa.protocol.effects import (
    Dropped,
    Effect,
    Ignored,
    IncarnationRaised,
    InterestInstalled,
    MemberJoined,
    MemberLost,
    NeighbourDown,
    NeighbourUp,
    Subscribe,
    Unsubscribe,
)
from hansa.protocol.events import (
    Event,
    Granted,
    InterestChanged,
    LinkClosed,
    LinkOpened,
    Published,
    Received,
    TimerFired,
)
from hansa.protocol.frames import Announce, Confirm, Confirmation, Enquire, Fetch
from hansa.protocol.frames import Any as AnyFrame
from hansa.protocol.groups import GroupIndex, group_of
from hansa.protocol.inspection import NodeView
from hansa.protocol.interest import LocalInterest, RemoteInterest
from hansa.protocol.numbering import Captured, Numbering
from hansa.protocol.overlay import Overlay
from hansa.protocol.plane import Deliveries, Outgoing, Plane
from hansa.protocol.records import ClaimsRecord, Kind
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.strategies import make_strategy
from hansa.protocol.strategies.base import Surroundings, Tell
from hansa.protocol.topics import is_filter
from hansa.protocol.viewing import view_of
from hansa.protocol.vocabulary import Group, Identity, LinkId, NodeId, Publication

__all__ = ["Identity", "Node"]


class Node:
    """The protocol at one broker."""

    def __init__(
        self, identity: Identity, settings: ProtocolSettings, epoch: int = 1, next_seq: int = 1
    ) -> None:
        """Start alone. `epoch` and `next_seq` go on where this node's journal ends."""
        self.id = identity.node
        self._settings = settings
        self._overlay = Overlay(identity, settings)
        self._local = LocalInterest(settings)
        self._remote = RemoteInterest()
        self._index = GroupIndex(settings.group_depth)
        self._strategy = make_strategy(self._surroundings())
        self._numbering = Numbering(self.id, epoch, next_seq)
        self.plane = Plane(self.id, settings, self._local.wanted, self._numbering)
        self.table = self.plane.table
        self._interest_due: float | None = None
        self._installation = Installation(self.id, settings)
        self._post = Post(settings.relay_delay)
        self._counters: Counter[str] = Counter()

    # ------------------------------------------------------------ input

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Apply one input; return orders and news, in order."""
        effects: list[Effect] = []
        match event:
            case Received(link, frame):
                if isinstance(frame, Publication):
                    return self._count(self._take_publication(link, frame))
                effects = self._receive(link, frame, now)
            case Published():
                return self._count(self.plane.publish(event, self._overlay.incarnation))
            case TimerFired():
                effects = self._fire(now)
            case LinkOpened():
                effects = self._carry(self._overlay.open(event, now), now)
            case LinkClosed(link, reason):
                effects = self._carry(self._overlay.close(link, reason, now), now)
            case InterestChanged():
                effects = self._change_interest(event, now)
            case Granted(filters):
                self._remote.grant(filters)
            case _:  # Denied
                effects = [Ignored(f"subscription denied: {event.reason}") for _ in event.filters]
        return self._count(effects + self._finish(now))

    def next_deadline(self) -> float | None:
        """When TimerFired is next due. Read it again after every input."""
        return earliest(
            self._overlay.next_deadline(),
            self._strategy.next_deadline(),
            self._interest_due,
            self._installation.next_deadline(),
            self._post.next_deadline(),
            self._local.next_deadline(self._installation.complete),
        )

    def _receive(self, link_id: LinkId, frame: AnyFrame, now: float) -> list[Effect]:
        link = self._overlay.neighbours.links.get(link_id)
        if link is None:
            return [Ignored("frame on a closed link")]
        # One at a time: what a frame changes must be carried on before the next one is read.
        ready, effects = self._overlay.neighbours.unpack(link, frame, now)
        for item in ready:
            if link_id in self._overlay.neighbours.links:  # a goodbye may have closed it
                effects += self._carry(self._overlay.take(link, item, now), now)
        return effects

    def _fire(self, now: float) -> list[Effect]:
        effects = self._carry(self._overlay.fire(now), now)
        for node in self._overlay.leases.expired(now):
            effects += self._forget(node, now)
        for node in self._installation.ask(self._overlay.graph.reachable, now):
            self._post.put(Enquire(node, self.id, 0), now)
        return effects + self._translate(self._strategy.fire(now), now)

    def _finish(self, now: float) -> list[Effect]:
        """What ends every input: announce interest, report what is in force, flush, compile."""
        effects = self._announce_interest(now)
        for node in self._remote.take_settled():
            self._confirm(node, now)
        for hop, letter in self._post.flush(self._overlay.graph.next_hop, now):
            effects += self._overlay.tell(hop, letter, now)
        effects += self._overlay.flush(now)
        self.table.update(self._strategy.take_entries())
        return effects

    def _count(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Ignored | Dropped):
                self._counters[effect.reason] += 1
        return effects

    # ------------------------------------------------------------ carrying news between the parts

    def _carry(self, outcome: Iterable[Effect | Change], now: float) -> list[Effect]:
        """Pass on what the overlay reports; keep the order."""
        effects: list[Effect] = []
        joined: list[NodeId] = []
        lost: list[NodeId] = []
        for item in outcome:
            if isinstance(item, MemberJoined):
                joined.append(item.node)
            elif isinstance(item, MemberLost):
                lost.append(item.node)
            if isinstance(item, Change):
                effects += self._carry_change(item, now)
                continue
            effects.append(item)
            if isinstance(item, NeighbourUp):
                effects += self._translate(self._strategy.neighbour_up(item.node, now), now)
            elif isinstance(item, NeighbourDown):
                effects += self._translate(self._strategy.neighbour_down(item.node, now), now)
            elif isinstance(item, IncarnationRaised):
                self._renew_installation(now)
        if joined or lost:
            effects += self._translate(self._strategy.nodes_changed(joined, lost, now), now)
            effects += self._check_installed(now)
        for node in joined:
            self._confirm(node, now)
        return effects

    def _carry_change(self, change: Change, now: float) -> list[Effect]:
        match change:
            case SetChange(kind=Kind.INTEREST):
                return self._note_interest(change, now)
            case SetChange():
                return self._note_claims(change.node, change.added, change.removed, now)
            case Passed(frame=Confirm(entries)):
                return self._take_confirmations(entries, now)
            case Passed(frame=Enquire(to, node, hops)):
                return self._take_enquiry(to, node, hops, now)
            case Passed(sender, frame):
                return self._pass(sender, frame, now)
            case NewLife(node):
                return self._void_claims(node, now)
            case CapacityChanged():
                return self._translate(self._strategy.nodes_changed((), (), now), now)
            case _:  # CostsChanged
                return self._translate(self._strategy.costs_changed(now), now)

    def _pass(self, sender: NodeId, frame: object, now: float) -> list[Effect]:
        """A frame of the strategy; an announcement may carry its core's claims."""
        effects: list[Effect] = []
        if isinstance(frame, Announce) and (claims := frame.claims) is not None:
            if claims.node in self._overlay.database.nodes:
                link = self._overlay.neighbours.by_node[sender]
                outcome = self._overlay.take_record(link, claims, now, flood=False)
                effects += self._carry(outcome, now)
            else:  # it overtook the record of its node, and nobody would send the claims again
                rows = (Kind.NODE, claims.node), (Kind.CLAIMS, claims.node)
                effects += self._overlay.tell(sender, Fetch(rows), now)
        return effects + self._translate(self._strategy.receive(sender, frame, now), now)  # type: ignore[arg-type]

    def _translate(self, outcome: Iterable[Effect | Tell], now: float) -> list[Effect]:
        """Turn what a strategy wants told into frames on links."""
        effects: list[Effect] = []
        for item in outcome:
            if isinstance(item, Tell):
                effects += self._overlay.tell(item.node, item.frame, now)
            else:
                effects.append(item)
        return effects

    def _void_claims(self, node: NodeId, now: float) -> list[Effect]:
        """A node has started anew: what its former life claimed and confirmed counts no more."""
        self._installation.doubt(node)
        database = self._overlay.database
        if database.stamp(Kind.CLAIMS, node)[0] >= database.nodes[node].incarnation:
            return []
        claims = database.names(Kind.CLAIMS, node)
        void = list(claims)
        claims.clear()
        return self._note_claims(node, (), void, now)

    def _note_claims(
        self, node: NodeId, added: Iterable[Group], removed: Iterable[Group], now: float
    ) -> list[Effect]:
        return self._translate(self._strategy.claims_changed(node, added, removed, now), now)

    # ------------------------------------------------------------ interest

    def _change_interest(self, event: InterestChanged, now: float) -> list[Effect]:
        self._overlay.know_interest(now)
        valid = tuple(name for name in event.added if is_filter(name))
        refused = self._local.change(valid, event.removed, now)
        self.table.forget_plans()
        if self._interest_due is None:
            self._interest_due = now + self._settings.change_delay
        unfit = len(event.added) - len(valid)
        reasons = ["filters_per_node_max"] * refused + ["filter out of bounds"] * unfit
        return [Ignored(reason) for reason in reasons]

    def _announce_interest(self, now: float) -> list[Effect]:
        """Announce new filters when due, withdraw old ones when nothing depends on them."""
        withdrawal = self._local.next_deadline(self._installation.complete)
        if (self._interest_due is None or now < self._interest_due) and (
            withdrawal is None or now < withdrawal
        ):
            return []
        self._interest_due = None
        added, removed = self._local.due(self._installation.complete, now)
        if not added and not removed:
            return []
        self._overlay.change_own(Kind.INTEREST, added, removed, now)
        self._renew_installation(now)
        groups = self._index.change(self.id, added, removed)
        effects = self._translate(self._strategy.interest_changed(groups, now), now)
        return effects + self._check_installed(now)

    def _note_interest(self, change: SetChange, now: float) -> list[Effect]:
        subscribe, unsubscribe = self._remote.change(
            change.node, change.added, change.removed, change.stamp
        )
        effects = _subscriptions(subscribe, unsubscribe)
        groups = self._index.change(change.node, change.added, change.removed)
        return effects + self._translate(self._strategy.interest_changed(groups, now), now)

    def _confirm(self, node: NodeId, now: float) -> None:
        """Tell a node that its interest is in force here, if it is."""
        stamp = self._remote.in_force.get(node)
        if stamp is not None:
            letter = Confirmation(node, *stamp, self.id, *self._numbering.position, 0)
            self._post.put(letter, now)

    def _take_confirmations(self, entries: tuple[Confirmation, ...], now: float) -> list[Effect]:
        for entry in entries:
            if entry.to == self.id:
                self._installation.confirm(entry.node, (entry.incarnation, entry.version))
            else:
                self._post.put(replace(entry, hops=entry.hops + 1), now)
        return self._check_installed(now)

    def _take_enquiry(self, to: NodeId, node: NodeId, hops: int, now: float) -> list[Effect]:
        if to == self.id:
            self._confirm(node, now)
        else:
            self._post.put(Enquire(to, node, hops + 1), now)
        return []

    def _renew_installation(self, now: float) -> None:
        self._installation.renew(self._overlay.database.stamp(Kind.INTEREST, self.id), now)

    def _check_installed(self, now: float) -> list[Effect]:
        done = self._installation.check(self._overlay.graph.reachable, now)
        return [InterestInstalled(self._installation.stamp[1])] if done else []

    def _forget(self, node: NodeId, now: float) -> list[Effect]:
        """A node's lease has ended: nothing of it remains."""
        filters = list(self._overlay.database.names(Kind.INTEREST, node))
        claims = list(self._overlay.database.names(Kind.CLAIMS, node))
        groups = self._index.change(node, (), filters)
        effects = _subscriptions([], self._remote.forget(node, filters))
        self._overlay.forget(node)
        self._installation.doubt(node)
        self._strategy.forget(node)
        effects += self._note_claims(node, (), claims, now)
        return effects + self._translate(self._strategy.interest_changed(groups, now), now)

    # ------------------------------------------------------------ publications

    def start(self, batch: Iterable[Captured], outgoing: Outgoing) -> list[Effect]:
        """Handle `Published` for many at once, in bytes; return what is not a frame."""
        return self._count(self.plane.start(batch, self._overlay.incarnation, outgoing))

    def pass_on(
        self,
        link_id: LinkId,
        frames: Iterator[bytes],
        outgoing: Outgoing,
        deliveries: Deliveries,
        news: list[Effect],
    ) -> bytes | None:
        """Handle `Received` for publications, in bytes; return the first frame that has to be
        decoded and handled as any other, None if there is none (see `Plane.pass_on`)."""
        link = self._overlay.neighbours.links.get(link_id)
        if link is None or link.peer is None:
            return next(frames, None)  # one by one: it may be the hello
        other = self.plane.pass_on(link_id, frames, outgoing, deliveries, news)
        self._count(news)
        return other

    def _take_publication(self, link_id: LinkId, publication: Publication) -> list[Effect]:
        link = self._overlay.neighbours.links.get(link_id)
        if link is None or link.peer is None:
            return [Ignored("publication without a neighbour")]
        return self.plane.take(link_id, publication)

    # ------------------------------------------------------------ inspection

    def view(self) -> NodeView:
        """Return this node's state as plain values."""
        links = self._overlay.neighbours.links.values()
        channels = (link.channel.waiting for link in links if link.channel)
        return view_of(
            self._overlay,
            self._strategy,
            in_force=self._remote.in_force,
            installed=self._installation.complete,
            sizes={
                "filters": len(self._local.filters),
                "groups": len(self.table),
                "nodes": len(self._overlay.database.nodes),
                "plans": self.table.plan_count,
                "unacknowledged": max(channels, default=0),
                "windows": len(self.plane.windows),
            },
            counters=self._counters,
        )

    def _surroundings(self) -> Surroundings:
        overlay = self._overlay

        def claim(added: list[Group], removed: list[Group], now: float) -> list[ClaimsRecord]:
            records = overlay.change_own(Kind.CLAIMS, added, removed, now)
            return [record for record in records if isinstance(record, ClaimsRecord)]

        def groups_of(node: NodeId) -> Iterable[Group]:
            names = overlay.database.names(Kind.INTEREST, node)
            return dict.fromkeys(group_of(name, self._settings.group_depth) for name in names)

        return Surroundings(
            node=self.id,
            settings=self._settings,
            graph=overlay.graph,
            index=self._index,
            neighbours=overlay.neighbours.by_node,
            cost=overlay.cost,
            capacity=overlay.capacity,
            incarnation=lambda: overlay.incarnation,
            claims_of=lambda node: overlay.database.names(Kind.CLAIMS, node),
            groups_of=groups_of,
            claim=claim,
        )


def _subscriptions(subscribe: list[str], unsubscribe: list[str]) -> list[Effect]:
    orders = ((Subscribe, subscribe), (Unsubscribe, unsubscribe))
    return [order(tuple(filters)) for order, filters in orders if filters]
