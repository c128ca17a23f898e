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
    NeighbourDown,
    NeighbourUp,
    NodeReachable,
    NodeUnreachable,
    PeerMisbehaved,
    PersistPeer,
    QueryReceived,
    QueryResponseReceived,
)
from hansa.protocol.events import (
    CertificatesChanged,
    ClientPublished,
    ClockRead,
    Event,
    FrameReceived,
    InterestChanged,
    LinkClosed,
    LinkOpened,
    PeersPersisted,
    PeersRestored,
    QueryAnswered,
    QueryRequested,
    StorageEvent,
    SubscriptionsDenied,
    SubscriptionsGranted,
    TimerFired,
)
from hansa.protocol.forwarding.engine import Deliveries, ForwardingEngine, Outgoing
from hansa.protocol.forwarding.numbering import LocalPublication
from hansa.protocol.forwarding.table import ForwardingTable
from hansa.protocol.forwarding.trace import CopyTrace, TracedCopy, trace_copy
from hansa.protocol.interest.acks import InterestAckTracker
from hansa.protocol.interest.local import LocalInterest
from hansa.protocol.interest.remote import RemoteInterest, subscription_commands
from hansa.protocol.interest.shared_subscriptions import ShareSelector
from hansa.protocol.membership.authentication import (
    Authenticator,
    PlainAuthenticator,
    RecordAuthentication,
)
from hansa.protocol.membership.changes import (
    OVERLAY_CHANGES,
    CapacityChanged,
    ControlFrameReceived,
    MapChanged,
    MemberExcluded,
    NodeRestarted,
    OverlayChange,
    RightsChanged,
    SetChange,
)
from hansa.protocol.membership.overlay import Overlay
from hansa.protocol.membership.records import RecordKind
from hansa.protocol.membership.view import MembershipView
from hansa.protocol.model import Group, Identity, LinkId, NodeId, Publication
from hansa.protocol.pair_authentication import KeyExchange
from hansa.protocol.routing.base import GroupStatus
from hansa.protocol.routing.runner import StrategyRunner
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.status import NodeStatus, count_bounded_state, make_node_status
from hansa.protocol.topics import is_filter
from hansa.protocol.unicast import ANY_UNICASTS, AnyUnicast, UnicastTransport
from hansa.protocol.wire.frames import (
    AnyFrame,
    CoreAnnouncement,
    Fetch,
    InterestAck,
    InterestAckRequest,
    InterestAcks,
    PendingNotice,
    Query,
    QueryResponse,
    Receipt,
)


