"""One node: the overlay, the interest, a strategy and the forwarding plane, put together.

`handle(event, now)` applies one input and returns what must be done, in order. Parts never call one
another: this module carries what one reports to those that care, and nothing else.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial

from hansa.protocol.changes import CHANGES, CapacityChanged, Change, NewLife, Passed
from hansa.protocol.clock import AHEAD
from hansa.protocol.deadlines import earliest
from hansa.protocol.delivery.context import DeliveryContext
from hansa.protocol.delivery.state import Custody, Remembered
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
    ClockRead,
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
from hansa.protocol.forwarding.engine import Deliveries, Outgoing, Plane
from hansa.protocol.forwarding.numbering import Captured
from hansa.protocol.forwarding.table import Table
from hansa.protocol.interest.acks import Confirmations
from hansa.protocol.interest.filters import LocalInterest, RemoteInterest, subscriptions
from hansa.protocol.interest.groups import GroupIndex
from hansa.protocol.interest.shared_subscriptions import Turns
from hansa.protocol.membership.database import SetChange
from hansa.protocol.membership.origins import WRONG_SIDE, Origins
from hansa.protocol.membership.overlay import Overlay
from hansa.protocol.membership.records import Kind, Record
from hansa.protocol.model import Group, LinkId, NodeId, Publication
from hansa.protocol.model import Identity as Identity
from hansa.protocol.routing import make_strategy
from hansa.protocol.routing.base import Tell, surroundings_of
from hansa.protocol.routing.early_announcements import UNKNOWN_CORE, EarlyAnnouncements
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.status import NodeView
from hansa.protocol.status_snapshot import Chart, sizes_of, view_of
from hansa.protocol.topics import is_filter
from hansa.protocol.wire.frames import LETTERS, Announce, Confirm, Enquire, Fetch, Letter, Listing
from hansa.protocol.wire.frames import Any as AnyFrame


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
        conflict = self._overlay.conflict
        context = DeliveryContext(
            wants=wants,
            receivers=remote.receivers,
            nodes=nodes,
            clock=self._overlay.clock,
            was_announced=self._local.was_announced,
            may_acknowledge=lambda: conflict.due is None,
        )
        self.custody = Custody(self.id, settings, past, context)
        has_share, graph = self._local.filters.__contains__, self._overlay.graph
        turns = Turns(remote.audience, has_share, lambda: graph.reachable)
        self._origins = Origins(graph, self._overlay.neighbours.links, nodes)
        self.plane = Plane(self.id, settings, self.table, self.custody, turns, self._origins)
        self._interest_due: float | None = None
        self._strategy_due = self._strategy.next_deadline()
        self._early = EarlyAnnouncements(settings)
        self.confirmations = Confirmations(self.id, settings, remote.in_force, self.custody.outbox)
        self.counters: Counter[str] = Counter()

    # ------------------------------------------------------------ input

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Apply one input; return orders and news, in order."""
        effects: list[Effect] = []
        self.custody.begin(now)
        match event:
            case Received(link, frame):
                if isinstance(frame, Publication):
                    return self._count(self._take_publication(link, frame, now))
                effects = self._receive(link, frame, now)
            case Published():
                return self._count(self.plane.publish(event, self._overlay.incarnation))
            case TimerFired():
                effects = self._fire(now)
            case LinkOpened() | LinkClosed():
                effects = self._change_links(event, now)
            case InterestChanged():
                effects = self._change_interest(event, now)
            case Granted(filters):
                effects = self.custody.retained.granted(self.remote.grant(filters))
            case ClockRead(wall_ms):
                self._overlay.clock.read(wall_ms, now)
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

    def _change_links(self, event: LinkOpened | LinkClosed, now: float) -> list[Effect]:
        if isinstance(event, LinkOpened):
            return self._carry(self._overlay.open(event, now), now)
        return self._carry(self._overlay.close(event.link, event.reason, now), now)

    def _receive(self, link_id: LinkId, frame: AnyFrame, now: float) -> list[Effect]:
        link = self._overlay.neighbours.links.get(link_id)
        if link is None:
            return [Ignored("frame on a closed link")]
        known = self._overlay.database.nodes
        # One at a time: what a frame changes must be carried on before the next one is read.
        ready, effects = self._overlay.neighbours.unpack(link, frame, now)
        for item in ready:
            if link_id in self._overlay.neighbours.links:  # a goodbye may have closed it
                before = len(known)
                effects += self._carry(self._overlay.take(link, item, now), now)
                if self._early and len(known) > before:
                    for sender, early in self._early.take(known):
                        effects += self._pass(sender, early, now)
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
        effects += self._overlay.flush_early(now) if letters else []
        for to, letter in letters:
            effects += self._overlay.tell(to, letter, now)
        effects += [*dropped, *self._overlay.flush(now)]
        self.table.outdate(self._strategy.entries_waiting())

    def _count(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, (Ignored, Dropped)):
                # Behind a colon are details, such as a filter: counters would grow without bound.
                self.counters[effect.reason.partition(": ")[0]] += 1
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
                self._early.lose_neighbour(item.node)
                effects += self._translate(self._strategy.neighbour_down(item.node, now), now)
            elif isinstance(item, IncarnationRaised):
                self._renew_installation(now)
                effects += self._translate(self._strategy.incarnation_raised(now), now)
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
            case Passed(sender, Confirm(entries)):
                is_from = partial(self._origins.speaks_for, sender)
                ours, refused = self.confirmations.take(entries, is_from, now)
                return [*refused, *(self._check_installed(now) if ours else ())]
            case Passed(frame=Enquire() as enquiry):
                self.confirmations.answer(enquiry, now)
                return []
            case Passed(sender, frame) if isinstance(frame, LETTERS):
                # Whoever knows a newer value tells its former owner, in the name of the new one.
                if not isinstance(frame, Listing) and not self._origins.speaks_for(
                    sender, frame.node
                ):
                    return [Ignored(WRONG_SIDE)]
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
        if isinstance(frame, Announce):
            if refusal := self._announcement_refusal(frame):
                return [Ignored(refusal)]
            if frame.core == self.id and frame.incarnation > self._overlay.incarnation:
                effects += self._carry(self._overlay.contest(frame.incarnation, None, now), now)
        if isinstance(frame, Announce) and (claims := frame.claims) is not None:
            if claims.node in self._overlay.database.nodes:
                link = self._overlay.neighbours.by_node[sender]
                outcome = self._overlay.take_record(link, claims, now, flood=False)
                effects += self._carry(outcome, now)
            else:  # it overtook the record of its node, and nobody would send the claims again
                rows = (Kind.NODE, claims.node), (Kind.CLAIMS, claims.node)
                effects += self._overlay.tell(sender, Fetch(rows), now)
        if isinstance(frame, Announce) and frame.core not in self._overlay.database.nodes:
            is_kept = self._early.put(sender, frame)
            return effects if is_kept else [*effects, Ignored(UNKNOWN_CORE)]
        return effects + self._translate(self._strategy.receive(sender, frame, now), now)  # type: ignore[arg-type]

    def _announcement_refusal(self, frame: Announce) -> str | None:
        clock = self._overlay.clock
        if frame.incarnation > clock.limit_ms:
            return AHEAD
        too_high = frame.seq > clock.numbers_max(frame.incarnation)
        return "announcement number out of bounds" if too_high else None

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
        self._overlay.quotas.resize(Kind.CLAIMS, node, 0)
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
                effects += self._overlay.flush_early(now)
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
