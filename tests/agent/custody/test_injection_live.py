"""What takes publications into a broker, at a real Mosquitto that allows few at once."""

import asyncio
import random
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.agent.custody.life import YOU, Life
from tests.agent.sure import SureClient
from tests.agent.waiting import PATIENCE, until

from hansa.agent.brokers.connection import BrokerAddress, Connection
from hansa.mqtt import effects, inputs
from hansa.mqtt.options import Options
from hansa.mqtt.packets import Handshake, Publish
from hansa.protocol.events import Stored

COUNT = 100
AT_ONCE = 20


class StuckLife(Life):
    """A life with a real broker, and a disk that stands still from the broker's first answer on."""

    def __init__(self, path: Path, port: int) -> None:
        super().__init__(path)
        self.sessions: list[bool] = []
        """Of each connection, whether the broker still had the session."""
        self.disk = threading.Event()
        self.disk.set()
        self._commit = self.backlog.writer.commit
        self.backlog.writer.commit = self._commit_later  # type: ignore[method-assign]
        options = Options(client_id="agent", session_expiry=1_000)
        address = BrokerAddress("127.0.0.1", port)
        self.connection = Connection(address, options, self._told, random.Random(1))

    def _commit_later(self) -> int:
        assert self.disk.wait(PATIENCE)
        return self._commit()

    @property
    def accepted(self) -> int:
        """How many the broker holds and was not told to release."""
        return sum(each.accepted_at is not None for each in self.backlog.entries.values())

    def inject(self, batch: Sequence[Publish]) -> None:
        self.connection.order(inputs.Publish(batch))

    def answer(self, batch: Sequence[Handshake]) -> None:
        self.connection.order(inputs.Answer(batch))

    def _told(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Connected(present, limits):
                self.sessions.append(present)
                self.injection.connected(present, limits)
            case effects.Answered(batch):
                if len(self.sessions) == 1:
                    self.disk.clear()
                self.injection.answered(batch)
            case effects.Disconnected():
                self.injection.disconnected()


def test_a_disk_that_is_slower_than_the_broker_comes_back_leaves_the_order(scene, tmp_path):
    """The broker then still holds as many as it allows, and refuses whatever is one too many."""
    broker = scene.broker(f"max_inflight_messages {AT_ONCE}")
    subscriber = scene.client_of(SureClient, broker.port).subscribe_surely("a")

    numbers = range(1, 1 + COUNT)

    async def work() -> None:
        life = StuckLife(tmp_path / "inbox", broker.port)
        life.deliver(*numbers)
        await until(lambda: Stored(YOU, 8, COUNT) in life.stored, "stored")
        life.connection.keep()
        await until(lambda: life.accepted == AT_ONCE, "as many as the broker allows")
        life.connection.cut()
        await until(lambda: life.sessions == [False, True], "the same session")
        life.disk.set()
        await until(lambda: not life.backlog.entries, "all of them")
        assert life.injection.counters["injected"] == COUNT
        await life.connection.stop()
        await life.injection.stop()

    asyncio.run(work())
    assert subscriber.read_until(COUNT) == [b"%d" % number for number in numbers]
