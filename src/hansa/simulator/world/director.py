"""Carries out actions: the only hand that reaches into a world.

What cannot be done (a link that is gone, a node that does not run) is left undone without fuss, so
that random schedules need not know how earlier steps ended.
"""

from hansa.simulator.actions import (
    Action,
    AddLink,
    BackUp,
    Clone,
    Crash,
    Cut,
    CutOneWay,
    CutSilently,
    FailDisk,
    Flap,
    Freeze,
    Heal,
    Mend,
    Partition,
    Publish,
    Refuse,
    RemoveLink,
    Restart,
    RestartBroker,
    RollBack,
    SetClock,
    Stall,
    Step,
    Subscribe,
    Unsubscribe,
    Vanish,
    describe,
    places_of,
)
from hansa.simulator.world.network import Link
from hansa.simulator.world.site import Site
from hansa.simulator.world.world import World

COPY_S = 5.0
"""Seconds after which an operator stops a copy of an agent."""


class Director:
    """Plays a schedule in a world."""

    def __init__(self, world: World) -> None:
        """Take charge of a world."""
        self._world = world

    def plan(self, step: Step) -> None:
        """Note a step of the schedule; steps of the same moment keep their order."""
        self._world.scheduler.at(step.at_s, self.act, step.action)

    def act(self, action: Action) -> None:
        """Do something now."""
        match action:
            case Subscribe() | Unsubscribe() | Publish():
                self._act_as_client(action)
            case _ if self._act_on_nodes(action) or self._act_on_links(action):
                self._world.transcript.note(self._world.now, None, action)
                self._world.disturb(self._describe(action), places=places_of(action))
            case _:
                pass  # nothing to do it to

    def _describe(self, action: Action) -> str:
        return describe(action, self._world.options.topology.label)

    # ------------------------------------------------------------ clients

    def _act_as_client(self, action: Subscribe | Unsubscribe | Publish) -> None:
        world, site = self._world, self._world.sites[action.node]
        if isinstance(action, Publish):
            self._publish(site, action, action.count)
            return
        world.transcript.note(world.now, None, action)
        if isinstance(action, Subscribe):
            world.subscribe(site, action.filter)
        else:
            world.unsubscribe(site, action.filter)
        world.disturb(self._describe(action), fault=False)

    def _publish(self, site: Site, action: Publish, remaining: int) -> None:
        world = self._world
        world.publish(site, action.topic, action.payload_bytes, action.qos, action.retain)
        if remaining > 1:
            world.scheduler.after(action.interval_s, self._publish, site, action, remaining - 1)

    # ------------------------------------------------------------ nodes

    def _act_on_nodes(self, action: Action) -> bool:
        match action:
            case Crash(node) | Vanish(node):
                return self._kill(self._world.sites[node], tell=isinstance(action, Crash))
            case Freeze(node, seconds):
                return self._freeze(self._world.sites[node], seconds)
            case Stall(node) | FailDisk(node) | SetClock(node) | Refuse(node):
                return self._act_on_machine(action, self._world.sites[node])
            case Restart(node, with_state):
                return self._restart(self._world.sites[node], with_state)
            case RestartBroker(node, return_s):
                return self._restart_broker(self._world.sites[node], return_s)
            case BackUp(node):
                return self._world.sites[node].back_up()
            case RollBack(node):
                return self._roll_back(self._world.sites[node])
            case Clone(node, near):
                return self._clone(self._world.sites[node], near)
            case _:
                return False

    def _kill(self, site: Site, tell: bool) -> bool:
        if site.node is None:
            return False
        site.powered = tell
        self._world.stop(site, tell)
        return True

    def _freeze(self, site: Site, seconds: float) -> bool:
        if not site.active:
            return False
        site.frozen = True
        self._world.scheduler.after(seconds, self._world.thaw, site, site.life)
        return True

    def _act_on_machine(self, action: Action, site: Site) -> bool:
        disk = site.memory.disk
        match action:
            case Stall(_, seconds):
                disk.stalled_until = max(disk.stalled_until, self._world.now + seconds)
            case FailDisk():
                disk.failed = site.node is not None
            case SetClock(_, seconds):
                site.memory.clock_s += seconds
            case Refuse(_, seconds):
                return self._refuse(site, seconds)
        return True

    def _refuse(self, site: Site, seconds: float) -> bool:
        world = self._world
        site.broker.hang_up(world.now, seconds)
        world.scheduler.at(site.broker.refuses_until, self._let_in, site)
        return True

    def _let_in(self, site: Site) -> None:
        self._world.let_in(site)
        self._world.disturb(f"n{site.place} is let in again", places=(site.place,))

    def _restart(self, site: Site, with_state: bool) -> bool:
        self._world.stop(site, tell=True)
        self._world.start_again(site, site.life, with_state)
        return True

    def _roll_back(self, site: Site) -> bool:
        if site.backup is None:
            return False
        self._world.stop(site, tell=True)
        site.put_back(self._world.now)
        self._world.start_again(site, site.life, with_state=True)
        return True

    def _restart_broker(self, site: Site, return_s: float | None) -> bool:
        """Clients are gone with their subscriptions; the agent's shell makes its own again."""
        world = self._world
        for name, count in list(site.broker.clients.items()):
            for _ in range(count):
                world.unsubscribe(site, name)
                if return_s is not None:
                    world.scheduler.after(return_s, self.act, Subscribe(site.place, name))
        world.safekeeping.lose_session(site)
        world.subscriptions.make_again(site, world.let_in)
        return True

    def _clone(self, original: Site, near: int) -> bool:
        """Start a copy of an agent at a new place; an operator stops it after a while."""
        site = self._world.add_site(original.memory.copy())
        self._world.network.add(self._world.sites[near], site)
        self._world.start(site)
        self._world.scheduler.after(COPY_S, self._end_copy, site)
        return True

    def _end_copy(self, site: Site) -> None:
        self._world.stop(site, tell=True)
        self._world.disturb(f"n{site.place}, a copy, is stopped", places=(site.place,))

    # ------------------------------------------------------------ links

    def _act_on_links(self, action: Action) -> bool:
        match action:
            case AddLink(a, b):
                return self._add(a, b)
            case Partition(sides):
                return self._partition(sides)
            case Heal():
                return self._heal()
            case (
                Cut(a, b)
                | CutSilently(a, b)
                | CutOneWay(a, b)
                | Mend(a, b)
                | RemoveLink(a, b)
                | Flap(a, b)
            ):
                link = self._world.network.link(a, b)
                return link is not None and self._act_on_link(action, link)
            case _:
                return False

    def _act_on_link(self, action: Action, link: Link) -> bool:
        network = self._world.network
        match action:
            case Cut():
                self._cut_both(link)
                network.tear(link, "connection cut")
            case CutSilently():
                self._cut_both(link)
            case CutOneWay(a):
                network.cut(link.out if link.a.place == a else link.back)
            case Mend():
                self._mend(link)
            case RemoveLink():
                network.remove(link)
            case Flap(_, _, hz, seconds):
                for half in range(int(2 * hz * seconds)):
                    turn = Mend(action.a, action.b) if half % 2 else Cut(action.a, action.b)
                    self._world.scheduler.after(half / (2 * hz), self.act, turn)
        return True

    def _add(self, a: int, b: int) -> bool:
        if a == b or self._world.network.link(a, b) is not None:
            return False
        self._world.network.add(self._world.sites[a], self._world.sites[b])
        return True

    def _cut_both(self, link: Link) -> None:
        self._world.network.cut(link.out)
        self._world.network.cut(link.back)

    def _mend(self, link: Link) -> None:
        self._world.network.mend(link.out)
        self._world.network.mend(link.back)

    def _partition(self, sides: tuple[tuple[int, ...], ...]) -> bool:
        side_of = {place: number for number, side in enumerate(sides) for place in side}
        for (a, b), link in self._world.network.links.items():
            if a in side_of and b in side_of and side_of[a] != side_of[b]:
                self._cut_both(link)
        return True

    def _heal(self) -> bool:
        for link in self._world.network.links.values():
            if not link.usable:
                self._mend(link)
        for site in self._world.sites:
            if site.frozen:
                self._world.thaw(site, site.life)
        return True
