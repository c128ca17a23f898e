"""What an agent's shell does for publications of QoS 1 and 2: the broker's session, and the disk.

The broker keeps the agent's session: what it shows the agent stays queued until it is
acknowledged, and comes again when the agent does. Publications are acknowledged when they are safe
in the journal, and injected when it is safe that they were taken (see `injection`).
"""

from collections.abc import Callable, Sequence
from functools import partial

from hansa.protocol import effects as orders
from hansa.protocol import events
from hansa.protocol.effects import Effect
from hansa.protocol.model import Plain, Publication
from hansa.simulator.analysis.ledger import Ledger, number_in
from hansa.simulator.options import DiskOptions
from hansa.simulator.world.broker import Queued
from hansa.simulator.world.disk import Heard, Kept, Known, Missed, Taken, Write
from hansa.simulator.world.injection import Injection, Release
from hansa.simulator.world.scheduler import Scheduler
from hansa.simulator.world.site import Site

Post = Callable[[Site, events.Event], None]


class Safekeeping:
    """Performs the orders that need a disk, for all places."""

    def __init__(
        self,
        scheduler: Scheduler,
        ledger: Ledger,
        disk: DiskOptions | None,
        broker_s: float,
        post: Post,
        release: Release,
    ) -> None:
        """`broker_s`: the way to a broker; `post` tells a node, `release` a broker's clients."""
        self._scheduler = scheduler
        self._ledger = ledger
        self._sync_s = disk.sync_ms / 1000 if disk else 0.0
        self._broker_s = broker_s
        self._post = post
        self._inbox_max = (disk or DiskOptions()).inbox_max
        window = (disk or DiskOptions()).window
        self._injection = Injection(
            scheduler, broker_s, window, self._write, release, self._take_next
        )
        self._packet = 0
        self.orders: dict[type, Callable[[Site, Effect], None]] = {
            orders.Keep: self._keep,
            orders.Recall: self._recall,
            orders.Remember: self._remember,
            orders.Hear: self._hear,
        }

    # ------------------------------------------------------------ the broker's session

    def capture(self, site: Site, event: Queued) -> None:
        """The broker shows the agent a publication; what need not be kept is acknowledged."""
        disk = site.memory.disk
        if disk.has(event.packet):  # it came again
            if event.packet in disk.packets:
                self._acknowledge(site, event.packet)
            return
        self._packet = event.packet
        self._post(site, event)
        if self._packet:
            self._ledger.entries[number_in(event.payload)].let_pass = True
            self._acknowledge(site, event.packet)

    def connect(self, site: Site) -> None:
        """The agent meets its broker: all that it has not acknowledged comes again."""
        self._distrust_stored(site)
        self._injection.connect(site)
        for event in list(site.broker.session.values()):
            self.show(site, event)

    def _distrust_stored(self, site: Site) -> None:
        """The agent does not know what its broker stores of what was in flight, nor of what other
        nodes published."""
        assert site.node is not None
        values = site.node.custody.retained.values
        topics = [each.topic for each in site.memory.disk.bound.values() if each.retain]
        if topics or values:
            event = events.StoreUncertain(tuple(dict.fromkeys(topics)), reconnected=True)
            self._post(site, event)

    def hold_back(self, site: Site, publication: Publication) -> Sequence[Plain | Publication]:
        """Return what may be published now of a retained publication of QoS 0."""
        return self._injection.order(site).hold_back((publication,))

    def lose_session(self, site: Site) -> None:
        """The broker forgets what the agent's session holds: what was not captured is lost."""
        broker, disk = site.broker, site.memory.disk
        for event in broker.session.values():
            if event.packet not in disk.packets:
                self._ledger.entries[number_in(event.payload)].captured = False
        broker.forget_agent(self._scheduler.now)

    def show(self, site: Site, event: Queued) -> None:
        """Send the agent a publication, if it is there; else it waits in the session."""
        if site.broker.connected:
            connection = site.broker.connections
            self._scheduler.after(self._broker_s, self._arrive, site, connection, event)

    def _arrive(self, site: Site, connection: int, event: Queued) -> None:
        if not self._is_same(site, connection) or event.packet not in site.broker.session:
            return
        if site.frozen:
            site.backlog.append(partial(self._arrive, site, connection, event))
        else:
            self.capture(site, event)

    def _is_same(self, site: Site, connection: int) -> bool:
        """Whether agent and broker are connected as they were."""
        return site.broker.connected and site.broker.connections == connection

    def _acknowledge(self, site: Site, packet: int) -> None:
        if not packet:
            return
        connection = site.broker.connections
        self._scheduler.after(self._broker_s, self._acknowledged, site, connection, packet)

    def _acknowledged(self, site: Site, connection: int, packet: int) -> None:
        if self._is_same(site, connection):  # else it was lost with the connection
            site.broker.session.pop(packet, None)
            site.memory.disk.packets.pop(packet, None)

    def renew(self, site: Site, epoch: int) -> None:
        """The journal begins anew, with all that was not acknowledged."""
        assert site.node is not None
        disk = site.memory.disk
        for kept in disk.renew(epoch, site.node.custody.outbox.acknowledged):
            self._note_position(kept.publication)
            self._acknowledge(site, kept.packet)
        self._post(site, events.Reopened(epoch, disk.next_seq, tuple(disk.owed.items())))

    # ------------------------------------------------------------ the disk

    def _keep(self, site: Site, effect: Effect) -> None:
        assert type(effect) is orders.Keep
        self._note_position(effect.publication)
        self._write(site, Kept(effect.publication, self._packet))
        self._packet = 0

    def _note_position(self, publication: Publication) -> None:
        entry = self._ledger.find(publication)
        assert entry is not None
        entry.position = (publication.life, publication.number)
        entry.owed = frozenset(node for node, _ in publication.previous)

    def _remember(self, site: Site, effect: Effect) -> None:
        assert type(effect) is orders.Remember
        assert site.node is not None
        records = tuple(site.node.records_of(effect.node))
        self._write(site, Known(effect.number, effect.node, records))

    def _hear(self, site: Site, effect: Effect) -> None:
        assert type(effect) is orders.Hear
        self._write(site, Heard(effect.node))

    def deliver(self, site: Site, publication: Publication) -> None:
        """Take a publication of another node, when there is room."""
        if publication.retain:
            self._injection.order(site).enter(publication.topic, publication.version)
        site.arriving.append(publication)
        self._take_next(site)

    def miss(self, site: Site, gap: orders.Gap) -> None:
        """Note what will never come, behind all that came before it."""
        site.arriving.append(gap)
        self._take_next(site)

    def _take_next(self, site: Site) -> None:
        disk = site.memory.disk
        while site.arriving:
            match site.arriving[0]:
                case orders.Gap(origin, epoch, _, last):
                    self._write(site, Missed(origin, epoch, last))
                case publication if disk.under_way < self._inbox_max:
                    self._write(site, disk.take(publication))
                case _:
                    return
            site.arriving.popleft()

    def _recall(self, site: Site, effect: Effect) -> None:
        assert type(effect) is orders.Recall
        disk, now = site.memory.disk, self._scheduler.now
        done = max(now + self._sync_s, disk.stalled_until)
        self._scheduler.at(done, self._feed, site, site.life, disk.recall(effect))

    def _write(self, site: Site, what: Write) -> None:
        if site.memory.disk.write(what):
            self._scheduler.after(self._sync_s, self._sync, site, site.life)

    def _sync(self, site: Site, life: int) -> None:
        """What was written is safe; then and only then the world hears of it."""
        if site.life != life or site.memory.disk.failed or self._is_late(site, life):
            return
        told: dict[tuple[int, int], events.Event] = {}  # in this order; the last of a key counts
        assert site.node is not None
        site.memory.disk.acknowledged = site.node.custody.outbox.acknowledged
        writes = site.memory.disk.sync()
        self._injection.saved(site, writes)
        self._take_next(site)
        for what in writes:
            match what:
                case Kept(item, packet):
                    told[0, 0] = events.Kept(item.life, item.number)
                    self._acknowledge(site, packet)
                case Heard(node):
                    told[1, node] = events.Heard(node)
                case Taken(item) if item.number:
                    told[2, item.origin] = events.Stored(item.origin, item.life, item.number)
                case Known(number):
                    told[3, 0] = events.Noted(number)
        for _, event in sorted(told.items(), key=lambda entry: entry[0][0]):
            self._feed(site, life, event)

    def _is_late(self, site: Site, life: int) -> bool:
        """Put a sync off while the agent is suspended, or its disk stalls."""
        stalled_until = site.memory.disk.stalled_until
        if site.frozen:
            site.backlog.append(partial(self._sync, site, life))
        elif self._scheduler.now < stalled_until:
            self._scheduler.at(stalled_until, self._sync, site, life)
        return site.frozen or self._scheduler.now < stalled_until

    def _feed(self, site: Site, life: int, event: events.Event) -> None:
        if site.life == life:
            self._post(site, event)
