"""Retained values of a real broker, read on request of the node while deliveries are in flight."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.agent.live import Client
from tests.agent.waiting import until

from hansa.agent.broker.connection import BrokerAddress, Connection
from hansa.agent.broker.retained_store import RetainedStore
from hansa.agent.storage.state_directory import StateDirectory
from hansa.mqtt import inputs, packets
from hansa.mqtt.options import ConnectOptions
from hansa.protocol.effects import ListRetained, ReadRetained
from hansa.protocol.events import ClientPublished, Event, RetainedListed, RetainedRead
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.node import Node
from hansa.protocol.retained.digest import RetainedEntry, payload_digest
from hansa.protocol.settings import ProtocolSettings
from hansa.testbed.mosquitto import Mosquitto, free_port

OTHER = NodeId(9)


class Busy:
    """Guaranteed delivery that always has publications in flight, and the driver of a node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.reported: list[Event] = []
        self.delivered = 2
        self.done = 0

    def feed(self, *events: Event) -> None:
        self.reported += events

    @property
    def delivery_mark(self) -> int:
        self.delivered += 1
        return self.delivered

    def has_passed(self, mark: int) -> bool:
        return self.done >= mark

    def deliver(self, batch: Any) -> None:
        raise AssertionError("nothing is delivered")


class AtBroker:
    """The part of the agent's client that is needed here."""

    problem = ""

    @property
    def connection(self) -> "AtBroker":
        return self

    def publish(self, publications: Sequence[Publication]) -> None:
        raise AssertionError("nothing is published")


def test_pending_deliveries_delay_a_survey_but_no_response(mosquitto, tmp_path):
    async def work(path: Path) -> None:
        broker = Mosquitto(path / "broker", free_port())
        await broker.start()
        client = await asyncio.to_thread(Client, broker.port)
        client._do(inputs.Publish([packets.PublishPacket("a", b"x", retain=True)]))  # noqa: SLF001
        state = StateDirectory(path / "state")
        busy = Busy(Node(state.start_incarnation("n", (), 1.0), ProtocolSettings()))
        address, options = (
            BrokerAddress("127.0.0.1", broker.port),
            ConnectOptions(client_id="reader"),
        )
        values = RetainedStore(
            state,
            busy,
            busy,
            AtBroker(),
            lambda reported: Connection(address, options, reported, random.Random(1)),
            lambda problem: None,
        )
        try:
            values.perform(ListRetained(("#",)))
            values.perform(ReadRetained(OTHER, ("a",)))
            await until(lambda: busy.reported, "the answer to a node")
            assert busy.reported == [RetainedRead(OTHER, (ClientPublished("a", b"x", 0, True),))]
            await until(lambda: busy.delivered == 3, "a mark is waited for")
            busy.done = busy.delivered
            busy.delivered += 1
            await until(lambda: len(busy.reported) == 2, "the survey")
            survey = busy.reported[1]
            assert isinstance(survey, RetainedListed)
            assert survey.filters == ("#",)
            assert survey.values == (("a", payload_digest(b"x")),)
            assert survey.age > 0
        finally:
            await values.stop()
            client.close()
            await broker.stop()
            state.close()

    asyncio.run(work(tmp_path))


def test_broker_that_lost_its_sessions_is_read_for_values_of_its_own_clients(tmp_path):
    async def work() -> None:
        state = StateDirectory(tmp_path / "state")
        busy = Busy(Node(state.start_incarnation("n", (), 1.0), ProtocolSettings()))
        values = RetainedStore(state, busy, busy, AtBroker(), None, lambda problem: None)
        values.on_session_lost()
        assert busy.reported == []
        busy.node._delivery.retained.entries.update(  # noqa: SLF001
            {
                "own": RetainedEntry(5, busy.node.id, b"x"),
                "own deleted": RetainedEntry(6, busy.node.id),
                "theirs": RetainedEntry(7, OTHER, b"x"),
                "theirs deleted": RetainedEntry(8, OTHER),
            }
        )
        values.on_session_lost()
        assert busy.reported == []  # other nodes' values are compared after every connection
        assert list(values._filters_to_list) == ["own"]  # noqa: SLF001
        await values.stop()
        state.close()

    asyncio.run(work())
