"""The shell around all nodes of a run: passes events, performs effects, keeps time.

`handle_event` is its core, as in the live agent's driver. `action_executor` changes the world,
`hooks` observe it; the world checks nothing itself.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from hansa.delivery.effects import Effect as DeliveryEffect
from hansa.delivery.inputs import ReleaseFilters, RequireFilters
from hansa.protocol import effects, events
from hansa.protocol.effects import Effect
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.node import Node
from hansa.protocol.topics import is_local_only
from hansa.protocol.wire import codec
from hansa.protocol.wire.frames import (
    AnyFrame,
    CoreAnnouncement,
    FrameAck,
    Heartbeat,
    PendingNotice,
    Receipt,
    RepairResponse,
    SequencedFrame,
)
from hansa.simulator.broker.message import Message
from hansa.simulator.options import SimulationOptions
from hansa.simulator.world.delivery import STORED_ONLY, SimulatedDelivery
from hansa.simulator.world.hooks import HookCallbacks, Hooks, Interceptor
from hansa.simulator.world.ledger import Ledger, LedgerEntry, ledger_number
from hansa.simulator.world.network import LinkEnd, LinkEvent, Network, NetworkHost
from hansa.simulator.world.retained import RetainedValues
from hansa.simulator.world.scheduler import Scheduler
from hansa.simulator.world.site import NEVER, IdentityAllocator, PersistentState, Site
from hansa.simulator.world.traffic import TrafficCounter
from hansa.simulator.world.transcript import (
    MessageDelivered,
    MessagePublished,
    Transcript,
    TranscriptListener,
)

TIMERS_PER_INSTANT_MAX = 1_000
"""A node that asks for this many timers at one time does not advance its deadline."""

_QUIET_FRAMES = (Heartbeat, FrameAck, Publication)
"""Frames without changes of membership or cores."""

_DELIVERY_FRAMES = (PendingNotice, Receipt, RepairResponse)
"""Frames that change nothing but the state of guaranteed delivery. They are so many that the
federation is not compared with the truth after each of them."""

_STORAGE_COMMANDS = (effects.ReadJournal, effects.PersistPeer, effects.PersistProgressReport)

_QUIET_NOTIFICATIONS = (effects.Duplicate, effects.Dropped, effects.Ignored)

OnEffectPerformed = Callable[[Site, DeliveryEffect], None]


class World:
    """All sites of a run, and the network between them."""

    def __init__(
        self, options: SimulationOptions, listener: TranscriptListener | None = None
    ) -> None:
        """Build all sites; nothing runs yet."""
        self.options = options
        self.scheduler = Scheduler()
        self.transcript = Transcript(listener)
        self.traffic = TrafficCounter(options.encode_frames)
        self.ledger = Ledger()
        self.network = Network(options.links, options.seed, self.scheduler, self._handle_link_event)
        self.identities = IdentityAllocator(
            options.seed, options.topology.nodes, options.shuffle_ids, options.derive_ids
        )
        self.sites: list[Site] = []
        self.hooks = HookCallbacks(())
        self.compromised: dict[int, Interceptor] = {}
        """By place: nodes that an attacker controls. Hooks do not observe them."""
        self.event_count = 0
        self.duplicates_dropped = 0
        self.topology_version = 0
        """Incremented when reachability may have changed."""
        self._broker_delay = options.links.broker_delay_ms / 1000
        self._observe_s = options.links.observe_delay_ms / 1000
        self._places_by_topic: dict[str, tuple[int, ...]] = {}
        self._timers_this_instant = (0.0, 0)
        self._partial_write_rng = (
            random.Random(f"{options.seed} torn") if options.has_partial_writes else None
        )
        self.on_effect_performed: OnEffectPerformed = lambda site, effect: None
        """Called after every effect of a delivery core; it may stop the agent."""
        self.retained = RetainedValues(
            self.scheduler,
            self._broker_delay,
            self._handle_broker_event,
            self._pass_to_broker,
            self._report_notification,
        )
        self._handlers: dict[type, Callable[[Site, Effect], None]] = {
            **dict.fromkeys(_STORAGE_COMMANDS, self._perform_storage_command),
            effects.AppendToJournal: self._append_to_journal,
            **self.retained.handlers,
            effects.Send: self._send,
            effects.CloseLink: self._close,
            effects.SubscribeAtBroker: self._subscribe_at_broker,
            effects.UnsubscribeAtBroker: self._unsubscribe_at_broker,
            effects.Deliver: self._deliver,
            effects.Gap: self._record_gap,
            effects.Duplicate: self._duplicate,
            effects.IncarnationRaised: self._apply_state_change,
            effects.EpochRolloverRequired: self._apply_state_change,
        }
        for place in range(options.topology.nodes):
            identity = self.identities.new_identity(place, 0)
            self.add_site(PersistentState.for_new_agent(*identity, options.disk))

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.scheduler.now

    def set_hooks(self, hooks: Iterable[Hooks]) -> None:
        """Replace the hooks."""
        self.hooks = HookCallbacks(hooks)

    def add_site(self, state: PersistentState) -> Site:
        """Add a site without links."""
        place = len(self.sites)
        name, capacity = self.options.node_name(place), self.options.node_capacity(place)
        queue_max = self.options.disk.broker_queue_max if self.options.disk else 0
        site = Site(place, state, name, capacity, queue_max)
        site.broker.on_agent_published = partial(self._release_to_clients, site)
        self.sites.append(site)
        return site

    def is_honest(self, node: NodeId) -> bool:
        """Whether no attacker controls or invented this node."""
        return not any(node in each.ids for each in self.compromised.values())

    def honest_sites(self) -> list[Site]:
        """Return the sites whose node no attacker controls. A compromised one stays so when it
        starts again with another id, of which its attacker has no frame yet."""
        if not self.compromised:
            return self.sites
        return [
            site
            for site in self.sites
            if site.place not in self.compromised and self.is_honest(site.state.id)
        ]

    def report_disturbance(
        self, what: str, fault: bool = True, places: tuple[int, ...] = ()
    ) -> None:
        """Report to the hooks that the federation has to adapt, mainly at these places."""
        self.topology_version += fault
        for call in self.hooks.on_disturbance:
            call(what, fault, places)

    # ------------------------------------------------------------ agent processes

    def start_agent(self, site: Site) -> None:
        """Start an agent: it dials its links and learns the subscriptions of its broker's
        clients."""
        identity = site.start_process(self.now, durable=self.options.disk is not None)
        site.delivery = SimulatedDelivery(
            self.scheduler, self.ledger, self.options.disk, self._broker_delay, self, site
        )
        restored = replace(site.delivery.core.restored_state(), retained=dict(site.state.retained))
        keys = site.make_exchange_keys(self.options.seed) if self.options.certificates else None
        authenticator = (
            self.identities.authority.enrol(
                identity.node, identity.key, self.options.node_rights(site.place)
            )
            if self.options.certificates
            else None
        )
        site.node = Node(
            identity,
            self.options.protocol,
            restored if site.is_durable else None,
            keys,
            authenticator,
        )
        self.topology_version += 1
        for call in self.hooks.on_agent_started:
            call(site)
        for link in list(self.network.links.values()):
            if link.a is site:
                self.network.start_dialling(link)
        self.scheduler.after(self._observe_s, self._report_initial_interest, site, site.process_run)
        if site.is_durable:
            self.handle_event(site, site.state.disk.peers_restored())
        site.delivery.start()
        self._reschedule_timer(site)

    def disconnect_agent(self, site: Site, refuse_s: float = 0.0) -> None:
        """Let a broker disconnect its agent, and refuse it for a while."""
        site.broker.close_agent(self.now, refuse_s)
        if site.delivery is not None:
            site.delivery.connection.on_closed()

    def lose_session(self, site: Site) -> None:
        """The broker loses the agent's session: publications not captured yet are lost."""
        journaled = {ledger_number(record.payload) for record in site.state.disk.journal}
        for packet in site.broker.lose_session(self.now):
            number = ledger_number(packet.payload)
            if number not in journaled:
                self.ledger.entries[number].is_captured = False
        if site.delivery is not None:
            site.delivery.connection.on_closed()

    def stop_agent(
        self, site: Site, notify_peers: bool, surviving_fraction: float | None = None
    ) -> None:
        """Stop an agent. With `notify_peers`, its kernel closes its connections. If no fraction of
        the unsynced writes that survive is given, the options decide."""
        if site.node is None:
            return
        if surviving_fraction is None:
            surviving_fraction = self._partial_write_rng.random() if self._partial_write_rng else 0
        site.stop(self.now, surviving_fraction)
        self.topology_version += 1
        self.network.close_all_ends(site, notify_peers)
        for call in self.hooks.on_agent_stopped:
            call(site)

    def resume_agent(self, site: Site, process_run: int) -> None:
        """Resume a suspended agent, first with the calls that were due."""
        if site.process_run != process_run or not site.is_frozen:
            return
        site.is_frozen = False
        self.report_disturbance(f"thaw {site.place}", places=(site.place,))
        backlog, site.postponed_calls = site.postponed_calls, []
        for react in backlog:
            if site.process_run == process_run:
                react()
        self._reschedule_timer(site)

    def restart_agent(self, site: Site, process_run: int, with_state: bool) -> None:
        """Restart an agent that was stopped in that process run, unless it was restarted
        already."""
        if site.node is not None or site.process_run != process_run:
            return
        if not with_state:  # it also has a new client id at its broker
            self.lose_session(site)
            site.identity_count += 1
            identity = self.identities.new_identity(site.place, site.identity_count)
            site.state = PersistentState.for_new_agent(*identity, self.options.disk)
        self.start_agent(site)

    # ------------------------------------------------------------ event loop

    def handle_event(self, site: Site, event: events.Event) -> None:
        """Let a node handle an event and perform its effects."""
        node = site.node
        if node is None:
            return
        if site.is_frozen:
            site.postponed_calls.append(partial(self.handle_event, site, event))
            return
        self.event_count += 1
        handlers = self._handlers
        effects = node.handle(event, self.scheduler.now)
        if site.place not in self.compromised:
            for call in self.hooks.on_event_handled:
                call(site, event, effects)
        for effect in effects:
            handlers.get(type(effect), self._report_notification)(site, effect)
            if site.node is not node:
                return  # the agent was stopped: its other effects are void
        deadline = site.deadline = node.next_deadline()
        if deadline is not None and deadline < site.timer_at:
            self._schedule_timer(site, deadline)

    def _handle_link_event(self, host: NetworkHost, event: LinkEvent) -> None:
        site = self.sites[host.place]
        if type(event) is events.FrameReceived:
            if self.options.encode_frames:
                event = events.FrameReceived(event.link, codec.decode(event.frame))  # type: ignore[arg-type]
            if host.place in self.compromised:
                self.compromised[host.place].incoming(event.frame)
            if type(event.frame) not in _QUIET_FRAMES:
                self._report_change_by(event.frame, site)
        else:
            self._report_state_change(site)
        self.handle_event(site, event)

    def _schedule_timer(self, site: Site, deadline: float) -> None:
        """Schedule a check at the node's deadline."""
        site.timer_at = max(deadline, self.now)
        self.scheduler.at(site.timer_at, self._on_timer, site, site.process_run, site.timer_at)

    def _reschedule_timer(self, site: Site) -> None:
        """Schedule a check for a node that handled no event just now, unless one is scheduled."""
        if site.node is not None:
            deadline = site.deadline = site.node.next_deadline()
            if deadline is not None and deadline < site.timer_at:
                self._schedule_timer(site, deadline)

    def _on_timer(self, site: Site, process_run: int, scheduled_at: float) -> None:
        """Fire the timer if the deadline has passed, otherwise schedule again."""
        if site.process_run != process_run or site.timer_at != scheduled_at:
            return
        site.timer_at = NEVER
        if site.is_frozen:
            return  # resuming schedules again
        assert site.node is not None
        deadline = site.deadline
        if deadline is not None and deadline <= self.now:
            self._check_for_livelock(site)
            self.handle_event(site, events.TimerFired())
        elif deadline is not None:
            self._schedule_timer(site, deadline)

    def _check_for_livelock(self, site: Site) -> None:
        moment, count = self._timers_this_instant
        self._timers_this_instant = (self.now, count + 1 if moment == self.now else 1)
        if count > TIMERS_PER_INSTANT_MAX * len(self.sites):
            raise AssertionError(f"n{site.place} does not advance its deadline at {self.now}")

    def _report_state_change(self, site: Site) -> None:
        site.change_count += 1
        for call in self.hooks.on_state_changed:
            call(site)

    def _report_change_by(self, frame: object, site: Site) -> None:
        """Report what a control frame may have changed at the site that sends or receives it."""
        if type(frame) not in _DELIVERY_FRAMES:
            self._report_state_change(site)
            return
        for call in self.hooks.on_delivery_changed:
            call(site)

    # ------------------------------------------------------------ effects

    def _send(self, site: Site, effect: Effect) -> None:
        assert type(effect) is effects.Send
        end = site.link_ends.get(effect.link)
        if end is None:
            return  # the session has ended; the node will be notified
        frame = effect.frame
        if type(frame) is Publication and self.network.is_window_full(end):
            self._report_notification(
                site, effects.Dropped(frame.origin, frame.sequence, "link window")
            )
            return
        if site.place in self.compromised:
            replaced = self.compromised[site.place].outgoing(frame)
            if replaced is not None:
                self.transmit(end, replaced)
            return
        size = self.transmit(end, frame)
        for call in self.hooks.on_frame_sent:
            call(site, effect, size)
        kind = type(frame)
        if kind is Publication:
            for call in self.hooks.on_copy_sent:
                call(end, frame)
        elif kind not in _QUIET_FRAMES:
            self._report_control_frame(site, end, frame)

    def transmit(self, end: LinkEnd, frame: AnyFrame | Publication) -> int:
        """Put a frame on a link; return its size."""
        size, checksum = self.traffic.count_frame(frame)
        ends = (end.host.place, end.peer.host.place)
        self.transcript.add_frame(self.scheduler.now, ends, size, checksum)
        self.network.send(end, codec.encode(frame) if self.options.encode_frames else frame)
        return size

    def _report_control_frame(self, site: Site, end: LinkEnd, frame: object) -> None:
        """Report control frames with new content; retransmissions are skipped."""
        if type(frame) is SequencedFrame:
            if frame.sequence <= end.highest_sequence:
                return
            end.highest_sequence = frame.sequence
            frame = frame.frame
        self._report_change_by(frame, site)
        if type(frame) is CoreAnnouncement:
            for call in self.hooks.on_announcement_sent:
                call(end, frame)

    def _close(self, site: Site, effect: Effect) -> None:
        assert type(effect) is effects.CloseLink
        end = site.link_ends.get(effect.link)
        if end is not None:
            self.network.close_end(end)

    def _handle_broker_event(self, site: Site, process_run: int, event: events.Event) -> None:
        """Handle an event of the broker, if the agent process still runs."""
        if site.process_run == process_run:
            if type(event) is not events.ClientPublished:
                self._report_state_change(site)
            self.handle_event(site, event)

    def _deliver(self, site: Site, effect: Effect) -> None:
        assert type(effect) is effects.Deliver
        self._pass_to_broker(site, effect.publication)

    def _pass_to_broker(self, site: Site, publication: Publication) -> None:
        """Publish at the broker, now or after earlier retained publications."""
        assert site.delivery is not None
        if publication.qos:
            site.delivery.deliver((publication,))
        else:
            site.delivery.publish_qos0((publication,))

    def _append_to_journal(self, site: Site, effect: Effect) -> None:
        assert type(effect) is effects.AppendToJournal and site.delivery is not None
        site.delivery.on_append_to_journal(effect.publication)

    def _perform_storage_command(self, site: Site, effect: Effect) -> None:
        assert site.delivery is not None
        site.delivery.perform_storage_command(effect)

    def _subscribe_at_broker(self, site: Site, effect: Effect) -> None:
        assert type(effect) is effects.SubscribeAtBroker and site.delivery is not None
        site.delivery.handle(RequireFilters(effect.filters))

    def _unsubscribe_at_broker(self, site: Site, effect: Effect) -> None:
        assert type(effect) is effects.UnsubscribeAtBroker and site.delivery is not None
        site.delivery.handle(ReleaseFilters(effect.filters))

    def _record_gap(self, site: Site, effect: Effect) -> None:
        assert type(effect) is effects.Gap
        assert site.delivery is not None
        site.delivery.deliver((effect,))
        self._report_notification(site, effect)

    def _release_to_clients(self, site: Site, message: Message) -> None:
        """The broker passes a publication of the agent to its clients; a requested retained
        message is only stored."""
        publication = site.delivered_publications.get(ledger_number(message.payload))
        if publication is not None and not message.properties.startswith(STORED_ONLY):
            self._deliver_to_clients(site, publication, self.now)

    def _deliver_to_clients(self, site: Site, publication: Publication, at: float) -> None:
        entry = self.ledger.find(publication)
        if site.place not in self.compromised:
            for call in self.hooks.on_delivered:
                call(site, publication, entry)
        if entry is not None:
            self.ledger.record_delivery(entry, site.place, at)
            what = MessageDelivered(entry.number, publication.topic, publication.hops)
            self.transcript.add_line(self.now, site.place, what)

    def _duplicate(self, site: Site, effect: Effect) -> None:
        self.duplicates_dropped += 1
        self._report_notification(site, effect)

    def _apply_state_change(self, site: Site, effect: Effect) -> None:
        if type(effect) is effects.IncarnationRaised:
            site.state.incarnation = effect.incarnation
        elif type(effect) is effects.EpochRolloverRequired:
            self._perform_storage_command(site, effect)
        self._report_notification(site, effect)

    def _report_notification(self, site: Site, effect: Effect) -> None:
        self.transcript.add_line(self.scheduler.now, site.place, effect)
        if type(effect) not in _QUIET_NOTIFICATIONS:
            self._report_state_change(site)
        if site.place not in self.compromised:
            for call in self.hooks.on_notification:
                call(site, effect)

    # ------------------------------------------------------------ clients

    def subscribe(self, site: Site, name: str) -> None:
        self._places_by_topic.clear()
        if site.broker.subscribe(name):
            self._report_interest_change(site, (name,), ())

    def unsubscribe(self, site: Site, name: str) -> None:
        self._places_by_topic.clear()
        if site.broker.unsubscribe(name):
            self._report_interest_change(site, (), (name,))

    def _report_initial_interest(self, site: Site, process_run: int) -> None:
        """Report the subscriptions of clients to an agent that has started, even if there are
        none."""
        if site.process_run == process_run:
            site.is_interest_known = True
            self._handle_broker_event(
                site, process_run, events.InterestChanged(tuple(site.broker.subscriber_counts))
            )

    def _report_interest_change(
        self, site: Site, added: tuple[str, ...], removed: tuple[str, ...]
    ) -> None:
        """Report the current subscriptions of clients, if an agent runs."""
        if site.is_interest_known:
            site.interest_reported_at = self.now + self._broker_delay
            event = events.InterestChanged(added, removed)
            self.scheduler.after(
                self._broker_delay, self._handle_broker_event, site, site.process_run, event
            )

    def publish(
        self,
        site: Site,
        topic: str,
        size: int,
        qos: int,
        retain: bool,
        is_repeated: bool = False,
    ) -> None:
        """Publish for a client; the agent gets it if it is subscribed."""
        payload = self.ledger.next_payload(size, is_repeated)
        others = [place for place in self._subscribed_places(topic) if place != site.place]
        expected_places = tuple(place for place in others if self.sites[place].node is not None)
        number = len(self.ledger.entries)
        entry = LedgerEntry(
            number, site.place, topic, payload, qos, retain, self.now, expected_places
        )
        self.ledger.add_publication(entry)
        self.transcript.add_line(self.now, site.place, MessagePublished(number, topic, qos))
        if site.place not in self.compromised:
            for call in self.hooks.on_published:
                call(entry)
        caused, entry.is_captured = site.broker.publish(topic, payload, qos, retain, self.now)
        if site.delivery is not None:
            site.delivery.connection.perform_broker_effects(caused)

    def _subscribed_places(self, topic: str) -> tuple[int, ...]:
        if topic not in self._places_by_topic:
            sites = [] if is_local_only(topic) else self.sites
            self._places_by_topic[topic] = tuple(
                s.place for s in sites if s.broker.has_plain_subscriber(topic)
            )
        return self._places_by_topic[topic]
