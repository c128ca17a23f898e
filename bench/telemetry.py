"""Cost of telemetry on the forwarding path: CPU per publication, off, none, one in 100, all.

Three drivers in one process, joined by lists instead of sockets: the first captures, the second
passes on and delivers, the third delivers. Encoding and writing the records is part of the cost.
"""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench.console import say
from hansa.agent.driver import Driver
from hansa.agent.links.link import Address
from hansa.agent.telemetry.sampler import Sampler
from hansa.identity.certificates import NodeCertificate
from hansa.protocol.events import InterestChanged, SubscriptionsGranted
from hansa.protocol.model import (
    KEY_BYTES,
    Identity,
    LinkId,
    NodeId,
    PlainMessage,
    Publication,
    node_id,
)
from hansa.protocol.node import Node
from hansa.protocol.settings import ProtocolSettings
from hansa.telemetry.writer import NodeRecorder, TelemetryLog

BATCH, BATCHES, ROUNDS = 100, 100, 21
PAYLOAD = b"x" * 64
SAMPLES = {"off": None, "none": 0, "1 in 100": 100, "all": 1}


class Message:
    """A publication as the broker's client read it."""

    __slots__ = ("payload", "properties", "qos", "retain", "topic")

    def __init__(self, topic: str) -> None:
        self.topic, self.payload = topic, PAYLOAD
        self.qos, self.retain, self.properties = 0, False, b""


class Line:
    """One end of a link: what is sent waits for the other end to take it."""

    is_ordered, remote, is_admitted = True, "next door", True
    expected_node: NodeId | None = None
    certificate: NodeCertificate | None = None
    bytes_in = bytes_out = frames_out = outstanding_bytes = 0

    def __init__(self, number: int, dialled: bool) -> None:
        self.id = LinkId(number)
        self.dialled_address = Address("next.door", 1) if dialled else None
        self.closed = asyncio.Event()
        self.waiting: list[bytes] = []
        self.drop_reasons: Counter[str] = Counter()

    def send(self, frames: Sequence[bytes | bytearray]) -> None:
        """Pass the frames to the other end."""
        self.waiting += map(bytes, frames)

    def admit(self) -> None:
        pass

    def allow_last_frames(self) -> None:
        pass

    def pause(self, seconds: float) -> None:
        raise AssertionError(f"paused for {seconds} s")

    def close(self, reason: str) -> None:
        raise AssertionError(reason)


class Place:
    """A driver with a broker that only counts."""

    def __init__(self, number: int) -> None:
        key = bytes([number]) * KEY_BYTES
        self.identity = Identity(node_id(key), key, 1, str(number), (), 1.0)
        self.driver = Driver(
            Node(self.identity, ProtocolSettings()),
            on_notification=lambda effect: None,
            on_link_closed=lambda link, reason: None,
        )
        self.driver.broker = self
        self.delivered = 0

    def subscribe(self, filters: Sequence[str]) -> None:
        self.driver.feed(SubscriptionsGranted(tuple(filters)))

    def unsubscribe(self, filters: Sequence[str]) -> None:
        pass

    def publish(self, publications: Sequence[PlainMessage | Publication]) -> None:
        """Count the publications that clients would get."""
        self.delivered += len(publications)


def measure() -> dict[str, object]:
    """CPU per publication with telemetry, beside the same without, round by round."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, object]:
    costs: dict[str, list[float]] = {name: [] for name in SAMPLES}
    with tempfile.TemporaryDirectory() as directory:
        rows = [await _row(Path(directory) / name, one_in) for name, one_in in SAMPLES.items()]
        for _ in range(ROUNDS):
            for name, row in zip(SAMPLES, rows, strict=True):
                costs[name].append(row.round())
        for row in rows:
            row.close()
    answers: dict[str, object] = {}
    for name, found in costs.items():
        micros = min(found)
        ratio = median(here / off for here, off in zip(found, costs["off"], strict=True))
        say(f"telemetry {name}", f"{micros:8.2f} µs  median of the rounds {ratio:5.2f} of without")
        answers[name] = {"cpu_us": round(micros, 3), "of_without": round(ratio, 3)}
    return answers


async def _row(path: Path, one_in: int | None) -> "_Row":
    row = _Row(path, one_in)
    while not row.is_settled:
        row.pump()
        await asyncio.sleep(0.01)
    return row


class _Row:
    """Three places in a row; the second and the third want everything."""

    def __init__(self, path: Path, one_in: int | None) -> None:
        self.places = [Place(number) for number in (1, 2, 3)]
        self._logs: list[tuple[TelemetryLog, NodeRecorder]] = []
        for place in self.places:
            if one_in is not None:
                self._record(place, path / place.identity.name, one_in)
        self._lines: list[tuple[Line, Driver, Line]] = []
        self._batch = [Message(f"plant/{number % 10}/temp") for number in range(BATCH)]
        for number, place in enumerate(self.places):
            place.driver.feed(InterestChanged(("plant/#",) if number else ()))
        for near, far in zip(self.places, self.places[1:], strict=False):
            self._join(near.driver, far.driver)

    def _record(self, place: Place, path: Path, one_in: int) -> None:
        log = TelemetryLog(path)
        recorder = NodeRecorder(log, place.identity.node, 1)
        incarnation = (place.identity.node, 1)
        place.driver.sampler = Sampler(recorder.put, incarnation, one_in, time.time_ns)
        self._logs.append((log, recorder))

    def _join(self, near: Driver, far: Driver) -> None:
        here, there = Line(len(self._lines) + 1, True), Line(len(self._lines) + 2, False)
        self._lines += [(here, far, there), (there, near, here)]
        near.link_opened(here)
        far.link_opened(there)

    @property
    def is_settled(self) -> bool:
        views = [place.driver.node.status() for place in self.places]
        return all(len(view.reachable) == 3 and view.installed for view in views)

    def pump(self) -> None:
        """Deliver everything that was sent."""
        while any(line.waiting for line, _, _ in self._lines):
            for line, driver, other in self._lines:
                frames, line.waiting = line.waiting, []
                if frames:
                    driver.frames_received(other, frames)

    def round(self) -> float:
        """Return the CPU microseconds of one publication, on its whole path."""
        before = self.places[2].delivered
        began = time.process_time()
        for _ in range(BATCHES):
            self.places[0].driver.capture_qos0(self._batch)
            self.pump()
        for log, recorder in self._logs:
            recorder.flush()
            log.commit()
        spent = time.process_time() - began
        assert self.places[2].delivered - before == BATCH * BATCHES
        return spent / (BATCH * BATCHES) * 1e6

    def close(self) -> None:
        for place in self.places:
            place.driver.links.clear()
            place.driver.close_links()
        for log, _ in self._logs:
            log.close()
