"""One node: connects the parts of the protocol.

`handle(event, now)` applies one event and returns its effects in the order to perform. This module
passes the changes that one part reports to the parts that need them; it takes no protocol decision
of its own. docs/architecture.md lists the interface for shells.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from hansa.protocol.deadlines import earliest
from hansa.protocol.delivery.context import DeliveryContext
from hansa.protocol.delivery.state import DeliveryState, RestoredState
from hansa.protocol.effects import (
    Dropped,
    Effect,
    Ignored,
    IncarnationRaised,
    InterestInstalled,
    NeighbourDown,
    NeighbourUp,
    NodeReachable,
    NodeUnreachable,
    PersistPeer,
)
from hansa.protocol.events import (
    ClientPublished,
    ClockRead,
    Event,
    FrameReceived,
    InterestChanged,
    LinkClosed,
    LinkOpened,
    PeersPersisted,
    PeersRestored,
    StorageEvent,
    SubscriptionsDenied,
    SubscriptionsGranted,
    TimerFired,
)
from hansa.protocol.forwarding.engine import Deliveries, ForwardingEngine, Outgoing
from hansa.protocol.forwarding.numbering import LocalPublication
from hansa.protocol.forwarding.table import ForwardingTable
from hansa.protocol.interest.acks import InterestAckTracker
from hansa.protocol.interest.groups import GroupIndex
from hansa.protocol.interest.local import LocalInterest
from hansa.protocol.interest.remote import RemoteInterest, subscription_commands
from hansa.protocol.interest.shared_subscriptions import ShareSelector
from hansa.protocol.membership.changes import (
    OVERLAY_CHANGES,
    CapacityChanged,
    ControlFrameReceived,
    NodeRestarted,
    OverlayChange,
)
from hansa.protocol.membership.database import SetChange
from hansa.protocol.membership.origins import WRONG_SIDE, Origins
from hansa.protocol.membership.overlay import Overlay
from hansa.protocol.membership.records import Record, RecordKind
from hansa.protocol.membership.unicast_routes import UnicastRoutes
from hansa.protocol.membership.view import MembershipView
from hansa.protocol.model import Group, Identity, LinkId, NodeId, Publication
from hansa.protocol.routing import make_strategy
from hansa.protocol.routing.base import SendToNeighbour, make_strategy_context
from hansa.protocol.routing.early_announcements import UNKNOWN_CORE, EarlyAnnouncements
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.status import NodeStatus, count_bounded_state, make_node_status
from hansa.protocol.topics import is_filter
from hansa.protocol.wire.frames import (
    UNICASTS,
    AnyFrame,
    CoreAnnouncement,
    Fetch,
    InterestAck,
    InterestAckRequest,
    InterestAcks,
    RetainedVersions,
    Unicast,
)


class Node:
    """The federation protocol at one broker."""

    def __init__(
        self, identity: Identity, settings: ProtocolSettings, restored: RestoredState | None = None
    ) -> None:
        """`restored` is the state from disk. None: there is no disk, and nothing waits to be
        persisted."""
        self.id = identity.node
        self._settings = settings
        overlay = self._overlay = Overlay(identity, settings)
        local = self._local_interest = LocalInterest(settings)
        remote = self._remote_interest = RemoteInterest(durable=restored is not None)
        self._group_index = GroupIndex(settings.group_depth)
        self._strategy = make_strategy(make_strategy_context(overlay, self._group_index, settings))
        context = DeliveryContext(
            has_plain_subscriber=local.has_plain_subscriber,
            receivers=remote.receivers,
            nodes=overlay.database.nodes,
            clock=overlay.clock,
            was_announced=local.was_announced,
            may_acknowledge=lambda: overlay.conflict.due is None,
        )
        # Without a disk, each incarnation begins a new journal.
        restored = restored or RestoredState(epoch=identity.incarnation)
        self._delivery = DeliveryState(self.id, settings, restored, context)
        self.delivery = self._delivery.view()
        self._unicast_routes = UnicastRoutes(overlay.graph)
        self._origins = Origins(overlay.graph, overlay.neighbours.links, overlay.database.nodes)
        self._forwarding = ForwardingEngine(
            self.id,
            settings,
            ForwardingTable(local.plain_filters, settings.plans_max, self._strategy.drain_entries),
            self._delivery,
            ShareSelector(
                remote.topic_interest, local.filters.__contains__, lambda: overlay.graph.reachable
            ),
            self._origins,
        )
        self._interest_due: float | None = None
        self._strategy_due = self._strategy.next_deadline()
        self._early_announcements = EarlyAnnouncements(settings)
        self._interest_acks = InterestAckTracker(
            self.id, settings, remote.in_force, self._delivery.outbox
        )
        self.counters: Counter[str] = Counter()

    # ------------------------------------------------------------ events

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Apply one event; return its effects in the order to perform."""
        effects: list[Effect] = []
        self._delivery.begin(now)
        match event:
            case FrameReceived(link, frame):
                if isinstance(frame, Publication):
                    return self._count_dropped(self._receive_publication(link, frame, now))
                effects = self._receive_frame(link, frame, now)
            case ClientPublished():
                return self._count_dropped(
                    self._forwarding.publish(event, self._overlay.incarnation)
                )
            case TimerFired():
                effects = self._handle_timer(now)
            case LinkOpened() | LinkClosed():
                effects = self._change_links(event, now)
            case InterestChanged():
                effects = self._apply_local_interest(event, now)
            case SubscriptionsGranted(filters):
                effects = self._delivery.retained.on_filters_granted(
                    self._remote_interest.mark_granted(filters)
                )
            case ClockRead(wall_ms):
                self._overlay.clock.read(wall_ms, now)
            case SubscriptionsDenied():
                effects = [Ignored(f"subscription denied: {event.reason}") for _ in event.filters]
            case _:
                effects = self._handle_storage_event(event, now)
        self._finish_input(effects, now)
        return self._count_dropped(effects)

    def next_deadline(self) -> float | None:
        """When `TimerFired` is due. Ask again after every event."""
        return earliest(
            self._overlay.next_deadline(),
            self._strategy_due,
            self._interest_due,
            self._interest_acks.next_deadline(),
            self._delivery.next_deadline(),
            self._local_interest.next_deadline(self._interest_acks.is_installed),
        )

    def _change_links(self, event: LinkOpened | LinkClosed, now: float) -> list[Effect]:
        if isinstance(event, LinkOpened):
            return self._dispatch_overlay_output(self._overlay.open_link(event, now), now)
        return self._dispatch_overlay_output(
            self._overlay.on_link_closed(event.link, event.reason, now), now
        )

    def _receive_frame(self, link_id: LinkId, frame: AnyFrame, now: float) -> list[Effect]:
        link = self._overlay.neighbours.links.get(link_id)
        if link is None:
            return [Ignored("frame on a closed link")]
        known = self._overlay.database.nodes
        # One at a time: the changes of a frame must be applied before the next frame is read.
        ready, effects = self._overlay.neighbours.unwrap_frame(link, frame, now)
        for item in ready:
            if link_id in self._overlay.neighbours.links:  # a goodbye may have closed it
                before = len(known)
                effects += self._dispatch_overlay_output(
                    self._overlay.receive_frame(link, item, now), now
                )
                if self._early_announcements and len(known) > before:
                    for sender, early in self._early_announcements.pop_known(known):
                        effects += self._receive_strategy_frame(sender, early, now)
        return effects

    def _handle_timer(self, now: float) -> list[Effect]:
        effects = self._dispatch_overlay_output(self._overlay.handle_timer(now), now)
        for node in self._overlay.leases.pop_expired(now):
            effects += self._expire_node(node, now)
        self._interest_acks.request_missing_acks(self._overlay.graph.reachable, now)
        effects += self._route_unicasts(self._delivery.handle_timer(now), now)
        if self._strategy_due is not None and now >= self._strategy_due:
            effects += self._send_strategy_output(self._strategy.handle_timer(now), now)
        return effects

    def _finish_input(self, effects: list[Effect], now: float) -> None:
        """Announce interest, persist peers, acknowledge interest in force, and flush queued
        records."""
        if self._interest_due is not None or self._local_interest.withdrawing:
            effects += self._announce_interest(now)
        if self._remote_interest.to_persist:
            to_persist = self._remote_interest.drain_to_persist()
            effects += [PersistPeer(save_id, node) for save_id, node in to_persist]
        if self._remote_interest.newly_in_force:
            for node in self._remote_interest.drain_newly_in_force():
                self._interest_acks.send_ack(node, now)
                self._delivery.retained.schedule_digest(node)
        frames_to_send, dropped = self._interest_acks.flush(self._unicast_routes.route, now)
        effects += self._overlay.flush_early(now) if frames_to_send else []
        for to, frame in frames_to_send:
            effects += self._overlay.send_to(to, frame, now)
        effects += [*dropped, *self._overlay.flush(now)]
        self._forwarding.table.invalidate_plans(self._strategy.stale_entry_count())

    def _count_dropped(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, (Ignored, Dropped)):
                # Details after a colon, such as a filter, would make the number of counters
                # unbounded.
                prefix = "dropped: " if isinstance(effect, Dropped) else ""
                self.counters[prefix + effect.reason.partition(": ")[0]] += 1
        return effects

    # ------------------------------------------------------------ changes between the parts

    def _dispatch_overlay_output(
        self, output: Iterable[Effect | OverlayChange], now: float
    ) -> list[Effect]:
        """Apply the changes that the overlay reports, and keep the order of effects."""
        effects: list[Effect] = []
        joined: list[NodeId] = []
        lost: list[NodeId] = []
        for item in output:
            if isinstance(item, OVERLAY_CHANGES):
                effects += self._dispatch_change(item, now)
                continue
            effects.append(item)
            if isinstance(item, NodeReachable):
                joined.append(item.node)
            elif isinstance(item, NodeUnreachable):
                lost.append(item.node)
            elif isinstance(item, NeighbourUp):
                effects += self._send_strategy_output(
                    self._strategy.neighbour_up(item.node, now), now
                )
            elif isinstance(item, NeighbourDown):
                self._early_announcements.remove_neighbour(item.node)
                effects += self._send_strategy_output(
                    self._strategy.neighbour_down(item.node, now), now
                )
            elif isinstance(item, IncarnationRaised):
                self._restart_installation(now)
                effects += self._send_strategy_output(self._strategy.incarnation_raised(now), now)
        if joined or lost:
            effects += self._send_strategy_output(
                self._strategy.nodes_changed(joined, lost, now), now
            )
            effects += self._check_installed(now)
        for node in joined:
            self._unicast_routes.reset(node)
            self._interest_acks.send_ack(node, now)
            self._delivery.on_node_reachable(node, now)
        return effects

    def _dispatch_change(self, change: OverlayChange, now: float) -> list[Effect]:
        match change:
            case SetChange(kind=RecordKind.INTEREST):
                return self._apply_remote_interest(change, now)
            case SetChange():
                return self._apply_claims(change.node, change.added, change.removed, now)
            case ControlFrameReceived(sender, InterestAcks(entries)):
                return self._receive_interest_acks(sender, entries, now)
            case ControlFrameReceived(frame=InterestAckRequest() as request):
                self._interest_acks.receive_ack_request(request, now)
                return []
            case ControlFrameReceived(sender, frame) if isinstance(frame, UNICASTS):
                # RetainedVersions may come from any node: the one that knows a newer value informs
                # the former owner, in the name of the new owner.
                if not isinstance(frame, RetainedVersions) and not self._origins.speaks_for(
                    sender, frame.source
                ):
                    return [Ignored(WRONG_SIDE)]
                output = self._delivery.receive_unicast(frame, self._overlay.incarnation, now)
                return self._route_unicasts(output, now)
            case ControlFrameReceived(sender, frame):
                return self._receive_strategy_frame(sender, frame, now)
            case NodeRestarted(node):
                return self._void_stale_claims(node, now)
            case CapacityChanged():
                return self._send_strategy_output(self._strategy.nodes_changed((), (), now), now)
            case _:  # LinkCostsChanged
                return self._send_strategy_output(self._strategy.costs_changed(now), now)

    def _receive_interest_acks(
        self, sender: NodeId, entries: tuple[InterestAck, ...], now: float
    ) -> list[Effect]:
        ours, refused = self._interest_acks.receive_acks(
            entries, lambda node: self._origins.speaks_for(sender, node), now
        )
        for entry in entries:
            if entry.destination == self.id:
                self._unicast_routes.on_interest_ack(entry.source)
        return [*refused, *(self._check_installed(now) if ours else ())]

    def _receive_strategy_frame(self, sender: NodeId, frame: object, now: float) -> list[Effect]:
        """Pass a frame to the strategy. An announcement may carry claims of its core."""
        effects: list[Effect] = []
        if isinstance(frame, CoreAnnouncement):
            refusal = self._overlay.clock.refusal(
                frame.incarnation, frame.seq, "announcement number"
            )
            if refusal:
                return [Ignored(refusal)]
            if frame.core == self.id and frame.incarnation > self._overlay.incarnation:
                effects += self._dispatch_overlay_output(
                    self._overlay.on_id_conflict(frame.incarnation, None, now), now
                )
        if isinstance(frame, CoreAnnouncement) and (claims := frame.claims) is not None:
            if claims.node in self._overlay.database.nodes:
                link = self._overlay.neighbours.by_node[sender]
                output = self._overlay.merge_record(link, claims, now, flood=False)
                effects += self._dispatch_overlay_output(output, now)
            else:  # it arrived before the node's record; nobody would send the claims again
                rows = (RecordKind.NODE, claims.node), (RecordKind.CLAIMS, claims.node)
                effects += self._overlay.send_to(sender, Fetch(rows), now)
        if isinstance(frame, CoreAnnouncement) and frame.core not in self._overlay.database.nodes:
            is_kept = self._early_announcements.put(sender, frame)
            return effects if is_kept else [*effects, Ignored(UNKNOWN_CORE)]
        return effects + self._send_strategy_output(self._strategy.receive(sender, frame, now), now)  # type: ignore[arg-type]

    def _send_strategy_output(
        self, output: Iterable[Effect | SendToNeighbour], now: float
    ) -> list[Effect]:
        """Turn the output of the strategy into frames on links, after each call of it."""
        effects: list[Effect] = []
        for item in output:
            if isinstance(item, SendToNeighbour):
                effects += self._overlay.send_to(item.node, item.frame, now)
            else:
                effects.append(item)
        self._strategy_due = self._strategy.next_deadline()
        return effects

    def _void_stale_claims(self, node: NodeId, now: float) -> list[Effect]:
        """A node has restarted: claims and acknowledgements of its earlier incarnation are void."""
        self._interest_acks.discard_ack(node)
        database = self._overlay.database
        if database.stamp(RecordKind.CLAIMS, node)[0] >= database.nodes[node].incarnation:
            return []
        claims = database.names(RecordKind.CLAIMS, node)
        void = list(claims)
        claims.clear()
        self._overlay.quotas.resize(RecordKind.CLAIMS, node, 0)
        return self._apply_claims(node, (), void, now)

    def _apply_claims(
        self, node: NodeId, added: Iterable[Group], removed: Iterable[Group], now: float
    ) -> list[Effect]:
        return self._send_strategy_output(
            self._strategy.claims_changed(node, added, removed, now), now
        )

    # ------------------------------------------------------------ interest

    def _apply_local_interest(self, event: InterestChanged, now: float) -> list[Effect]:
        valid = tuple(name for name in event.added if is_filter(name))
        refused = self._local_interest.apply_change(valid, event.removed, now)
        self._forwarding.table.clear_plans()
        self._interest_due = earliest(self._interest_due, now + self._settings.change_delay)
        unfit = len(event.added) - len(valid)
        reasons = ["filters_per_node_max"] * refused + ["filter out of bounds"] * unfit
        return [Ignored(reason) for reason in reasons]

    def _announce_interest(self, now: float) -> list[Effect]:
        """Announce new filters when due; withdraw old ones when no node depends on them."""
        due = earliest(
            self._interest_due, self._local_interest.next_deadline(self._interest_acks.is_installed)
        )
        if due is None or now < due:
            return []
        self._interest_due = None
        added, removed = self._local_interest.pop_due_changes(self._interest_acks.is_installed, now)
        if added or removed:
            self._overlay.change_own_set(RecordKind.INTEREST, added, removed, now)
        self._overlay.mark_interest_known(now)
        if not added and not removed:
            return []
        self._restart_installation(now)
        self._delivery.retained.on_local_interest_removed(removed)
        groups = self._group_index.apply_change(self.id, added, removed)
        effects = self._send_strategy_output(self._strategy.interest_changed(groups, now), now)
        return effects + self._check_installed(now)

    def _apply_remote_interest(self, change: SetChange, now: float) -> list[Effect]:
        subscribe, unsubscribe = self._remote_interest.apply_change(
            change.node, change.added, change.removed, change.stamp
        )
        effects = subscription_commands(subscribe, unsubscribe)
        self._delivery.retained.on_remote_interest_removed(unsubscribe)
        self._forwarding.table.clear_plans()  # plans include the interested nodes
        groups = self._group_index.apply_change(change.node, change.added, change.removed)
        return effects + self._send_strategy_output(
            self._strategy.interest_changed(groups, now), now
        )

    def _restart_installation(self, now: float) -> None:
        self._interest_acks.restart_installation(
            self._overlay.database.stamp(RecordKind.INTEREST, self.id), now
        )

    def _check_installed(self, now: float) -> list[Effect]:
        version = self._interest_acks.check_installed(self._overlay.graph.reachable, now)
        return [InterestInstalled(version)] if version is not None else []

    def _expire_node(self, node: NodeId, now: float) -> list[Effect]:
        """A node's lease has ended: delete all its state."""
        filters = list(self._overlay.database.names(RecordKind.INTEREST, node))
        claims = list(self._overlay.database.names(RecordKind.CLAIMS, node))
        groups = self._group_index.apply_change(node, (), filters)
        effects = subscription_commands([], self._remote_interest.expire_node(node, filters))
        self._overlay.expire_node(node)
        self._interest_acks.discard_ack(node)
        self._unicast_routes.reset(node)
        effects += self._delivery.expire_node(node)
        self._forwarding.table.clear_plans()
        self._strategy.expire_node(node)
        self._forwarding.duplicate_filter.expire_node(node)
        effects += self._apply_claims(node, (), claims, now)
        return effects + self._send_strategy_output(
            self._strategy.interest_changed(groups, now), now
        )

    # ------------------------------------------------------------ publications

    def publish_batch(
        self, batch: Iterable[LocalPublication], outgoing: Outgoing, now: float
    ) -> list[Effect]:
        """Handle `ClientPublished` for many publications. Frames go as bytes into `outgoing`;
        return all other effects."""
        return self._count_dropped(
            self._forwarding.publish_batch(batch, self._overlay.incarnation, outgoing, now)
        )

    def forward_batch(
        self,
        link_id: LinkId,
        frames: Iterator[bytes],
        outgoing: Outgoing,
        deliveries: Deliveries,
        notifications: list[Effect],
        now: float,
    ) -> bytes | None:
        """Handle `FrameReceived` for publications as bytes; return the first other frame, if
        any."""
        link = self._overlay.neighbours.links.get(link_id)
        if link is None or link.peer is None:
            return next(frames, None)  # handled as an event: it may be the hello
        other = self._forwarding.forward_batch(
            link_id, frames, outgoing, deliveries, notifications, now
        )
        self._count_dropped(notifications)
        return other

    def _receive_publication(self, link_id: LinkId, copy: Publication, now: float) -> list[Effect]:
        link = self._overlay.neighbours.links.get(link_id)
        if link is None or link.peer is None:
            return [Ignored("publication without a neighbour")]
        return self._forwarding.receive_copy(link_id, copy, now)

    # ------------------------------------------------------------ storage and unicast frames

    def _handle_storage_event(self, event: StorageEvent, now: float) -> list[Effect]:
        match event:
            case PeersRestored(records):
                self._overlay.leases.restore(event, self._delivery.outbox.receivers, now)
                outputs = (self._overlay.merge_record(None, r, now, False) for r in records)
                return [
                    effect
                    for output in outputs
                    for effect in self._dispatch_overlay_output(output, now)
                ]
            case PeersPersisted(number):
                self._remote_interest.mark_persisted(number)
                return []
            case _:
                ready, output = self._delivery.handle_storage_event(event, now)
                released = [effect for item in ready for effect in self._forwarding.originate(item)]
                return released + self._route_unicasts(output, now)

    def _route_unicasts(self, output: Iterable[Effect | Unicast], now: float) -> list[Effect]:
        """Send unicast frames to their next hop. A frame without one is dropped; its sender will
        retry."""
        effects: list[Effect] = []
        for item in output:
            if not isinstance(item, Unicast):
                effects.append(item)
                continue
            frame, hop = self._unicast_routes.route(item)
            if hop is not None:
                effects += self._overlay.flush_early(now)
                effects += self._overlay.send_to(hop, frame, now)
            elif frame.hops:  # not an own frame: those may address nodes known to be unreachable
                effects.append(Ignored("unicast without a route"))
        return effects

    def assign_position(self, publication: LocalPublication) -> Publication:
        """Give a publication of QoS 1 or 2 without receivers a position in the journal, because its
        topic is recorded. The shell journals it and reports `JournalCommitted` as usual."""
        return self._delivery.outbox.assign_position(publication, ())

    # ------------------------------------------------------------ inspection

    @property
    def membership(self) -> MembershipView:
        """Known and reachable nodes, links and leases, for reading."""
        return MembershipView(self._overlay)

    def receivers_in_force(self, topic: str) -> list[NodeId]:
        """Return the nodes interested in a topic whose newest interest is in force here."""
        return self._remote_interest.receivers_in_force(topic)

    def is_interest_installed(self) -> bool:
        """Whether this node's newest interest is in force at every reachable node."""
        return self._interest_acks.is_installed

    def interest_acks(self) -> Collection[NodeId]:
        """Return the nodes that have acknowledged this node's newest interest."""
        return self._interest_acks.acknowledged_by

    def records_of(self, node: NodeId) -> list[Record]:
        """Return the records of a node that have to be persisted: identity and interest."""
        rows = ((RecordKind.NODE, node), (RecordKind.INTEREST, node))
        return [record for row in rows for record in self._overlay.database.row_records(row)]

    def status(self) -> NodeStatus:
        """Return this node's state as plain values."""
        self._forwarding.table.apply_changes()
        installed, sizes = self._interest_acks.is_installed, self.sizes()
        return make_node_status(
            self._overlay,
            self._strategy,
            self._remote_interest.in_force,
            installed,
            sizes,
            self.counters,
        )

    def sizes(self) -> dict[str, int]:
        """Return the current size of everything that has a bound."""
        return (
            count_bounded_state(self._overlay, self._forwarding, len(self._local_interest.filters))
            | self._delivery.sizes()
        )
