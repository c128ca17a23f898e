"""One life of what takes publications into a broker, on its own."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from tests.agent.delivery.crashing import crash
from tests.agent.waiting import until

from hansa.agent.delivery.inbox_journal import REDELIVERED, Backlog
from hansa.agent.delivery.injection import Injection
from hansa.agent.delivery.settings import DeliverySettings
from hansa.journal.settings import JournalSettings
from hansa.mqtt.limits import Limits
from hansa.mqtt.packets import Handshake, Publish
from hansa.mqtt.types import Version
from hansa.protocol.events import Stored
from hansa.protocol.model import NodeId, Publication

ME, YOU, OTHER = NodeId(1), NodeId(2), NodeId(3)


def limits(receive_maximum: int = 100, qos_max: int = 2) -> Limits:
    return Limits(
        version=Version.V5,
        client_id="",
        keep_alive=30,
        session_expiry=0,
        receive_maximum=receive_maximum,
        qos_max=qos_max,
    )


class Life:
    """One life of an agent, with a broker and a node made of lists."""

    def __init__(
        self, path: Path, journal: JournalSettings | None = None, **settings: object
    ) -> None:
        self._path = path
        self.said: list[Publish | Handshake] = []
        self.stored: list[Stored] = []
        self.problems: list[str] = []
        self.published: list[Publication] = []
        """Retained publications of QoS 0 that had to wait."""
        self.uncertain: list[tuple[str, ...]] = []
        self.backlog = Backlog(path, ME, 5, journal or JournalSettings())
        self.injection = Injection(
            self.backlog,
            self,
            self.stored.append,
            self.problems.append,
            DeliverySettings(**settings),  # type: ignore[arg-type]
        )
        self.injection.uncertain = lambda topics: self.uncertain.append(tuple(topics))

    def publish(self, publications: Sequence[Publication]) -> None:
        self.published += publications

    def inject(self, batch: Sequence[Publish]) -> None:
        self.said += batch

    def answer(self, batch: Sequence[Handshake]) -> None:
        self.said += batch

    def stays(self, topic: str) -> bool:
        return topic == "stays"

    def connect(self, session_present: bool = True, **granted: int) -> None:
        self.injection.connected(session_present, limits(**granted))

    def deliver(self, *numbers: int, qos: int = 2, origin: NodeId = YOU) -> None:
        for number in numbers:
            self.injection.deliver([Publication(origin, 8, number, qos, "a", b"%d" % number)])

    async def says(self, *expected: Publish | Handshake) -> None:
        """Wait until exactly this was said, and forget it."""
        await until(lambda: len(self.said) >= len(expected), f"{expected}, but {self.said}")
        assert self.said == list(expected), self.said
        self.said.clear()

    def crash(self) -> None:
        """End, and leave the disk as it is now."""
        crash(self._path, self.backlog.writer)


def packet(
    index: int, payload: bytes = b"", qos: int = 2, dup: bool = False, marked: bool = False
) -> Publish:
    """What is injected at an index; its payload is the index unless told otherwise."""
    properties = REDELIVERED if marked else b""
    return Publish("a", payload or b"%d" % index, qos, False, dup, 1 + index, (), properties)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())