class Node:
    """The federation protocol at one broker."""

    def __init__(
        self,
        identity: Identity,
        settings: ProtocolSettings,
        restored: RestoredState | None = None,
        keys: KeyExchange | None = None,
        authenticator: Authenticator | None = None,
    ) -> None:
        """`restored` is the state from disk. None: there is no disk, and nothing waits to be
        persisted. `keys` authenticate frames that relays carry, `authenticator` records; both are
        None in a federation without certificates."""
        self.id = identity.node
        if keys is not None:
            identity = identity.with_exchange_key(keys.public_key)
        self._settings = settings
        authentication = RecordAuthentication(
            settings.federation, authenticator or PlainAuthenticator()
        )
        overlay = self._overlay = Overlay(identity, settings, authentication)
        local = self._local_interest = LocalInterest(settings, authentication.rights_of(self.id))
        remote = self._remote_interest = RemoteInterest(durable=restored is not None)
        self._routing = StrategyRunner(overlay, settings)
        context = DeliveryContext(
            has_plain_subscriber=local.has_plain_subscriber,
            receivers=remote.receivers,
            nodes=overlay.database.nodes,
            clock=overlay.clock,
            was_announced=local.was_announced,
            may_acknowledge=lambda: overlay.conflict.due is None,
            rights_of=authentication.rights_of,
        )
        # Without a disk, each incarnation begins a new journal.
        restored = restored or RestoredState(epoch=identity.incarnation)
        self._delivery = DeliveryState(self.id, settings, restored, context)
        self.delivery = self._delivery.view()
        self._unicast = UnicastTransport(overlay, settings, keys)
        self._forwarding = ForwardingEngine(
            self.id,
            settings,
            ForwardingTable(
                local.plain_filters,
                settings.plans_max,
                self._routing.strategy.drain_entries,
                overlay.links_refused,
            ),
            self._delivery,
            ShareSelector(
                remote.topic_interest, local.filters.__contains__, lambda: overlay.graph.reachable
            ),
            self._unicast.origins,
        )
        self._interest_due: float | None = None
        self._interest_acks = InterestAckTracker(
            self.id, settings, remote.in_force, self._delivery.outbox
        )
        self.counters: Counter[str] = Counter()

    # ------------------------------------------------------------ events

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Apply one event; return its effects in the order to perform."""
        effects: list[Effect] = []
        self._delivery.set_now(now)
        match event:
            case FrameReceived(link, frame):
                if isinstance(frame, Publication):
                    return self._count_effects(self._receive_publication(link, frame, now))
                effects = self._receive_frame(link, frame, now)
            case ClientPublished():
                return self._count_effects(
                    self._forwarding.publish(event, self._overlay.incarnation)
                )
            case TimerFired():
                effects = self._handle_timer(now)
            case LinkOpened() | LinkClosed() | CertificatesChanged():
                effects = self._change_overlay(event, now)
            case InterestChanged():
                effects = self._apply_local_interest(event, now)
            case SubscriptionsGranted() | SubscriptionsDenied():
                effects = self._apply_broker_response(event)
            case ClockRead(wall_ms):
                self._overlay.clock.read(wall_ms, now)
            case QueryRequested() | QueryAnswered():
                effects = self._send_query(event, now)
            case _:
                effects = self._handle_storage_event(event, now)
        self._finish_input(effects, now)
        return self._count_effects(effects)

    def next_deadline(self) -> float | None:
        """When `TimerFired` is due. Ask again after every event."""
        return earliest(
            self._overlay.next_deadline(),
            self._routing.due,
            self._interest_due,
            self._interest_acks.next_deadline(),
            self._delivery.next_deadline(),
            self._local_interest.next_deadline(self._interest_acks.is_installed),
        )

    def _change_overlay(
        self, event: LinkOpened | LinkClosed | CertificatesChanged, now: float
    ) -> list[Effect]:
        match event:
            case LinkOpened():
                output = self._overlay.open_link(event, now)
            case LinkClosed(link, reason):
                output = self._overlay.on_link_closed(link, reason, now)
            case _:
                output = self._overlay.recheck_certificates(now)
        return self._dispatch_overlay_output(output, now)

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
                if len(known) > before:
                    for sender, early in self._routing.pop_early_announcements(known):
                        effects += self._receive_announcement(sender, early, now)
        return effects

    def _handle_timer(self, now: float) -> list[Effect]:
        effects = self._dispatch_overlay_output(self._overlay.handle_timer(now), now)
        for node in self._overlay.leases.pop_expired(now):
            effects += self._expire_node(node, now)
        self._interest_acks.request_missing_acks(self._overlay.graph.reachable, now)
        effects += self._unicast.send(self._delivery.handle_timer(now), now)
        return effects + self._routing.handle_timer(now)

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
        frames_to_send, dropped = self._interest_acks.flush(
            lambda frame: self._unicast.route_ack(frame, now), now
        )
        effects += self._overlay.flush_early(now) if frames_to_send else []
        for to, frame in frames_to_send:
            effects += self._overlay.send_to(to, frame, now)
        effects += [*dropped, *self._overlay.flush(now)]
        self._forwarding.table.invalidate_plans(self._routing.strategy.stale_entry_count())

    def _count_effects(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, (Ignored, Dropped, PeerMisbehaved)):
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
                effects += self._routing.neighbour_up(item.node, now)
            elif isinstance(item, NeighbourDown):
                effects += self._routing.neighbour_down(item.node, now)
            elif isinstance(item, IncarnationRaised):
                self._restart_installation(now)
                self._interest_acks.send_all_acks(now)
                effects += self._routing.incarnation_raised(now)
        if joined or lost:
            effects += self._routing.nodes_changed(joined, lost, now)
            effects += self._check_installed(now)
        for node in joined:
            self._on_node_reachable(node, now)
        return effects

    def _on_node_reachable(self, node: NodeId, now: float) -> None:
        self._unicast.routes.reset(node)
        self._send_missed(node, now)

    def _send_missed(self, node: NodeId, now: float) -> None:
        """Send a node again what it may have missed: it became reachable, or a new path works."""
        self._interest_acks.send_ack(node, now)
        self._delivery.on_node_reachable(node, now)

    def _dispatch_change(self, change: OverlayChange, now: float) -> list[Effect]:
        match change:
            case SetChange(kind=RecordKind.INTEREST):
                return self._apply_remote_interest(change, now)
            case SetChange():
                return self._routing.claims_changed(change.node, change.added, change.removed, now)
            case ControlFrameReceived(sender, InterestAcks(entries)):
                return self._receive_interest_acks(sender, entries, now)
            case ControlFrameReceived(frame=InterestAckRequest() as request):
                self._interest_acks.receive_ack_request(request, now)
                return []
            case ControlFrameReceived(sender, frame) if isinstance(frame, ANY_UNICASTS):
                return self._receive_unicast(sender, frame, now)
            case ControlFrameReceived(sender, CoreAnnouncement() as announcement):
                return self._receive_announcement(sender, announcement, now)
            case ControlFrameReceived(sender, frame):
                return self._routing.receive(sender, frame, now)
            case _:
                return self._dispatch_node_change(change, now)

    def _dispatch_node_change(self, change: OverlayChange, now: float) -> list[Effect]:
        match change:
            case RightsChanged(node, interest):
                return self._apply_rights(node, interest, now)
            case MemberExcluded(node):
                return self._expire_node(node, now)
            case NodeRestarted(node):
                return self._on_node_restarted(node, now)
            case CapacityChanged():
                return self._routing.nodes_changed((), (), now)
            case MapChanged():
                return self._routing.map_changed(now)
            case _:  # LinkCostsChanged
                return self._routing.costs_changed(now)

    def _receive_interest_acks(
        self, sender: NodeId, entries: tuple[InterestAck, ...], now: float
    ) -> list[Effect]:
        sources, refused = self._interest_acks.receive_acks(
            entries, lambda entry: self._unicast.ack_refusal(sender, entry), now
        )
        for source in sources:
            self._unicast.routes.on_answer(source, InterestAckRequest)
        return [*refused, *(self._check_installed(now) if sources else ())]

    def _receive_announcement(
        self, sender: NodeId, frame: CoreAnnouncement, now: float
    ) -> list[Effect]:
        """Check an announcement, apply the claims that it may carry, and pass it to the
        strategy."""
        overlay = self._overlay
        if refusal := overlay.checks.announcement_refusal(sender, frame):
            return [refusal]
        effects: list[Effect] = []
        if frame.core == self.id and frame.incarnation > overlay.incarnation:
            output = overlay.on_id_conflict(frame.incarnation, None, now)
            effects += self._dispatch_overlay_output(output, now)
        if (claims := frame.claims) is not None:
            if claims.node in overlay.database.nodes:
                link = overlay.neighbours.by_node[sender]
                output = overlay.merge_record(link, claims, now, flood=False)
                effects += self._dispatch_overlay_output(output, now)
            else:  # it arrived before the node's record, and will not be sent again
                rows = (RecordKind.NODE, claims.node), (RecordKind.CLAIMS, claims.node)
                effects += overlay.send_to(sender, Fetch(rows), now)
        return effects + self._routing.receive(sender, frame, now)

    def _on_node_restarted(self, node: NodeId, now: float) -> list[Effect]:
        """A node has restarted: claims and acknowledgements of its earlier incarnation are void. It
        cannot open frames that were sealed for its earlier exchange key."""
        self._interest_acks.discard_ack(node)
        if self._unicast.is_sealed and node in self._overlay.graph.reachable:
            self._on_node_reachable(node, now)
        database = self._overlay.database
        if database.stamp(RecordKind.CLAIMS, node)[0] >= database.nodes[node].incarnation:
            return []
        void = list(database.names(RecordKind.CLAIMS, node))
        database.remove_set(RecordKind.CLAIMS, node)
        self._overlay.quotas.resize(RecordKind.CLAIMS, node, 0)
        return self._routing.claims_changed(node, (), void, now)

    def _apply_rights(self, node: NodeId, interest: SetChange | None, now: float) -> list[Effect]:
        """A node has other rights than before: those of its first record, or of a new
        certificate."""
        if self._overlay.authentication.rights_of(node).limits_publishing:
            self._forwarding.table.key_flows_by_origin()
        self._forwarding.table.clear_plans()
        effects = self._apply_remote_interest(interest, now) if interest else []
        if node == self.id:
            rights = self._overlay.authentication.rights_of(node)
            effects += map(Ignored, self._local_interest.set_rights(rights, now))
            self._interest_due = earliest(self._interest_due, now + self._settings.change_delay)
        return effects + self._routing.nodes_changed([node], (), now)

    # ------------------------------------------------------------ interest

    def _apply_local_interest(self, event: InterestChanged, now: float) -> list[Effect]:
        valid = tuple(name for name in event.added if is_filter(name))
        refused = self._local_interest.apply_change(valid, event.removed, now)
        self._forwarding.table.clear_plans()
        self._interest_due = earliest(self._interest_due, now + self._settings.change_delay)
        unfit = len(event.added) - len(valid)
        return [Ignored(reason) for reason in [*refused, *["filter out of bounds"] * unfit]]

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
        effects = self._routing.interest_changed(self.id, added, removed, now)
        return effects + self._check_installed(now)

    def _apply_remote_interest(self, change: SetChange, now: float) -> list[Effect]:
        subscribe, unsubscribe = self._remote_interest.apply_change(
            change.node, change.added, change.removed, change.stamp
        )
        effects = subscription_commands(subscribe, unsubscribe)
        self._delivery.retained.on_remote_interest_removed(unsubscribe)
        self._forwarding.table.clear_plans()  # plans include the interested nodes
        return effects + self._routing.interest_changed(
            change.node, change.added, change.removed, now
        )

    def _apply_broker_response(
        self, event: SubscriptionsGranted | SubscriptionsDenied
    ) -> list[Effect]:
        if isinstance(event, SubscriptionsDenied):
            return [Ignored(f"subscription denied: {event.reason}") for _ in event.filters]
        granted = self._remote_interest.mark_granted(event.filters)
        return self._delivery.retained.on_filters_granted(granted)

    def _restart_installation(self, now: float) -> None:
        stamp = self._overlay.database.stamp(RecordKind.INTEREST, self.id)
        if stamp[0] == self._overlay.incarnation:  # otherwise it is not known yet
            self._interest_acks.restart_installation(stamp, now)

    def _check_installed(self, now: float) -> list[Effect]:
        return self._interest_acks.check_installed(self._overlay.graph.reachable, now)

    def _expire_node(self, node: NodeId, now: float) -> list[Effect]:
        """A node's lease has ended: delete all its state."""
        filters = self._overlay.interest_of(node)
        claims = list(self._overlay.database.names(RecordKind.CLAIMS, node))
        effects = subscription_commands([], self._remote_interest.expire_node(node, filters))
        effects += self._delivery.expire_node(node)  # while the rights of the node are still known
        self._overlay.expire_node(node)
        self._interest_acks.discard_ack(node)
        self._unicast.routes.reset(node)
        self._forwarding.table.clear_plans()
        self._forwarding.duplicate_filter.expire_node(node)
        return effects + self._routing.expire_node(node, filters, claims, now)

    # ------------------------------------------------------------ publications

    def publish_batch(
        self, batch: Iterable[LocalPublication], outgoing: Outgoing, now: float
    ) -> list[Effect]:
        """Handle `ClientPublished` for many publications. Frames go as bytes into `outgoing`;
        return all other effects."""
        return self._count_effects(
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
        self._count_effects(notifications)
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
                return released + self._unicast.send(output, now)

    def _receive_unicast(self, sender: NodeId, frame: AnyUnicast, now: float) -> list[Effect]:
        ours, effects = self._unicast.receive(sender, frame, now)
        if ours is None:
            return effects
        if self._unicast.routes.on_received(ours):
            self._send_missed(ours.source, now)
        if isinstance(ours, Receipt):
            self._unicast.routes.on_answer(ours.source, PendingNotice)
        if isinstance(ours, Query):
            return [QueryReceived(ours.source, ours.number, ours.data)]
        if isinstance(ours, QueryResponse):
            return [QueryResponseReceived(ours.source, ours.number, ours.data)]
        output = self._delivery.receive_unicast(ours, self._overlay.incarnation, now)
        return self._unicast.send(output, now)

    def _send_query(self, event: QueryRequested | QueryAnswered, now: float) -> list[Effect]:
        kind = Query if isinstance(event, QueryRequested) else QueryResponse
        frame = kind(event.destination, self.id, event.number, event.data)
        return self._unicast.send((frame,), now)

    def assign_position(self, publication: LocalPublication) -> Publication:
        """Give a publication of QoS 1 or 2 without receivers a position in the journal, because its
        topic is recorded. The shell journals it and reports `JournalCommitted` as usual."""
        return self._delivery.outbox.assign_position(publication, ())

    # ------------------------------------------------------------ inspection

    @property
    def membership(self) -> MembershipView:
        """Known and reachable nodes, their records, links and leases, for reading."""
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

    def trace(self, copy: TracedCopy) -> CopyTrace:
        """Return what this node would do with a new copy, without doing it."""
        return trace_copy(
            copy,
            self._forwarding,
            self._routing.strategy,
            self._overlay.neighbours,
            self._local_interest.plain_filters,
            self._remote_interest,
        )

    def groups(self) -> Iterator[tuple[Group, GroupStatus]]:
        """Yield all groups, each in its state of that moment: there may be 100,000."""
        strategy = self._routing.strategy
        return ((group, strategy.group_status(group)) for group in strategy.groups())

    def status(self, is_brief: bool = False) -> NodeStatus:
        """Return this node's state as plain values; a brief one without groups and filters."""
        self._forwarding.table.apply_changes()
        installed, sizes = self._interest_acks.is_installed, self.sizes()
        return make_node_status(
            self._overlay,
            self._routing.strategy,
            self._remote_interest.in_force,
            installed,
            sizes,
            self.counters,
            is_brief,
        )

    def sizes(self) -> dict[str, int]:
        """Return the current size of everything that has a bound."""
        return (
            count_bounded_state(self._overlay, self._forwarding, len(self._local_interest.filters))
            | self._delivery.sizes()
        )
