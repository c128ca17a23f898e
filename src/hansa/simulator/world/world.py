"""The shell around all nodes of a run: it feeds them events, performs their effects, keeps time.

`post` is the whole of it: the same six lines as the live agent's driver. What is done *to* the
world is in `director`, what is watched in `watcher`; nothing here judges.
"""

import random
from collections.abc import Callable, Iterable
from functools import partial

from hansa.protocol import effects as orders
from hansa.protocol import events
from hansa.protocol.effects import Effect
from hansa.protocol.model import Publication
from hansa.protocol.topics import is_local_only
from hansa.protocol.wire import codec
from hansa.protocol.wire.frames import Acknowledge, Announce, Heartbeat, Numbered
from hansa.simulator.analysis.ledger import Entry, Ledger
from hansa.simulator.analysis.traffic import Traffic
from hansa.simulator.analysis.transcript import (
    ClientPublished,
    ClientsReceived,
    Listener,
    Transcript,
)
from hansa.simulator.options import Options
from hansa.simulator.world.delivery import Safekeeping
from hansa.simulator.world.hooks import Watcher, Watchers
from hansa.simulator.world.network import End, LinkEvent, Machine, Network
from hansa.simulator.world.retained import RetainedValues
from hansa.simulator.world.scheduler import Scheduler
from hansa.simulator.world.site import NEVER, Memory, Naming, Site
from hansa.simulator.world.subscriptions import Subscriptions

STUCK_COUNT = 1_000
"A node that asks for so many timers in one moment does not move its deadline."

_QUIET_FRAMES = (Heartbeat, Acknowledge, Publication)
"Frames that say nothing new about who is there and who is core."

_QUIET_NEWS = (orders.Duplicate, orders.Dropped, orders.Ignored)


