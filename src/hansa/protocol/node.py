"""One node: the overlay, the interest, a strategy and the forwarding plane, put together.

`handle(event, now)` applies one input and returns what must be done, in order. Parts never call one
another: this module carries what one reports to those that care, and nothing else.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from hansa.protocol.changes import CHANGES, CapacityChanged, Change, NewLife, Passed
from hansa.protocol.confirmation import Confirmations
from hansa.protocol.custody import Custody, Remembered
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
    Remember,
)
from hansa.protocol.events import (
    Denied,
    Event,
    FromDisk,
    Granted,
    InterestChanged,
    LinkClosed,
    LinkOpened,
    Noted,
    Published,
    Received,
    Restored,
    TimerFired,
)
from hansa.protocol.forwarding import Table
from hansa.protocol.frames import LETTERS, Announce, Confirm, Enquire, Fetch, Letter
from hansa.protocol.frames import Any as AnyFrame
from hansa.protocol.groups import GroupIndex
from hansa.protocol.inspection import NodeView
from hansa.protocol.interest import LocalInterest, RemoteInterest, subscriptions
from hansa.protocol.numbering import Captured
from hansa.protocol.overlay import Overlay
from hansa.protocol.plane import Deliveries, Outgoing, Plane
from hansa.protocol.records import Kind, Record
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.sharing import Turns
from hansa.protocol.strategies import make_strategy
from hansa.protocol.strategies.base import Tell, surroundings_of
from hansa.protocol.topics import is_filter
from hansa.protocol.viewing import Chart, sizes_of, view_of
from hansa.protocol.vocabulary import Group, LinkId, NodeId, Publication
from hansa.protocol.vocabulary import Identity as Identity


class Node:
    """The protocol at one broker."""

    def __init__(
        self, identity: Identity, settings: ProtocolSettings, past: Remembered | None = None
    ) -> None:
        """Start alone. Without a past there is no disk, and nothing waits to be remembered."""
        self.id = identity.node
        self._settings = settings
        self._overlay = Overlay(identity, settings)
        self.chart = Chart(self._overlay)
        self._local = LocalInterest(settings)
        self.remote = RemoteInterest(durable=past is not None)
        self._index = GroupIndex(settings.group_depth)
        self._strategy = make_strategy(surroundings_of(self._overlay, self._index, settings))
        past = past or Remembered(epoch=identity.incarnation)  # a journal for each life
        remote, nodes, wants = self.remote, self._overlay.database.nodes, self._local.wants_plainly
        self.table = Table(self._local.wanted, settings.plans_max, self._strategy.take_entries)
        self.custody = Custody(self.id, settings, wants, remote.receivers, past, nodes)
        has_share, graph = self._local.filters.__contains__, self._overlay.graph
        turns = Turns(remote.audience, has_share, lambda: graph.reachable)
        self.plane = Plane(self.id, settings, self.table, self.custody, turns, nodes)
        self._interest_due: float | None = None
        self._strategy_due = self._strategy.next_deadline()
        self.confirmations = Confirmations(self.id, settings, remote.in_force, self.custody.outbox)
        self.counters: Counter[str] = Counter()

    # ------------------------------------------------------------ input

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Apply one input; return orders and news, in order."""
        effects: list[Effect] = []
        self.custody.retained.tell_time(self._overlay.incarnation, now)
        match event:
            case Received(link, frame):
                if isinstance(frame, Publication):
                    return self._count(self._take_publication(link, frame, now))
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
                effects = self.custody.retained.granted(self.remote.grant(filters))
            case Denied():
                effects = [Ignored(f"subscription denied: {event.reason}") for _ in event.filters]
            case _:
                effects = self._use_disk(event, now)
        self._finish(effects, now)
        return self._count(effects)

    def next_deadline(self) -> float | None:
        """When TimerFired is next due. Read it again after every input."""
        return earliest(
            self._overlay.next_deadline(),
            self._strategy_due,
            self._interest_due,
            self.confirmations.next_deadline(),
            self.custody.next_deadline(),
            self._local.next_deadline(self.confirmations.complete),
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
        self.confirmations.ask(self._overlay.graph.reachable, now)
        effects += self._write(self.custody.fire(now), now)
        if self._strategy_due is not None and now >= self._strategy_due:
            effects += self._translate(self._strategy.fire(now), now)
        return effects

    def _finish(self, effects: list[Effect], now: float) -> None:
        """What ends every input: announce interest, report what is in force, flush."""
        if self._interest_due is not None or self._local.leaving:
            effects += self._announce_interest(now)
        if self.remote.unsaved:
            effects += [Remember(number, node) for number, node in self.remote.take_unsaved()]
        for node in self.remote.take_settled() if self.remote.settled else ():
            self.confirmations.confirm(node, now)
            self.custody.retained.offer(node)
        letters, dropped = self.confirmations.flush(self._overlay.graph.next_hop, now)
        for to, letter in letters:
            effects += self._overlay.tell(to, letter, now)
        effects += [*dropped, *self._overlay.flush(now)]
        self.table.outdate(self._strategy.entries_waiting())

    def _count(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, (Ignored, Dropped)):
                self.counters[effect.reason] += 1
        return effects

    # ------------------------------------------------------------ carrying news between the parts

    def _carry(self, outcome: Iterable[Effect | Change], now: float) -> list[Effect]:
        """Pass on what the overlay reports; keep the order."""
        effects: list[Effect] = []
        joined: list[NodeId] = []
        lost: list[NodeId] = []
        for item in outcome:
            if isinstance(item, CHANGES):
                effects += self._carry_change(item, now)
                continue
            effects.append(item)
            if isinstance(item, MemberJoined):
                joined.append(item.node)
            elif isinstance(item, MemberLost):
                lost.append(item.node)
            elif isinstance(item, NeighbourUp):
                effects += self._translate(self._strategy.neighbour_up(item.node, now), now)
            elif isinstance(item, NeighbourDown):
                effects += self._translate(self._strategy.neighbour_down(item.node, now), now)
            elif isinstance(item, IncarnationRaised):
                self._renew_installation(now)
        if joined or lost:
            effects += self._translate(self._strategy.nodes_changed(joined, lost, now), now)
            effects += self._check_installed(now)
        for node in joined:
            self.confirmations.confirm(node, now)
            self.custody.joined(node, now)
        return effects

    def _carry_change(self, change: Change, now: float) -> list[Effect]:
        match change:
            case SetChange(kind=Kind.INTEREST):
                return self._note_interest(change, now)
            case SetChange():
                return self._note_claims(change.node, change.added, change.removed, now)
            case Passed(frame=Confirm(entries)):
                return self._check_installed(now) if self.confirmations.take(entries, now) else []
            case Passed(frame=Enquire() as enquiry):
                self.confirmations.answer(enquiry, now)
                return []
            case Passed(frame=frame) if isinstance(frame, LETTERS):
                outcome = self.custody.receive(frame, self._overlay.incarnation, now)
                return self._write(outcome, now)
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
        """Turn what a strategy wants told into frames on links, after each call of it."""
        effects: list[Effect] = []
        for item in outcome:
            if isinstance(item, Tell):
                effects += self._overlay.tell(item.node, item.frame, now)
            else:
                effects.append(item)
        self._strategy_due = self._strategy.next_deadline()
        return effects

    def _void_claims(self, node: NodeId, now: float) -> list[Effect]:
        """A node has started anew: what its former life claimed and confirmed counts no more."""
        self.confirmations.doubt(node)
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
        valid = tuple(name for name in event.added if is_filter(name))
        refused = self._local.change(valid, event.removed, now)
        self.table.forget_plans()
        self._interest_due = earliest(self._interest_due, now + self._settings.change_delay)
        unfit = len(event.added) - len(valid)
        reasons = ["filters_per_node_max"] * refused + ["filter out of bounds"] * unfit
        return [Ignored(reason) for reason in reasons]

    def _announce_interest(self, now: float) -> list[Effect]:
        """Announce new filters when due, withdraw old ones when nothing depends on them."""
        due = earliest(self._interest_due, self._local.next_deadline(self.confirmations.complete))
        if due is None or now < due:
            return []
        self._interest_due = None
        added, removed = self._local.due(self.confirmations.complete, now)
        if added or removed:
            self._overlay.change_own(Kind.INTEREST, added, removed, now)
        self._overlay.know_interest(now)
        if not added and not removed:
            return []
        self._renew_installation(now)
        self.custody.retained.left(removed)
        groups = self._index.change(self.id, added, removed)
        effects = self._translate(self._strategy.interest_changed(groups, now), now)
        return effects + self._check_installed(now)

    def _note_interest(self, change: SetChange, now: float) -> list[Effect]:
        subscribe, unsubscribe = self.remote.change(
            change.node, change.added, change.removed, change.stamp
        )
        effects = subscriptions(subscribe, unsubscribe)
        self.custody.retained.unwanted(unsubscribe)
        self.table.forget_plans()  # they know who wants what
        groups = self._index.change(change.node, change.added, change.removed)
        return effects + self._translate(self._strategy.interest_changed(groups, now), now)

    def _renew_installation(self, now: float) -> None:
        self.confirmations.renew(self._overlay.database.stamp(Kind.INTEREST, self.id), now)

    def _check_installed(self, now: float) -> list[Effect]:
        version = self.confirmations.check(self._overlay.graph.reachable, now)
        return [InterestInstalled(version)] if version is not None else []

    def _forget(self, node: NodeId, now: float) -> list[Effect]:
        """A node's lease has ended: nothing of it remains."""
        filters = list(self._overlay.database.names(Kind.INTEREST, node))
        claims = list(self._overlay.database.names(Kind.CLAIMS, node))
        groups = self._index.change(node, (), filters)
        effects = subscriptions([], self.remote.forget(node, filters))
        self._overlay.forget(node)
        self.confirmations.doubt(node)
        effects += self.custody.forget(node)
        self.table.forget_plans()
        self._strategy.forget(node)
        self.plane.windows.forget(node)
        effects += self._note_claims(node, (), claims, now)
        return effects + self._translate(self._strategy.interest_changed(groups, now), now)

    # ------------------------------------------------------------ publications

    def start(self, batch: Iterable[Captured], outgoing: Outgoing, now: float) -> list[Effect]:
        """Handle `Published` for many at once, in bytes; return what is not a frame."""
        return self._count(self.plane.start(batch, self._overlay.incarnation, outgoing, now))

    def pass_on(
        self,
        link_id: LinkId,
        frames: Iterator[bytes],
        outgoing: Outgoing,
        deliveries: Deliveries,
        news: list[Effect],
        now: float,
    ) -> bytes | None:
        """Handle `Received` for publications in bytes; return the first other frame, if any."""
        link = self._overlay.neighbours.links.get(link_id)
        if link is None or link.peer is None:
            return next(frames, None)  # one by one: it may be the hello
        other = self.plane.pass_on(link_id, frames, outgoing, deliveries, news, now)
        self._count(news)
        return other

    def _take_publication(self, link_id: LinkId, copy: Publication, now: float) -> list[Effect]:
        link = self._overlay.neighbours.links.get(link_id)
        if link is None or link.peer is None:
            return [Ignored("publication without a neighbour")]
        return self.plane.take(link_id, copy, now)

    # ------------------------------------------------------------ the disk, and letters

    def _use_disk(self, event: FromDisk, now: float) -> list[Effect]:
        """The disk has done something."""
        match event:
            case Restored(records):
                self._overlay.leases.resume(event, self.custody.outbox.debts, now)
                outcomes = (self._overlay.take_record(None, r, now, False) for r in records)
                return [effect for outcome in outcomes for effect in self._carry(outcome, now)]
            case Noted(number):
                self.remote.note(number)
                return []
            case _:
                ready, outcome = self.custody.settle(event, now)
                released = [effect for item in ready for effect in self.plane.release(item)]
                return released + self._write(outcome, now)

    def _write(self, outcome: Iterable[Effect | Letter], now: float) -> list[Effect]:
        """Send letters on their way; without one they are lost, and their writers try again."""
        effects: list[Effect] = []
        for item in outcome:
            if not isinstance(item, Letter):
                effects.append(item)
            elif (hop := self._overlay.graph.next_hop(item.to)) is not None:
                effects += self._overlay.tell(hop, item, now)
            elif item.hops:  # not our own: those are for who is known to be away
                effects.append(Ignored("letter without a way"))
        return effects

    # ------------------------------------------------------------ inspection

    def records_of(self, node: NodeId) -> list[Record]:
        """Return what must be remembered of a node: who it is and what it wants."""
        rows = ((Kind.NODE, node), (Kind.INTEREST, node))
        return [record for row in rows for record in self._overlay.database.whole(row)]

    def view(self) -> NodeView:
        """Return this node's state as plain values."""
        self.table.refresh()
        installed, sizes = self.confirmations.complete, self.sizes()
        return view_of(
            self._overlay, self._strategy, self.remote.in_force, installed, sizes, self.counters
        )

    def sizes(self) -> dict[str, int]:
        """Return how much there is of what has a bound."""
        return sizes_of(self._overlay, self.plane, len(self._local.filters)) | self.custody.sizes()
