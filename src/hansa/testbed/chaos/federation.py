"""A live federation with clients at its brokers and actuators for faults.

Actuators remember every fault, so `heal` restores the federation even if a fault was cancelled
half-way.
"""

import asyncio
import secrets
from contextlib import suppress
from pathlib import Path

from hansa.errors import PromiseBroken
from hansa.simulator.topologies import Topology
from hansa.testbed.cancellation import run_to_completion
from hansa.testbed.chaos.actuators.agents import AgentActuator
from hansa.testbed.chaos.actuators.brokers import BrokerActuator
from hansa.testbed.chaos.actuators.links import LinkActuator
from hansa.testbed.chaos.clients import HistoryPublisher, HistorySubscriber, StalledSubscriber
from hansa.testbed.chaos.fault_effects import FaultEffects, FaultLog
from hansa.testbed.chaos.history import HistoryEvent, OutstandingDeliveries
from hansa.testbed.chaos.verdict import Evidence, EvidenceHeader
from hansa.testbed.federation import LinkProfile, LocalFederation

POLL_S = 0.05
INSTALL_TIMEOUT_S = 30.0
TOPICS = {"plant/line1/temp": 1, "plant/line2/temp": 2, "plant/line1/speed": 0}
"""Topics of every publisher, with their QoS."""
FILTERS = ("plant/+/temp", "plant/#")
"""Filters of the subscribers in turn: overlapping, so that one topic belongs to several groups."""

CUTTABLE_LINKS = LinkProfile(can_cut=True)


