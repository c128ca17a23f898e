"""A live federation with clients at its brokers, and the hands that break it.

Every link goes through a relay, so that it can be cut. What is broken is remembered, so that all of
it can be mended.
"""

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hansa.agent.brokers.connection import BrokerAddress
from hansa.chaos.account import Account
from hansa.chaos.clients import Publisher, Subscriber
from hansa.chaos.faults import Faults
from hansa.chaos.history import Event
from hansa.errors import UsageError
from hansa.local.federation import Cable, LocalFederation
from hansa.local.mosquitto import end
from hansa.simulator.topologies import Topology

POLL_S = 0.05
INSTALL_TIMEOUT_S = 30.0
TOPICS = {"plant/line1/temp": 1, "plant/line2/temp": 2, "plant/line1/speed": 0}
"""What every publisher publishes, each topic at its QoS."""
FILTERS = ("plant/+/temp", "plant/#")
"""What subscribers want, in turn: overlapping, so that the same topic comes by several groups."""


@dataclass(slots=True)
class Stage:
    """All that a scenario can reach."""

    federation: LocalFederation
    faults: Faults | None = None
    """Writes down what is done, if somebody wants to read it."""
    publishers: list[Publisher] = field(default_factory=list)
    subscribers: list[Subscriber] = field(default_factory=list)
    account: Account = field(default_factory=lambda: Account({}))
    _dead: set[int] = field(default_factory=set)
    _hanging: set[int] = field(default_factory=set)
    _cut: set[tuple[int, int]] = field(default_factory=set)

    @property
    def places(self) -> range:
        """All nodes, by number."""
        return range(len(self.federation.nodes))

    @property
    def topology(self) -> Topology:
        """Who is linked to whom."""
        return self.federation.topology

    def wanted(self) -> dict[str, list[str]]:
        """Return which topics each subscriber gets."""
        return {
            client.name: [topic for topic in TOPICS if number % 2 or topic.endswith("temp")]
            for number, client in enumerate(self.subscribers)
        }

    # ------------------------------------------------------------ clients

    async def populate(self, publishers: list[int], subscribers: list[int], rate: float) -> None:
        """Connect clients, and wait until every subscription is installed everywhere."""

        def note(event: Event) -> None:
            self.account.note(event)

        self.subscribers += [
            Subscriber(self.address(place), f"sub{place}", (FILTERS[number % 2],), note)
            for number, place in enumerate(subscribers)
        ]
        self.publishers += [
            Publisher(self.address(place), f"pub{place}", TOPICS, rate, note)
            for place in publishers
        ]
        self.account = Account(self.wanted())
        await asyncio.gather(*(client.start() for client in self._clients))
        await self._installed(subscribers)

    @property
    def _clients(self) -> list[Publisher | Subscriber]:
        return [*self.subscribers, *self.publishers]

    async def _installed(self, subscribers: list[int]) -> None:
        async with asyncio.timeout(INSTALL_TIMEOUT_S):
            for place in subscribers:
                while not await self._knows_its_own(place):
                    await asyncio.sleep(POLL_S)
        await self.federation.wait_until_converged()

    async def _knows_its_own(self, place: int) -> bool:
        status = await asyncio.to_thread(self.federation.nodes[place].status)
        interest = status["interest"]
        assert isinstance(interest, dict)
        return bool(set(FILTERS).intersection(interest["local"]))

    def address(self, place: int) -> BrokerAddress:
        """Where a broker is."""
        return BrokerAddress("127.0.0.1", self.federation.nodes[place].broker.port)

    async def close(self) -> None:
        """End everything."""
        await asyncio.gather(*(publisher.pause() for publisher in self.publishers))
        await asyncio.gather(*(client.stop() for client in self._clients))
        await self.federation.stop()
        if self.faults:
            self.faults.close()

    # ------------------------------------------------------------ breaking and mending

    def _note(self, what: str, *places: int) -> None:
        if self.faults:
            self.faults.note(what, *places)

    async def kill_agent(self, place: int) -> None:
        """Kill -9."""
        self._note("crash", place)
        self._hanging.discard(place)
        self._dead.add(place)
        await self._signal(place, signal.SIGKILL)

    async def start_agent(self, place: int) -> None:
        """Start an agent that was killed."""
        if place in self._dead:
            self._note("restart", place)
            self._dead.discard(place)
            await self.federation.start_agent(place)

    async def hang_agent(self, place: int) -> None:
        """SIGSTOP."""
        if place not in self._dead:
            self._note("freeze", place)
            self._hanging.add(place)
            await self._signal(place, signal.SIGSTOP)

    async def wake_agent(self, place: int) -> None:
        """SIGCONT."""
        if place in self._hanging:
            self._note("thaw", place)
            self._hanging.discard(place)
            await self._signal(place, signal.SIGCONT)

    async def _signal(self, place: int, number: signal.Signals) -> None:
        agent = self.federation.nodes[place].agent
        if agent is None or agent.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.kill(agent.pid, number)
        if number is signal.SIGKILL:
            await agent.wait()

    async def restart_broker(self, place: int) -> None:
        """Stop a broker gently and start it again: it keeps its sessions."""
        self._note("restart-broker", place)
        broker = self.federation.nodes[place].broker
        assert broker.process is not None
        await end(broker.process)
        await broker.start()

    def cut(self, a: int, b: int) -> None:
        """Let nothing pass between two neighbours, and tell nobody."""
        self._note("silence", a, b)
        self._cut.add((a, b))
        self.federation.cut(a, b)

    def mend(self, a: int, b: int) -> None:
        """Undo `cut`."""
        self._note("mend", a, b)
        self._cut.discard((a, b))
        self.federation.mend(a, b)

    @property
    def sides(self) -> tuple[set[int], set[int]]:
        """The nodes in two parts, by number; in a grid each hangs together."""
        half = len(self.places) // 2
        return set(self.places[:half]), set(self.places[half:])

    def part(self, side: set[int]) -> None:
        """Cut all links between these nodes and the others."""
        for a, b in self.topology.links:
            if (a in side) != (b in side):
                self.cut(a, b)

    def mend_all(self) -> None:
        """Undo all cuts."""
        for a, b in list(self._cut):
            self.mend(a, b)

    async def heal(self) -> None:
        """Undo everything that was done."""
        self.mend_all()
        for place in list(self._hanging):
            await self.wake_agent(place)
        for place in list(self._dead):
            await self.start_agent(place)


async def set_up(topology: Topology, keep: Path | None = None) -> Stage:
    """Start a federation whose brokers keep what they hold when they are stopped gently. With a
    directory all of it is kept there, and agents and faults write telemetry."""
    cable = Cable(can_cut=True)
    settings = {"HANSA_TELEMETRY_SAMPLE": "all"} if keep else {}
    federation = LocalFederation(topology, settings, cable=cable, persistent=True, directory=keep)
    faults: Faults | None = None
    try:
        await federation.start()
        await federation.wait_until_converged()
        if keep:
            statuses = [await asyncio.to_thread(node.status) for node in federation.nodes]
            faults = Faults(keep, [int(str(status["node"]), 16) for status in statuses])
    except (UsageError, asyncio.CancelledError):
        await federation.stop()
        raise
    return Stage(federation, faults)
