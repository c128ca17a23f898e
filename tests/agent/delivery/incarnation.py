"""One incarnation of injection without an agent: port and callbacks are lists."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from tests.agent.delivery.crashing import crash
from tests.agent.waiting import until

from hansa.agent.delivery.inbox_journal import REDELIVERED_PROPERTY, InboxJournal
from hansa.agent.delivery.injection import Injection, InjectionCallbacks
from hansa.agent.delivery.settings import DeliverySettings
from hansa.journal.records import InboxRecord
from hansa.journal.settings import JournalSettings
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.packets import AnyHandshakePacket, PublishPacket
from hansa.mqtt.types import Version
from hansa.protocol.events import InboxCommitted
from hansa.protocol.model import NodeId, Publication

ME, YOU, OTHER = NodeId(1), NodeId(2), NodeId(3)


def limits(receive_maximum: int = 100, qos_max: int = 2) -> BrokerLimits:
    return BrokerLimits(
        version=Version.V5,
        client_id="",
        keep_alive=30,
        session_expiry=0,
        receive_maximum=receive_maximum,
        qos_max=qos_max,
    )


class Incarnation:
    """Injection with a broker and a node made of lists."""

    def __init__(
        self, path: Path, journal: JournalSettings | None = None, **settings: object
    ) -> None:
        self._path = path
        self.sent: list[PublishPacket | AnyHandshakePacket] = []
        self.committed: list[InboxCommitted] = []
        self.problems: list[str] = []
        self.published: list[Publication] = []
        """Retained QoS 0 publications that were held back."""
        self.uncertain: list[tuple[str, ...]] = []
        self.inbox = InboxJournal(path, ME, 5, journal or JournalSettings())
        self.delivered: list[InboxRecord] = []
        self.quota_problems: list[str] = []
        self.quarantine_problems: list[str] = []
        self.dropped: Counter[str] = Counter()
        self.injection = Injection(
            self.inbox,
            self,
            DeliverySettings(**settings),  # type: ignore[arg-type]
            InjectionCallbacks(
                self.committed.append,
                self.problems.append,
                self.quota_problems.append,
                self.quarantine_problems.append,
                self.delivered.append,
                lambda reason, topic, qos: self.dropped.update([reason]),
                lambda topics: self.uncertain.append(tuple(topics)),
            ),
        )

    def publish(self, publications: Sequence[Publication]) -> None:
        self.published += publications

    def inject(self, batch: Sequence[PublishPacket]) -> None:
        self.sent += batch

    def send_handshake_steps(self, batch: Sequence[AnyHandshakePacket]) -> None:
        self.sent += batch

    def is_local_topic(self, topic: str) -> bool:
        return topic == "stays"

    def connect(self, session_present: bool = True, **granted: int) -> None:
        self.injection.on_connected(session_present, limits(**granted))

    def deliver(self, *numbers: int, qos: int = 2, origin: NodeId = YOU) -> None:
        for number in numbers:
            self.injection.add_publications(
                [Publication(origin, 8, number, qos, "a", b"%d" % number)]
            )

    async def expect_sent(self, *expected: PublishPacket | AnyHandshakePacket) -> None:
        """Wait until exactly these packets were sent, and forget them."""
        await until(lambda: len(self.sent) >= len(expected), f"{expected}, but {self.sent}")
        assert self.sent == list(expected), self.sent
        self.sent.clear()

    def crash(self) -> None:
        """Crash: leave the disk as it is now."""
        crash(self._path, self.inbox.writer)


def packet(
    index: int, payload: bytes = b"", qos: int = 2, dup: bool = False, marked: bool = False
) -> PublishPacket:
    """Return the PUBLISH of an inbox index; the default payload is the index."""
    properties = REDELIVERED_PROPERTY if marked else b""
    return PublishPacket("a", payload or b"%d" % index, qos, False, dup, 1 + index, (), properties)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())