class World:
    """All places of a run, with the network between them."""

    def __init__(self, options: Options, listen: Listener | None = None) -> None:
        """Build all places; nothing runs yet."""
        self.options = options
        self.scheduler = Scheduler()
        self.transcript = Transcript(listen)
        self.traffic = Traffic(options.wire)
        self.ledger = Ledger()
        self.network = Network(options.links, options.seed, self.scheduler, self._receive)
        self.naming = Naming(options.seed, options.topology.nodes, options.shuffle_ids)
        self.sites: list[Site] = []
        self.watchers = Watchers(())
        self.events = 0
        self.duplicates_dropped = 0
        self.shape = 0
        """Counts what may have changed who can reach whom."""
        self._broker_delay = options.links.broker_ms / 1000
        self._observe_s = options.links.observe_ms / 1000
        self._wanting: dict[str, tuple[int, ...]] = {}
        self._timers = (0.0, 0)
        self._torn = random.Random(f"{options.seed} torn") if options.torn else None
        self.safekeeping = Safekeeping(
            self.scheduler,
            self.ledger,
            options.disk,
            self._broker_delay,
            self.post,
            self._release,
        )
        self.retained = RetainedValues(
            self.scheduler, self._broker_delay, self._hear, self._pass_to_broker, self._tell
        )
        self.subscriptions = Subscriptions(self.scheduler, self._broker_delay, self._hear)
        self._perform: dict[type, Callable[[Site, Effect], None]] = {
            **self.safekeeping.orders,
            **self.retained.orders,
            orders.Send: self._send,
            orders.CloseLink: self._close,
            **self.subscriptions.orders,
            orders.Deliver: self._deliver,
            orders.Gap: self._miss,
            orders.Duplicate: self._duplicate,
            orders.IncarnationRaised: self._memorise,
            orders.EpochRenewed: self._memorise,
        }
        for place in range(options.topology.nodes):
            self.add_site(
                Memory.new(self.naming.ids[place], self.naming.key(place, 0), options.disk)
            )

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.scheduler.now

    def watch(self, watchers: Iterable[Watcher]) -> None:
        """Call these from now on, and no others."""
        self.watchers = Watchers(watchers)

    def add_site(self, memory: Memory) -> Site:
        """Add one place, not linked to any other."""
        place = len(self.sites)
        site = Site(place, memory, self.options.name(place), self.options.capacity(place))
        if self.options.disk:
            site.broker.queue_max = self.options.disk.queue_max
        self.sites.append(site)
        return site

    def disturb(self, what: str, fault: bool = True, places: tuple[int, ...] = ()) -> None:
        """Tell the watchers that the federation now has to adapt, there above all."""
        self.shape += fault
        for call in self.watchers.disturbed:
            call(what, fault, places)

    # ------------------------------------------------------------ the life of an agent

    def start(self, site: Site) -> None:
        """Start an agent: it dials its links and learns what its broker's clients want."""
        site.start(self.options.protocol, self.now, durable=self.options.disk is not None)
        self.shape += 1
        for call in self.watchers.started:
            call(site)
        for link in list(self.network.links.values()):
            if link.a is site:
                self.network.dial(link)
        self.scheduler.after(self._observe_s, self._report, site, site.life)
        if site.durable:
            self.post(site, site.memory.disk.restored())
        self.let_in(site)
        self._rearm(site)

    def let_in(self, site: Site) -> None:
        """Connect an agent with its broker, if both are there and the broker does not refuse."""
        broker = site.broker
        if site.node is not None and not broker.connected and self.now >= broker.refuses_until:
            self.safekeeping.connect(site)

    def stop(self, site: Site, tell: bool) -> None:
        """End an agent. If `tell`, its kernel closes its connections."""
        if site.node is None:
            return
        site.stop(self.now, self._torn.random() if self._torn else 0.0)
        self.shape += 1
        self.network.hang_up(site, tell)
        for call in self.watchers.stopped:
            call(site)

    def thaw(self, site: Site, life: int) -> None:
        """Let a suspended agent go on: first with what waited for it."""
        if site.life != life or not site.frozen:
            return
        site.frozen = False
        self.disturb(f"thaw {site.place}", places=(site.place,))
        backlog, site.backlog = site.backlog, []
        for react in backlog:
            if site.life == life:
                react()
        self._rearm(site)

    def start_again(self, site: Site, life: int, with_state: bool) -> None:
        """Start an agent that was stopped in that life, unless somebody else did."""
        if site.node is not None or site.life != life:
            return
        if not with_state:  # it has another name at its broker, too
            self.safekeeping.lose_session(site)
            site.broker.withdraw(list(site.broker.granted))
            site.generation += 1
            key = self.naming.key(site.place, site.generation)
            site.memory = Memory.new(self.naming.new_id(), key, self.options.disk)
        self.start(site)

    # ------------------------------------------------------------ the loop

    def post(self, site: Site, event: events.Event) -> None:
        """Let a node handle an event, and perform what it wants."""
        node = site.node
        if node is None:
            return
        if site.frozen:
            site.backlog.append(partial(self.post, site, event))
            return
        self.events += 1
        perform = self._perform
        wanted = node.handle(event, self.scheduler.now)
        for call in self.watchers.handled:
            call(site, event, wanted)
        for effect in wanted:
            perform.get(type(effect), self._tell)(site, effect)
            if site.node is not node:
                return  # it had to stop: what else it wanted is void
        deadline = site.deadline = node.next_deadline()
        if deadline is not None and deadline < site.timer_at:
            self._arm(site, deadline)

    def _receive(self, machine: Machine, event: LinkEvent) -> None:
        """Something happened on a link."""
        site = self.sites[machine.place]
        if type(event) is events.Received:
            if self.options.wire:
                event = events.Received(event.link, codec.decode(event.frame))  # type: ignore[arg-type]
            if type(event.frame) not in _QUIET_FRAMES:
                self._note_change(site)
        else:
            self._note_change(site)
        self.post(site, event)

    def _arm(self, site: Site, deadline: float) -> None:
        """Plan to look at the node when its deadline comes."""
        site.timer_at = max(deadline, self.now)
        self.scheduler.at(site.timer_at, self._wake, site, site.life, site.timer_at)

    def _rearm(self, site: Site) -> None:
        """Plan for a node that has handled nothing just now, unless that is planned already."""
        if site.node is not None:
            deadline = site.deadline = site.node.next_deadline()
            if deadline is not None and deadline < site.timer_at:
                self._arm(site, deadline)

    def _wake(self, site: Site, life: int, planned: float) -> None:
        """A planned look: fire the timer if the deadline is still that, else plan again."""
        if site.life != life or site.timer_at != planned:
            return
        site.timer_at = NEVER
        if site.frozen:
            return  # thawing plans anew
        assert site.node is not None
        deadline = site.deadline
        if deadline is not None and deadline <= self.now:
            self._guard_against_stuck(site)
            self.post(site, events.TimerFired())
        elif deadline is not None:
            self._arm(site, deadline)

    def _guard_against_stuck(self, site: Site) -> None:
        moment, count = self._timers
        self._timers = (self.now, count + 1 if moment == self.now else 1)
        if count > STUCK_COUNT * len(self.sites):
            raise AssertionError(f"n{site.place} does not move its deadline at {self.now}")

    def _note_change(self, site: Site) -> None:
        site.version += 1
        for call in self.watchers.changed:
            call(site)

    # ------------------------------------------------------------ effects

    def _send(self, site: Site, effect: Effect) -> None:
        assert type(effect) is orders.Send
        end = site.ends.get(effect.link)
        if end is None:
            return  # it ended meanwhile; the news of that is on its way to the node
        frame = effect.frame
        if type(frame) is Publication and self.network.is_full(end):
            self._tell(site, orders.Dropped(frame.origin, frame.number, "link window"))
            return
        size, checksum = self.traffic.count(frame)
        ends = (site.place, end.other.machine.place)
        self.transcript.frame(self.scheduler.now, ends, size, checksum)
        for call in self.watchers.transmitted:
            call(site, effect, size)
        kind = type(frame)
        if kind is Publication:
            for call in self.watchers.forwarded:
                call(end, frame)
        elif kind not in _QUIET_FRAMES:
            self._note_control(site, end, frame)
        self.network.send(end, codec.encode(frame) if self.options.wire else frame)

    def _note_control(self, site: Site, end: End, frame: object) -> None:
        """A node says something new; what it only sends again, nobody needs to look at."""
        if type(frame) is Numbered:
            if frame.number <= end.newest:
                return
            end.newest = frame.number
            frame = frame.frame
        self._note_change(site)
        if type(frame) is Announce:
            for call in self.watchers.announced:
                call(end, frame)

    def _close(self, site: Site, effect: Effect) -> None:
        assert type(effect) is orders.CloseLink
        end = site.ends.get(effect.link)
        if end is not None:
            self.network.close(end)

    def _hear(self, site: Site, life: int, event: events.Event) -> None:
        """Something comes from the broker, for the agent that ran when it left."""
        if site.life == life:
            if type(event) is not events.Published:
                self._note_change(site)
            self.post(site, event)

    def _deliver(self, site: Site, effect: Effect) -> None:
        assert type(effect) is orders.Deliver
        self._pass_to_broker(site, effect.publication)

    def _pass_to_broker(self, site: Site, publication: Publication) -> None:
        """Publish at the broker, now or when what has to be stored before it is there."""
        if publication.qos:
            self.safekeeping.deliver(site, publication)
        elif publication.retain:
            for each in self.safekeeping.hold_back(site, publication):
                assert isinstance(each, Publication)
                self._give(site, each)
        else:
            self._give(site, publication)

    def _give(self, site: Site, publication: Publication) -> None:
        """Publish at QoS 0, if the broker is there."""
        if not site.broker.connected:
            return
        if publication.retain:
            connection = site.broker.connections
            self.scheduler.after(self._broker_delay, self._store, site, connection, publication)
        if publication.number:  # else it is only to be stored
            self._hand_over(site, publication, self.now + self._broker_delay)

    def _store(self, site: Site, connection: int, publication: Publication) -> None:
        if site.broker.connections == connection:
            site.broker.store(publication.topic, publication.payload, publication.qos)

    def _miss(self, site: Site, effect: Effect) -> None:
        assert type(effect) is orders.Gap
        self.safekeeping.miss(site, effect)
        self._tell(site, effect)

    def _release(self, site: Site, publication: Publication) -> None:
        """A broker stores what its agent has published at QoS 1 or 2, and gives it to clients; what
        the agent had asked for is only to be stored. One of QoS 0 has waited for those before."""
        if not publication.qos:
            self._give(site, publication)
            return
        if publication.retain:
            site.broker.store(publication.topic, publication.payload, publication.qos)
        if publication.number:
            self._hand_over(site, publication, self.now)

    def _hand_over(self, site: Site, publication: Publication, at: float) -> None:
        entry = self.ledger.find(publication)
        for call in self.watchers.delivered:
            call(site, publication, entry)
        if entry is not None:
            self.ledger.deliver(entry, site.place, at)
            what = ClientsReceived(entry.number, publication.topic, publication.hops)
            self.transcript.note(self.now, site.place, what)

    def _duplicate(self, site: Site, effect: Effect) -> None:
        self.duplicates_dropped += 1
        self._tell(site, effect)

    def _memorise(self, site: Site, effect: Effect) -> None:
        if type(effect) is orders.IncarnationRaised:
            site.memory.incarnation = effect.incarnation
        elif type(effect) is orders.EpochRenewed:
            self.safekeeping.renew(site, effect.epoch)
        self._tell(site, effect)

    def _tell(self, site: Site, effect: Effect) -> None:
        """Note news."""
        self.transcript.note(self.scheduler.now, site.place, effect)
        if type(effect) not in _QUIET_NEWS:
            self._note_change(site)
        for call in self.watchers.told:
            call(site, effect)

    # ------------------------------------------------------------ clients

    def subscribe(self, site: Site, name: str) -> None:
        """A client subscribes."""
        self._wanting.clear()
        if site.broker.subscribe(name):
            self._observe(site, (name,), ())

    def unsubscribe(self, site: Site, name: str) -> None:
        """A client takes a subscription back."""
        self._wanting.clear()
        if site.broker.unsubscribe(name):
            self._observe(site, (), (name,))

    def _report(self, site: Site, life: int) -> None:
        """The observer of an agent that has started knows what clients want, be it nothing."""
        if site.life == life:
            site.observed = True
            self._hear(site, life, events.InterestChanged(tuple(site.broker.clients)))

    def _observe(self, site: Site, added: tuple[str, ...], removed: tuple[str, ...]) -> None:
        """The agent's observer sees what clients want now, if an agent runs."""
        if site.observed:
            site.told_at = self.now + self._broker_delay
            event = events.InterestChanged(added, removed)
            self.scheduler.after(self._broker_delay, self._hear, site, site.life, event)

    def publish(self, site: Site, topic: str, size: int, qos: int, retain: bool) -> None:
        """A client publishes; the agent sees it if it is subscribed to it."""
        payload = self.ledger.payload(size)
        others = [place for place in self._wanting_places(topic) if place != site.place]
        wanted = tuple(place for place in others if self.sites[place].node is not None)
        number = len(self.ledger.entries)
        entry = Entry(number, site.place, topic, payload, qos, retain, self.now, wanted)
        self.ledger.publish(entry)
        self.transcript.note(self.now, site.place, ClientPublished(number, topic, qos))
        for call in self.watchers.published:
            call(entry)
        if retain:
            site.broker.store(topic, payload, qos)
        if not site.broker.shows(topic):
            return
        if qos:
            queued = site.broker.queue(topic, payload, qos, retain)
            if queued is not None:
                entry.captured = True
                self.safekeeping.show(site, queued)
        elif site.broker.connected:
            entry.captured = True
            event = events.Published(topic, payload, qos, retain)
            self.scheduler.after(self._broker_delay, self._hear, site, site.life, event)

    def _wanting_places(self, topic: str) -> tuple[int, ...]:
        if topic not in self._wanting:
            sites = [] if is_local_only(topic) else self.sites
            self._wanting[topic] = tuple(s.place for s in sites if s.broker.wants(topic))
        return self._wanting[topic]
