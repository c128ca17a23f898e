"""Guaranteed delivery put together: what the node hears of the disk, whatever happens there."""

import asyncio
from pathlib import Path
from typing import Any

from tests.agent.waiting import until

from hansa.agent.alarms import Alarms
from hansa.agent.custody.safekeeping import Safekeeping
from hansa.agent.custody.settings import DeliverySettings
from hansa.agent.records.topics import Topics
from hansa.agent.state import StateDirectory
from hansa.protocol.effects import Recall
from hansa.protocol.events import Event, Recalled
from hansa.protocol.node import Node
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.vocabulary import NodeId


class Driver:
    """A node that nobody drives; it is only told."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.told: list[Event] = []

    def feed(self, *events: Event) -> None:
        self.told += events

    def captured_surely(self, publication: Any) -> None:
        raise AssertionError("nothing is published")


class Broker:
    """One that is never there."""

    def inject(self, batch: Any) -> None:
        raise AssertionError("nothing is injected")

    def answer(self, batch: Any) -> None:
        raise AssertionError("nothing is answered")

    def stays(self, topic: str) -> bool:
        return False


def test_a_fault_in_reading_the_journal_is_answered_so_that_the_node_reads_again(
    tmp_path: Path, monkeypatch: Any
) -> None:
    async def work() -> None:
        state = StateDirectory(tmp_path)
        identity = state.identity("n", (), 1.0)
        alarms = Alarms()
        made = Safekeeping(state, identity, DeliverySettings(), alarms, Topics())
        driver = Driver(Node(identity, ProtocolSettings(), made.past()))
        made.attach(driver, Broker())
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, said: faults.append(said))

        def fail(order: Recall) -> Recalled:
            raise RuntimeError("a fault")

        monkeypatch.setattr(made.capture.keeping, "recall", fail)
        made.perform(Recall(NodeId(2), identity.incarnation, 3, 9, 1_000))
        await until(lambda: len(faults) == 1, "the fault to be told")
        assert driver.told[-1] == Recalled(NodeId(2), identity.incarnation, 3, 3, ())
        await made.stop()
        state.close()

    asyncio.run(work())
