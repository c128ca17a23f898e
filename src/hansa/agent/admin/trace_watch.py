"""Watches for the marked publication of a real trace, and publishes it: one agent's part.

The publication is a QoS 0 message whose payload ends with a random marker. An agent that was asked
to watch notes when a frame, a captured or a delivered publication ends with it. Nothing is compared
while no trace runs. Times are microseconds since the watch began, on the clock of this agent.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field

from hansa.agent import tasks
from hansa.agent.audit_log import AuditLog
from hansa.agent.broker.connection import NamedConnectionFactory
from hansa.agent.driver import Driver
from hansa.agent.queries import Question
from hansa.agent.telemetry.sampler import read_publication
from hansa.agent.token_bucket import TokenBucket
from hansa.errors import HansaError, InvalidFrame, InvalidTopic
from hansa.mqtt import effects, inputs, packets
from hansa.protocol.forwarding.numbering import LocalPublication
from hansa.protocol.model import LinkId, NodeId, PlainMessage, Publication
from hansa.protocol.topics import check_name
from hansa.protocol.wire.codec import PUBLICATION

MARKER_CHARS = 32
"""Hexadecimal digits at the end of the payload."""

PAYLOAD_BEGIN = b"hansa trace "

WATCH_S = 20.0
"""A watch ends after this time, if the asking agent has not ended it before."""

WATCHES_MAX = 8
"""Traces that an agent watches for at the same time."""

EVENTS_MAX = 64
"""Copies received, and copies sent, that one watch notes."""

CONNECT_TIMEOUT_S = 2.0

PUBLICATIONS_S = 1.0
"""Marked publications per second at one broker."""

PUBLICATION_BURST_S = 8.0
"""Seconds whose publications may be made at once: an operator repeats a trace without waiting."""

AUDITED = "trace published"


def check_traceable(topic: str) -> None:
    """Raise ValueError if a topic is not one that can cross."""
    try:
        check_name(topic)
    except InvalidTopic as error:
        raise ValueError(str(error)) from error
    if topic.startswith("$"):
        raise ValueError(f"{topic}: topics that begin with $ never leave their broker")


class _BrokerRefused(HansaError):
    """The broker does not take the client of the trace."""


@dataclass(slots=True)
class _Watch:
    began: float
    is_origin: bool = False
    """Whether this agent was asked to publish; a repeated question must not publish again."""
    problem: str = ""
    published: int | None = None
    captured: int | None = None
    delivered: int | None = None
    broker_problem: str = ""
    """Why the broker client could not deliver, if it could not."""
    received: list[tuple[NodeId | None, int, int]] = field(default_factory=list)
    """Neighbour, number of the hop, time."""
    sent: list[tuple[NodeId | None, int]] = field(default_factory=list)
    """Neighbour and time."""

    def now(self) -> int:
        return round(1e6 * (time.monotonic() - self.began))


class TraceWatches:
    """All watches of an agent; the driver reports to it while there are any."""

    def __init__(
        self,
        driver: Driver,
        make_connection: NamedConnectionFactory | None,
        broker_problem: Callable[[], str],
        audit: AuditLog,
    ) -> None:
        """`make_connection` makes a client of the broker; the embedded broker has none.
        `broker_problem` says why the agent is not connected to its broker."""
        self.counters: Counter[str] = Counter()
        self._driver = driver
        self._make_connection = make_connection
        self._broker_problem = broker_problem
        self._audit = audit
        self._watches: dict[bytes, _Watch] = {}
        self._publications = TokenBucket(PUBLICATIONS_S, PUBLICATION_BURST_S, time.monotonic())
        self._publishing = asyncio.Lock()
        """Held by the one client that may be connected: all have the same client id."""

    # ------------------------------------------------------------ questions of other agents

    def answer(self, question: Question, source: NodeId) -> dict[str, object]:
        """Answer a question of a node, or of this one; raise ValueError if it is refused."""
        marker = str(question.get("marker"))
        key = marker.encode()
        if len(key) != MARKER_CHARS:
            raise ValueError(f"the marker of a trace has {MARKER_CHARS} characters")
        if question["ask"] == "trace_watch":
            watch = self._watches.get(key) or self._add(key)
            return {"now": watch.now()}
        if question["ask"] == "trace_end":
            self._end(key)
            return {}
        if key not in self._watches:
            raise ValueError("this agent does not watch for that trace, or no longer")
        watch = self._watches[key]
        if question["ask"] == "trace_publish" and not watch.is_origin:
            self._publish(watch, str(question.get("topic")), PAYLOAD_BEGIN + key, source)
        return {"now": watch.now(), **asdict(watch)}

    def _add(self, key: bytes) -> _Watch:
        if len(self._watches) >= WATCHES_MAX:
            self.counters["refused: too many real traces"] += 1
            raise ValueError(f"{WATCHES_MAX} real traces run, which is the limit; wait a little")
        watch = self._watches[key] = _Watch(time.monotonic())
        self._driver.trace_watch = self
        asyncio.get_running_loop().call_later(WATCH_S, self._end, key)
        return watch

    def _end(self, key: bytes) -> None:
        self._watches.pop(key, None)
        if not self._watches:
            self._driver.trace_watch = None

    def _publish(self, watch: _Watch, topic: str, payload: bytes, source: NodeId) -> None:
        """Publish in the background, if `source` may; its result is in the report."""
        check_traceable(topic)
        if self._make_connection is None:
            raise ValueError("a trace cannot be published at the embedded broker")
        if not self._driver.node.membership.rights_of(source).allows_publishing(topic):
            self.counters["refused: real trace outside a certificate"] += 1
            raise ValueError(f"the certificate of the asking node does not allow {topic!r}")
        if not self._publications.take(time.monotonic()):
            self.counters["refused: too many real traces"] += 1
            raise ValueError("the agent has just published for other traces; try again in a second")
        watch.is_origin = True
        self._audit.record(AUDITED, f"on {topic}", source)
        tasks.start_task(self._publish_once(watch, packets.PublishPacket(topic, payload)))

    async def _publish_once(self, watch: _Watch, packet: packets.PublishPacket) -> None:
        assert self._make_connection is not None
        connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_effect(effect: effects.Effect) -> None:
            if connected.done():
                return
            match effect:
                case effects.Connected():
                    connected.set_result(None)
                case effects.ConnectRefused(text=text) | effects.Disconnected(text=text):
                    connected.set_exception(_BrokerRefused(text))
                case _:
                    pass

        async with self._publishing:
            connection = self._make_connection("trace", on_effect)
            connection.start()
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await connected
                watch.published = watch.now()
                connection.submit(inputs.Publish([packet]))
            except TimeoutError:
                watch.problem = (
                    f"not published: no answer of the broker in {CONNECT_TIMEOUT_S:.0f} s"
                )
            except _BrokerRefused as error:
                watch.problem = f"not published: {error}"
            finally:
                await connection.stop()

    # ------------------------------------------------------------ reports of the driver

    def on_received(self, link: LinkId, frames: Iterable[bytes]) -> None:
        for data in frames:
            watch = self._find(data)
            if watch is None or data[0] != PUBLICATION or len(watch.received) >= EVENTS_MAX:
                continue
            try:
                hop = read_publication(data)[1]
            except InvalidFrame:
                continue  # counted by the driver
            watch.received.append((self._neighbour(link), hop, watch.now()))

    def on_sent(self, link: LinkId, frames: Iterable[bytes | bytearray]) -> None:
        for data in frames:
            watch = self._find(data)
            if watch is not None and data[0] == PUBLICATION and len(watch.sent) < EVENTS_MAX:
                watch.sent.append((self._neighbour(link), watch.now()))

    def on_captured(self, publications: Iterable[LocalPublication]) -> None:
        for each in publications:
            watch = self._find(each.payload)
            if watch is not None and watch.captured is None:
                watch.captured = watch.now()

    def on_delivered(self, publications: Sequence[PlainMessage | Publication]) -> None:
        for each in publications:
            watch = self._find(each[1] if isinstance(each, tuple) else each.payload)
            if watch is not None and watch.delivered is None:
                watch.delivered = watch.now()
                watch.broker_problem = self._broker_problem()

    def _find(self, data: bytes | bytearray) -> _Watch | None:
        return self._watches.get(bytes(data[-MARKER_CHARS:]))

    def _neighbour(self, link: LinkId) -> NodeId | None:
        neighbours = self._driver.node.membership.neighbours
        return next((node for node, each in neighbours.items() if each.id == link), None)
