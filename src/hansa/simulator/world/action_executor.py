"""Performs scheduled actions on a world; nothing else changes it from outside.

An impossible action (a removed link, a node that does not run) is ignored, so that random schedules
need not know the outcome of earlier actions.
"""

from hansa.simulator.actions import (
    AddLink,
    BackUpState,
    ClientPublish,
    ClientSubscribe,
    ClientUnsubscribe,
    CloneNode,
    CrashAgent,
    CutLink,
    CutOneWay,
    CutSilently,
    FailDisk,
    FillDisk,
    FlapLink,
    FreezeAgent,
    HealAll,
    Partition,
    PlayAttack,
    PowerOff,
    RefuseAgent,
    RemoveLink,
    RestartAgent,
    RestartBroker,
    RestoreLink,
    RollBackState,
    ScheduledAction,
    SetClock,
    SimulatedAction,
    StallDisk,
    affected_places,
    describe_action,
)
from hansa.simulator.world.network import SimulatedLink
from hansa.simulator.world.site import Site
from hansa.simulator.world.world import World

COPY_S = 5.0
"""Seconds until the operator stops a clone of an agent."""


class ActionExecutor:
    def __init__(self, world: World) -> None:
        self._world = world

    def schedule(self, step: ScheduledAction) -> None:
        """Schedule an action; actions of the same time keep their order."""
        self._world.scheduler.at(step.at_s, self.perform, step.action)

    def perform(self, action: SimulatedAction) -> None:
        match action:
            case ClientSubscribe() | ClientUnsubscribe() | ClientPublish():
                self._perform_client_action(action)
            case _ if self._perform_node_action(action) or self._perform_links_action(action):
                self._world.transcript.add_line(self._world.now, None, action)
                self._world.report_disturbance(
                    self._describe(action), places=affected_places(action)
                )
            case _:
                pass  # the target does not exist

    def _describe(self, action: SimulatedAction) -> str:
        return describe_action(action, self._world.options.topology.node_label)

    # ------------------------------------------------------------ clients

    def _perform_client_action(
        self, action: ClientSubscribe | ClientUnsubscribe | ClientPublish
    ) -> None:
        world, site = self._world, self._world.sites[action.node]
        if isinstance(action, ClientPublish):
            self._publish(site, action, action.count)
            return
        world.transcript.add_line(world.now, None, action)
        if isinstance(action, ClientSubscribe):
            world.subscribe(site, action.filter)
        else:
            world.unsubscribe(site, action.filter)
        world.report_disturbance(self._describe(action), fault=False)

    def _publish(self, site: Site, action: ClientPublish, remaining: int) -> None:
        world = self._world
        world.publish(
            site, action.topic, action.payload_bytes, action.qos, action.retain, action.is_repeated
        )
        if remaining > 1:
            world.scheduler.after(action.interval_s, self._publish, site, action, remaining - 1)

    # ------------------------------------------------------------ nodes

    def _perform_node_action(self, action: SimulatedAction) -> bool:
        match action:
            case CrashAgent(node) | PowerOff(node):
                return self._stop_agent(
                    self._world.sites[node], notify_peers=isinstance(action, CrashAgent)
                )
            case FreezeAgent(node, seconds):
                return self._freeze(self._world.sites[node], seconds)
            case (
                StallDisk(node)
                | FillDisk(node)
                | FailDisk(node)
                | SetClock(node)
                | RefuseAgent(node)
            ):
                return self._perform_machine_action(action, self._world.sites[node])
            case RestartAgent(node, with_state):
                return self._restart(self._world.sites[node], with_state)
            case RestartBroker(node, return_s):
                return self._restart_broker(self._world.sites[node], return_s)
            case BackUpState(node):
                return self._world.sites[node].save_backup()
            case RollBackState(node):
                return self._roll_back(self._world.sites[node])
            case CloneNode(node, near):
                return self._clone(self._world.sites[node], near)
            case PlayAttack(node, attack):
                self._world.compromised[node].play(attack)
                return True
            case _:
                return False

    def _stop_agent(self, site: Site, notify_peers: bool) -> bool:
        if site.node is None:
            return False
        site.is_powered = notify_peers
        self._world.stop_agent(site, notify_peers)
        return True

    def _freeze(self, site: Site, seconds: float) -> bool:
        if not site.is_active:
            return False
        site.is_frozen = True
        self._world.scheduler.after(seconds, self._world.resume_agent, site, site.process_run)
        return True

    def _perform_machine_action(self, action: SimulatedAction, site: Site) -> bool:
        disk = site.state.disk
        match action:
            case StallDisk(_, seconds):
                disk.stalled_until = max(disk.stalled_until, self._world.now + seconds)
            case FillDisk(_, seconds):
                disk.full_until = max(disk.full_until, self._world.now + seconds)
            case FailDisk():
                disk.has_failed = site.node is not None
            case SetClock(_, seconds):
                site.state.clock_offset_s += seconds
            case RefuseAgent(_, seconds):
                return self._refuse(site, seconds)
        return True

    def _refuse(self, site: Site, seconds: float) -> bool:
        world = self._world
        world.disconnect_agent(site, seconds)
        world.scheduler.at(site.broker.refuses_until, self._report_accepted, site)
        return True

    def _report_accepted(self, site: Site) -> None:
        self._world.report_disturbance(f"n{site.place} is let in again", places=(site.place,))

    def _restart(self, site: Site, with_state: bool) -> bool:
        self._world.stop_agent(site, notify_peers=True)
        self._world.restart_agent(site, site.process_run, with_state)
        return True

    def _roll_back(self, site: Site) -> bool:
        if site.backup is None:
            return False
        self._world.stop_agent(site, notify_peers=True)
        site.restore_backup(self._world.now)
        self._world.restart_agent(site, site.process_run, with_state=True)
        return True

    def _restart_broker(self, site: Site, return_s: float | None) -> bool:
        """Drop the clients with their subscriptions; the agent's shell renews its own."""
        world = self._world
        for name, count in list(site.broker.subscriber_counts.items()):
            for _ in range(count):
                world.unsubscribe(site, name)
                if return_s is not None:
                    world.scheduler.after(return_s, self.perform, ClientSubscribe(site.place, name))
        world.lose_session(site)
        return True

    def _clone(self, original: Site, near: int) -> bool:
        """Start a copy of an agent at a new place and stop it after COPY_S."""
        site = self._world.add_site(original.state.copy())
        self._world.network.add_link(self._world.sites[near], site)
        self._world.start_agent(site)
        self._world.scheduler.after(COPY_S, self._end_copy, site)
        return True

    def _end_copy(self, site: Site) -> None:
        self._world.stop_agent(site, notify_peers=True)
        self._world.report_disturbance(f"n{site.place}, a copy, is stopped", places=(site.place,))

    # ------------------------------------------------------------ links

    def _perform_links_action(self, action: SimulatedAction) -> bool:
        match action:
            case AddLink(a, b):
                return self._add_link(a, b)
            case Partition(sides):
                return self._partition(sides)
            case HealAll():
                return self._heal()
            case (
                CutLink(a, b)
                | CutSilently(a, b)
                | CutOneWay(a, b)
                | RestoreLink(a, b)
                | RemoveLink(a, b)
                | FlapLink(a, b)
            ):
                link = self._world.network.find_link(a, b)
                return link is not None and self._perform_link_action(action, link)
            case _:
                return False

    def _perform_link_action(self, action: SimulatedAction, link: SimulatedLink) -> bool:
        network = self._world.network
        match action:
            case CutLink():
                self._cut_both(link)
                network.abort_sessions(link, "connection cut")
            case CutSilently():
                self._cut_both(link)
            case CutOneWay(a):
                network.cut_direction(link.a_to_b if link.a.place == a else link.b_to_a)
            case RestoreLink():
                self._restore_link(link)
            case RemoveLink():
                network.remove_link(link)
            case FlapLink(_, _, hz, seconds):
                for half_period in range(int(2 * hz * seconds)):
                    action_now = (
                        RestoreLink(action.a, action.b)
                        if half_period % 2
                        else CutLink(action.a, action.b)
                    )
                    self._world.scheduler.after(half_period / (2 * hz), self.perform, action_now)
        return True

    def _add_link(self, a: int, b: int) -> bool:
        if a == b or self._world.network.find_link(a, b) is not None:
            return False
        self._world.network.add_link(self._world.sites[a], self._world.sites[b])
        return True

    def _cut_both(self, link: SimulatedLink) -> None:
        self._world.network.cut_direction(link.a_to_b)
        self._world.network.cut_direction(link.b_to_a)

    def _restore_link(self, link: SimulatedLink) -> None:
        self._world.network.restore_direction(link.a_to_b)
        self._world.network.restore_direction(link.b_to_a)

    def _partition(self, sides: tuple[tuple[int, ...], ...]) -> bool:
        side_of = {place: number for number, side in enumerate(sides) for place in side}
        for (a, b), link in self._world.network.links.items():
            if a in side_of and b in side_of and side_of[a] != side_of[b]:
                self._cut_both(link)
        return True

    def _heal(self) -> bool:
        for link in self._world.network.links.values():
            if not link.is_usable:
                self._restore_link(link)
        for site in self._world.sites:
            if site.is_frozen:
                self._world.resume_agent(site, site.process_run)
        return True