class ChaosFederation:
    """A running federation as faults and verdict see it; nodes are numbered places."""

    def __init__(self, federation: LocalFederation) -> None:
        self.run_token = secrets.token_hex(3)
        """Part of the publishers' names: publications of another run are not taken for ours."""
        self.federation = federation
        self.fault_effects = FaultEffects()
        self.agents = AgentActuator(federation, self.fault_effects)
        self.links = LinkActuator(federation, self.fault_effects)
        self.brokers = BrokerActuator(federation, self.fault_effects, self._wait_for_subscriber)
        self.publishers: dict[int, HistoryPublisher] = {}
        self.subscribers: dict[int, HistorySubscriber] = {}
        """Both by place."""
        self.stalled_clients: list[StalledSubscriber] = []
        self.outstanding = OutstandingDeliveries({})

    @property
    def places(self) -> range:
        return range(len(self.federation.nodes))

    def expected_topics(self) -> dict[str, list[str]]:
        """Return the topics that each subscriber must get."""
        return {
            client.name: [topic for topic in TOPICS if number % 2 or topic.endswith("temp")]
            for number, client in enumerate(self.subscribers.values())
        }

    def evidence(self) -> Evidence:
        """Return the history of the clients so far, and the effects of faults on each of them."""
        publishers = {place: client.name for place, client in self.publishers.items()}
        subscribers = {place: client.name for place, client in self.subscribers.items()}
        context = self.fault_effects.fault_context(publishers, subscribers)
        header = EvidenceHeader(self.expected_topics(), context, self.fault_effects.problems)
        return Evidence(header, self.outstanding.history)

    # ------------------------------------------------------------ clients

    async def connect_clients(
        self, publishers: list[int], subscribers: list[int], rate: float, payload_bytes: int = 0
    ) -> None:
        """Connect clients, and wait until every subscription is installed everywhere."""

        def record(event: HistoryEvent) -> None:
            self.outstanding.add_event(event)

        for number, place in enumerate(subscribers):
            filters = (FILTERS[number % 2],)
            client = HistorySubscriber(self.brokers.address(place), f"sub{place}", filters, record)
            self.subscribers[place] = client
        for place in publishers:
            name = f"pub{place}-{self.run_token}"
            publisher = HistoryPublisher(self.brokers.address(place), name, TOPICS, rate, record)
            publisher.has_properties = True
            publisher.payload_bytes = payload_bytes
            self.publishers[place] = publisher
        self.outstanding = OutstandingDeliveries(self.expected_topics())
        await asyncio.gather(*(client.start() for client in self._clients))
        await self._wait_until_installed(subscribers)

    @property
    def _clients(self) -> list[HistoryPublisher | HistorySubscriber]:
        return [*self.subscribers.values(), *self.publishers.values()]

    async def _wait_for_subscriber(self, place: int) -> None:
        """Wait until the subscriber of a broker, if there is one, has subscribed again."""
        client = self.subscribers.get(place)
        try:
            async with asyncio.timeout(INSTALL_TIMEOUT_S):
                while client is not None and not client.is_subscribed:
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise PromiseBroken(f"the subscriber at broker {place} does not return") from None

    async def _wait_until_installed(self, subscribers: list[int]) -> None:
        async with asyncio.timeout(INSTALL_TIMEOUT_S):
            for place in subscribers:
                while not await self._knows_local_interest(place):
                    await asyncio.sleep(POLL_S)
        await self.federation.wait_until_converged()

    async def _knows_local_interest(self, place: int) -> bool:
        status = await asyncio.to_thread(self.federation.nodes[place].status)
        interest = status["interest"]
        assert isinstance(interest, dict)
        return bool(set(FILTERS).intersection(interest["local"]))

    async def close(self) -> None:
        """Stop everything, even if this is cancelled."""
        await run_to_completion(self._close())

    async def _close(self) -> None:
        await self.stop_publishers()
        self.close_stalled_clients()
        await asyncio.gather(*(client.stop() for client in self._clients))
        await self.federation.stop()
        if self.fault_effects.fault_log:
            self.fault_effects.fault_log.close()

    async def stop_publishers(self) -> None:
        """Stop all publishers; one that had failed before is recorded as a problem."""
        stops = (publisher.stop_publishing() for publisher in self.publishers.values())
        ended = await asyncio.gather(*stops, return_exceptions=True)
        self.fault_effects.problems += [f"a publisher stopped: {each!r}" for each in ended if each]

    async def add_stalled_client(self, place: int) -> None:
        """Connect a client that subscribes to everything and never reads."""
        self.fault_effects.record_fault("stalled-client", place)
        client = StalledSubscriber(
            self.brokers.address(place), f"stalled{len(self.stalled_clients)}-{place}"
        )
        self.stalled_clients.append(client)
        with suppress(OSError):  # the broker may be down
            await client.start()

    def close_stalled_clients(self) -> None:
        while self.stalled_clients:
            self.stalled_clients.pop().stop()

    # ------------------------------------------------------------ partitions, healing

    @property
    def sides(self) -> tuple[set[int], set[int]]:
        """The nodes in two halves; in a grid each half is connected."""
        half = len(self.places) // 2
        return set(self.places[:half]), set(self.places[half:])

    async def heal(self) -> None:
        """Undo all faults, and wait until lost state is replaced."""
        self.close_stalled_clients()
        self.links.heal()
        await self.brokers.heal()
        await self.agents.heal()
        for place in list(self.fault_effects.open_losses):
            await self._wait_for_subscriber(place)
            await self.federation.wait_until_converged()
            self.fault_effects.end_loss(place, asyncio.get_running_loop().time())


async def start_chaos_federation(
    topology: Topology, keep: Path | None = None, link_profile: LinkProfile = CUTTABLE_LINKS
) -> ChaosFederation:
    """Start a federation with persistent brokers. With `keep`, state and logs are kept in that
    directory, and agents and faults write telemetry."""
    settings = {"HANSA_TELEMETRY_SAMPLE": "all"} if keep else {}
    federation = LocalFederation(
        topology, settings, link_profile=link_profile, persistent=True, directory=keep
    )
    chaos = ChaosFederation(federation)
    try:
        await federation.start()
        await federation.wait_until_converged()
        if keep:
            statuses = [await asyncio.to_thread(node.status) for node in federation.nodes]
            ids = [int(str(status["node"]), 16) for status in statuses]
            chaos.fault_effects.fault_log = FaultLog(keep, ids)
    except BaseException:  # also at cancellation no process may be left
        await federation.stop()
        raise
    return chaos
