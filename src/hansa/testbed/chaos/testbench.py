"""A live federation with clients at its brokers, and the hands that break it.

Every link goes through a relay, so that it can be broken. What is broken is remembered, so that all
of it can be mended: also when a hand was stopped in the middle of what it did.
"""

import asyncio
import secrets
from contextlib import suppress
from pathlib import Path

from hansa.errors import PromiseBroken
from hansa.simulator.topologies import Topology
from hansa.testbed.chaos.agents import Agents
from hansa.testbed.chaos.brokers import Brokers
from hansa.testbed.chaos.clients import Publisher, Sleeper, Subscriber
from hansa.testbed.chaos.evidence import Evidence, Preface
from hansa.testbed.chaos.fault_effects import Harm
from hansa.testbed.chaos.fault_log import Faults
from hansa.testbed.chaos.history import Event
from hansa.testbed.chaos.links import Links
from hansa.testbed.chaos.outstanding import Account
from hansa.testbed.federation import Cable, LocalFederation
from hansa.testbed.shutdown import to_the_end

POLL_S = 0.05
INSTALL_TIMEOUT_S = 30.0
TOPICS = {"plant/line1/temp": 1, "plant/line2/temp": 2, "plant/line1/speed": 0}
"""What every publisher publishes, each topic at its QoS."""
FILTERS = ("plant/+/temp", "plant/#")
"""What subscribers want, in turn: overlapping, so that the same topic comes by several groups."""

CABLE = Cable(can_cut=True)


class Stage:
    """All that a scenario can reach."""

    def __init__(self, federation: LocalFederation) -> None:
        """Stand around a federation that runs."""
        self.run = secrets.token_hex(3)
        """Part of every publication: what is left of another run is not taken for one of this."""
        self.federation = federation
        self.harm = Harm()
        self.agents = Agents(federation, self.harm)
        self.links = Links(federation, self.harm)
        self.brokers = Brokers(federation, self.harm, self._clients_back)
        self.publishers: dict[int, Publisher] = {}
        self.subscribers: dict[int, Subscriber] = {}
        """By place, as are publishers."""
        self.sleepers: list[Sleeper] = []
        self.account = Account({})

    @property
    def places(self) -> range:
        """All nodes, by number."""
        return range(len(self.federation.nodes))

    def wanted(self) -> dict[str, list[str]]:
        """Return which topics each subscriber gets."""
        return {
            client.name: [topic for topic in TOPICS if number % 2 or topic.endswith("temp")]
            for number, client in enumerate(self.subscribers.values())
        }

    def evidence(self) -> Evidence:
        """Return what clients saw until now, and what was done to each of them."""
        publishers = {place: client.name for place, client in self.publishers.items()}
        subscribers = {place: client.name for place, client in self.subscribers.items()}
        circumstances = self.harm.circumstances(publishers, subscribers)
        preface = Preface(self.wanted(), circumstances, self.harm.problems)
        return Evidence(preface, self.account.history)

    # ------------------------------------------------------------ clients

    async def populate(
        self, publishers: list[int], subscribers: list[int], rate: float, payload_bytes: int = 0
    ) -> None:
        """Connect clients, and wait until every subscription is installed everywhere."""

        def note(event: Event) -> None:
            self.account.note(event)

        for number, place in enumerate(subscribers):
            filters = (FILTERS[number % 2],)
            client = Subscriber(self.brokers.address(place), f"sub{place}", filters, note)
            self.subscribers[place] = client
        for place in publishers:
            name = f"pub{place}-{self.run}"
            publisher = Publisher(self.brokers.address(place), name, TOPICS, rate, note)
            publisher.has_properties = True
            publisher.payload_bytes = payload_bytes
            self.publishers[place] = publisher
        self.account = Account(self.wanted())
        await asyncio.gather(*(client.start() for client in self._clients))
        await self._installed(subscribers)

    @property
    def _clients(self) -> list[Publisher | Subscriber]:
        return [*self.subscribers.values(), *self.publishers.values()]

    async def _clients_back(self, place: int) -> None:
        """Wait until the subscriber of a broker is subscribed there again."""
        client = self.subscribers.get(place)
        try:
            async with asyncio.timeout(INSTALL_TIMEOUT_S):
                while client is not None and not client.is_subscribed:
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise PromiseBroken(f"the subscriber at broker {place} does not get back") from None

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

    async def close(self) -> None:
        """End everything, also if somebody gets impatient."""
        await to_the_end(self._close())

    async def _close(self) -> None:
        await self.pause()
        self.wake_sleepers()
        await asyncio.gather(*(client.stop() for client in self._clients))
        await self.federation.stop()
        if self.harm.faults:
            self.harm.faults.close()

    async def pause(self) -> None:
        """Let nobody publish any more. Who had stopped before has published too little."""
        pauses = (publisher.pause() for publisher in self.publishers.values())
        ended = await asyncio.gather(*pauses, return_exceptions=True)
        self.harm.problems += [f"a publisher stopped: {each!r}" for each in ended if each]

    async def put_to_sleep(self, place: int) -> None:
        """Connect a client there that subscribes to everything and never reads."""
        self.harm.note("sleeper", place)
        sleeper = Sleeper(self.brokers.address(place), f"sleeper{len(self.sleepers)}-{place}")
        self.sleepers.append(sleeper)
        with suppress(OSError):  # its broker may just be away
            await sleeper.start()

    def wake_sleepers(self) -> None:
        """Let them go."""
        while self.sleepers:
            self.sleepers.pop().stop()

    # ------------------------------------------------------------ mending

    @property
    def sides(self) -> tuple[set[int], set[int]]:
        """The nodes in two parts, by number; in a grid each hangs together."""
        half = len(self.places) // 2
        return set(self.places[:half]), set(self.places[half:])

    async def heal(self) -> None:
        """Undo everything that was done."""
        self.wake_sleepers()
        self.links.heal()
        await self.brokers.heal()
        await self.agents.heal()
        for place in list(self.harm.forgetful):
            await self._clients_back(place)
            await self.federation.wait_until_converged()
            self.harm.remember(place, asyncio.get_running_loop().time())


async def set_up(topology: Topology, keep: Path | None = None, cable: Cable = CABLE) -> Stage:
    """Start a federation whose brokers keep what they hold when they are stopped gently. With a
    directory all of it is kept there, and agents and faults write telemetry."""
    settings = {"HANSA_TELEMETRY_SAMPLE": "all"} if keep else {}
    federation = LocalFederation(topology, settings, cable=cable, persistent=True, directory=keep)
    stage = Stage(federation)
    try:
        await federation.start()
        await federation.wait_until_converged()
        if keep:
            statuses = [await asyncio.to_thread(node.status) for node in federation.nodes]
            ids = [int(str(status["node"]), 16) for status in statuses]
            stage.harm.faults = Faults(keep, ids)
    except BaseException:  # whatever it was: nothing stays behind
        await federation.stop()
        raise
    return stage
