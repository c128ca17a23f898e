"""The agent's work for QoS 1 and 2: the broker's session and the disk.

The broker keeps the agent's session: a publication stays queued until the agent acknowledges it,
and is redelivered after a reconnection. The agent acknowledges when the publication is synced in
its journal, and injects others' publications when their acceptance is synced (see `injection`).
"""

from collections.abc import Callable, Sequence
from functools import partial

from hansa.protocol import effects, events
from hansa.protocol.effects import Effect
from hansa.protocol.model import PlainMessage, Publication
from hansa.simulator.options import DiskOptions
from hansa.simulator.world.broker import QueuedPublication
from hansa.simulator.world.disk import (
    DiskWrite,
    GapWrite,
    HeardWrite,
    InboxWrite,
    OutboxWrite,
    PeerWrite,
)
from hansa.simulator.world.injection import ReleaseToClients, SimulatedInjection
from hansa.simulator.world.ledger import Ledger, ledger_number
from hansa.simulator.world.scheduler import Scheduler
from hansa.simulator.world.site import Site

HandleEvent = Callable[[Site, events.Event], None]


class SimulatedDelivery:
    """Performs the effects that need a disk, for all sites."""

    def __init__(
        self,
        scheduler: Scheduler,
        ledger: Ledger,
        disk: DiskOptions | None,
        broker_s: float,
        handle_event: HandleEvent,
        release: ReleaseToClients,
    ) -> None:
        """`broker_s` is the one-way delay to a broker, `handle_event` sends an event to a node,
        `release` a publication to a broker's clients."""
        self._scheduler = scheduler
        self._ledger = ledger
        self._sync_s = disk.sync_ms / 1000 if disk else 0.0
        self._broker_s = broker_s
        self._handle_event = handle_event
        self._inbox_max = (disk or DiskOptions()).inbox_max
        in_flight_max = (disk or DiskOptions()).in_flight_max
        self._injection = SimulatedInjection(
            scheduler, broker_s, in_flight_max, self._write, release, self._write_arriving
        )
        self._packet_id = 0
        self.handlers: dict[type, Callable[[Site, Effect], None]] = {
            effects.AppendToJournal: self._append_to_journal,
            effects.ReadJournal: self._read_journal,
            effects.PersistPeer: self._persist_peer,
            effects.PersistHeard: self._persist_heard,
        }

    # ------------------------------------------------------------ the broker's session

    def capture(self, site: Site, event: QueuedPublication) -> None:
        """The broker sends a publication to the agent, which acknowledges at once if it need not
        keep it."""
        disk = site.state.disk
        if disk.has_packet(event.packet_id):  # redelivered
            if event.packet_id in disk.journaled_packets:
                self._acknowledge(site, event.packet_id)
            return
        self._packet_id = event.packet_id
        self._handle_event(site, event)
        if self._packet_id:
            self._ledger.entries[ledger_number(event.payload)].was_passed_over = True
            self._acknowledge(site, event.packet_id)

    def reconnect(self, site: Site) -> None:
        """Connect the agent to its broker, which redelivers everything unacknowledged."""
        self._distrust_stored(site)
        self._injection.start_connection(site)
        for event in list(site.broker.session_queue.values()):
            self.send_to_agent(site, event)

    def _distrust_stored(self, site: Site) -> None:
        """Mark as unknown what the broker stores of publications in flight and of other nodes."""
        assert site.node is not None
        values = site.node.delivery.retained
        topics = [each.topic for each in site.state.disk.inbox.values() if each.retain]
        if topics or values:
            event = events.StoreUncertain(tuple(dict.fromkeys(topics)), reconnected=True)
            self._handle_event(site, event)

    def hold_back(
        self, site: Site, publication: Publication
    ) -> Sequence[PlainMessage | Publication]:
        """Return the publications that may be sent now, given a retained one of QoS 0."""
        return self._injection.order(site).hold_back((publication,))

    def lose_session(self, site: Site) -> None:
        """The broker loses the agent's session: publications not captured yet are lost."""
        broker, disk = site.broker, site.state.disk
        for event in broker.session_queue.values():
            if event.packet_id not in disk.journaled_packets:
                self._ledger.entries[ledger_number(event.payload)].is_captured = False
        broker.drop_session(self._scheduler.now)

    def send_to_agent(self, site: Site, event: QueuedPublication) -> None:
        """Send a publication to the agent if it is connected; otherwise it waits in the session."""
        if site.broker.is_connected:
            connection = site.broker.connection_count
            self._scheduler.after(
                self._broker_s, self._receive_from_broker, site, connection, event
            )

    def _receive_from_broker(self, site: Site, connection: int, event: QueuedPublication) -> None:
        if (
            not self._is_same_connection(site, connection)
            or event.packet_id not in site.broker.session_queue
        ):
            return
        if site.is_frozen:
            site.postponed_calls.append(partial(self._receive_from_broker, site, connection, event))
        else:
            self.capture(site, event)

    def _is_same_connection(self, site: Site, connection: int) -> bool:
        return site.broker.is_connected and site.broker.connection_count == connection

    def _acknowledge(self, site: Site, packet: int) -> None:
        if not packet:
            return
        connection = site.broker.connection_count
        self._scheduler.after(self._broker_s, self._on_acknowledged, site, connection, packet)

    def _on_acknowledged(self, site: Site, connection: int, packet: int) -> None:
        if self._is_same_connection(
            site, connection
        ):  # otherwise the acknowledgement was lost with the connection
            site.broker.session_queue.pop(packet, None)
            site.state.disk.journaled_packets.pop(packet, None)

    def start_epoch(self, site: Site, epoch: int) -> None:
        """Start a new journal epoch with all unacknowledged publications."""
        assert site.node is not None
        disk = site.state.disk
        for write in disk.start_epoch(epoch, site.node.delivery.acknowledged):
            self._record_position(write.publication)
            self._acknowledge(site, write.packet_id)
        self._handle_event(
            site, events.EpochStarted(epoch, disk.next_seq, tuple(disk.last_assigned.items()))
        )

    # ------------------------------------------------------------ the disk

    def _append_to_journal(self, site: Site, effect: Effect) -> None:
        assert type(effect) is effects.AppendToJournal
        self._record_position(effect.publication)
        self._write(site, OutboxWrite(effect.publication, self._packet_id))
        self._packet_id = 0

    def _record_position(self, publication: Publication) -> None:
        entry = self._ledger.find(publication)
        assert entry is not None
        entry.journal_position = (publication.epoch, publication.sequence)
        entry.receivers = frozenset(node for node, _ in publication.previous)

    def _persist_peer(self, site: Site, effect: Effect) -> None:
        assert type(effect) is effects.PersistPeer
        assert site.node is not None
        records = tuple(site.node.records_of(effect.node))
        self._write(site, PeerWrite(effect.save_id, effect.node, records))

    def _persist_heard(self, site: Site, effect: Effect) -> None:
        assert type(effect) is effects.PersistHeard
        self._write(site, HeardWrite(effect.node))

    def receive_copy(self, site: Site, publication: Publication) -> None:
        """Accept a publication of another node if the inbox has room."""
        if publication.retain:
            self._injection.order(site).add(publication.topic, publication.version)
        site.unwritten.append(publication)
        self._write_arriving(site)

    def record_gap(self, site: Site, gap: effects.Gap) -> None:
        """Record a gap in the inbox, after the publications before it."""
        site.unwritten.append(gap)
        self._write_arriving(site)

    def _write_arriving(self, site: Site) -> None:
        disk = site.state.disk
        while site.unwritten:
            match site.unwritten[0]:
                case effects.Gap(origin, epoch, _, last):
                    self._write(site, GapWrite(origin, epoch, last))
                case publication if disk.inbox_count < self._inbox_max:
                    self._write(site, disk.assign_index(publication))
                case _:
                    return
            site.unwritten.popleft()

    def _read_journal(self, site: Site, effect: Effect) -> None:
        assert type(effect) is effects.ReadJournal
        disk, now = site.state.disk, self._scheduler.now
        done = max(now + self._sync_s, disk.stalled_until)
        self._scheduler.at(
            done, self._handle_if_same_run, site, site.process_run, disk.read_journal(effect)
        )

    def _write(self, site: Site, write: DiskWrite) -> None:
        if site.state.disk.write(write):
            self._scheduler.after(self._sync_s, self._sync, site, site.process_run)

    def _sync(self, site: Site, process_run: int) -> None:
        """Complete a sync; only now the nodes learn that their writes are durable."""
        if (
            site.process_run != process_run
            or site.state.disk.has_failed
            or self._is_postponed(site, process_run)
        ):
            return
        events_by_key: dict[
            tuple[int, int], events.Event
        ] = {}  # in this order; the last write of a key counts
        assert site.node is not None
        site.state.disk.acknowledged = site.node.delivery.acknowledged
        writes = site.state.disk.sync()
        self._injection.on_synced(site, writes)
        self._write_arriving(site)
        for write in writes:
            match write:
                case OutboxWrite(item, packet):
                    events_by_key[0, 0] = events.JournalCommitted(item.epoch, item.sequence)
                    self._acknowledge(site, packet)
                case HeardWrite(node):
                    events_by_key[1, node] = events.HeardPersisted(node)
                case InboxWrite(item) if item.sequence:
                    events_by_key[2, item.origin] = events.InboxCommitted(
                        item.origin, item.epoch, item.sequence
                    )
                case PeerWrite(number):
                    events_by_key[3, 0] = events.PeersPersisted(number)
        for _, event in sorted(events_by_key.items(), key=lambda entry: entry[0][0]):
            self._handle_if_same_run(site, process_run, event)

    def _is_postponed(self, site: Site, process_run: int) -> bool:
        """Postpone a sync while the agent is suspended or its disk stalls."""
        stalled_until = site.state.disk.stalled_until
        if site.is_frozen:
            site.postponed_calls.append(partial(self._sync, site, process_run))
        elif self._scheduler.now < stalled_until:
            self._scheduler.at(stalled_until, self._sync, site, process_run)
        return site.is_frozen or self._scheduler.now < stalled_until

    def _handle_if_same_run(self, site: Site, process_run: int, event: events.Event) -> None:
        if site.process_run == process_run:
            self._handle_event(site, event)
