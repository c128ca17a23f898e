"""A client that publishes and receives at QoS 2, as `mqtt-fed` does with all its messages.

What is published while the broker is away is dropped, and counted: an announcement that comes late
would bring back a core that is gone.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence

from hansa.agent.broker.connection import Connection
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.types import REFUSED, Version

WAITING_MAX = 10_000
"""Publications that wait for the broker's handshakes; more are dropped."""

UNDER_WAY_MAX = 200
PACKET_IDS = 60_000


class ExactClient:
    """One connection with its handshakes."""

    def __init__(
        self,
        connection: Callable[[Callable[[effects.Effect], None]], Connection],
        status: Callable[[str], None],
        filters: Sequence[str] = (),
        received: Callable[[Sequence[packets.Publish]], None] = lambda batch: None,
    ) -> None:
        """Hand to `received` what comes for `filters`, but not what we published ourselves; tell
        `status` why there is no connection, and an empty text when there is one."""
        self.counters: Counter[str] = Counter()
        self.connection = connection(self._told)
        self.problem = "not connected yet"
        """Why it is of no use now; empty if it is."""
        self._status = status
        self._filters = filters
        self._received = received
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._under_way: set[int] = set()  # packet ids that the broker has not accepted yet
        self._accepted: set[int] = set()  # and those whose handshake has to end
        self._last_id = 0
        self._is_online = False

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish at QoS 2."""
        if not self._is_online:
            self.counters["dropped: broker away"] += 1
        elif len(self._waiting) >= WAITING_MAX:
            self.counters["dropped: broker slow"] += 1
        else:
            self._waiting.append((topic, payload))
            self._send()

    def _told(self, effect: effects.Effect) -> None:
        match effect:
            case effects.PublishReceived(batch):
                self._take(batch)
            case effects.Answered(steps):
                self._take_steps(steps)
            case effects.Connected(limits=limits):
                self._greet(limits.version)
            case effects.Subscribed(subscriptions=asked, reasons=reasons):
                for wish, reason in zip(asked, reasons, strict=True):
                    if reason >= REFUSED:
                        self._say(f"the broker refuses {wish.topic_filter!r}")
            case effects.ConnectRefused() | effects.Disconnected() | effects.ProtocolViolation():
                self._part(effect.text)
            case effects.NotSent(batch=unsent, reason=reason):
                self.counters["dropped: the broker cannot take it"] += len(unsent)
                self._under_way -= {p.packet_id for p in unsent if not isinstance(p, tuple)}
                self._send()  # there is room for others
            case _:
                pass

    def _greet(self, version: Version) -> None:
        if self._filters and version is not Version.V5:
            self._say("mqtt-fed needs a broker with MQTT 5: without No Local echoes would loop")
            return
        self._is_online = True
        self._say("")
        if self._filters:
            wishes = tuple(
                packets.Subscription(name, qos=2, no_local=True, retain_handling=2)
                for name in self._filters
            )
            self.connection.order(inputs.Subscribe(wishes))

    def _part(self, reason: str) -> None:
        lost = len(self._waiting) + len(self._under_way)
        self.counters["dropped: broker away"] += lost
        self._is_online = False
        self._waiting.clear()
        self._under_way.clear()
        self._accepted.clear()
        self._say(reason)

    def _say(self, problem: str) -> None:
        self.problem = problem
        self._status(problem)

    def _send(self) -> None:
        session = self.connection.session
        room = min(UNDER_WAY_MAX - len(self._under_way), session.quota if session else 0)
        batch: list[packets.Publish] = []
        while self._waiting and len(batch) < room:
            topic, payload = self._waiting.popleft()
            batch.append(packets.Publish(topic, payload, qos=2, packet_id=self._free_id()))
        if batch:
            self.connection.order(inputs.Publish(batch))

    def _free_id(self) -> int:
        while True:
            self._last_id = 1 + self._last_id % PACKET_IDS
            if not any(self._last_id in taken for taken in (self._under_way, self._accepted)):
                self._under_way.add(self._last_id)
                return self._last_id

    def _take(self, batch: Sequence[packets.Publish]) -> None:
        for kind, qos in ((packets.PubAck, 1), (packets.PubRec, 2)):
            answers = [kind(each.packet_id) for each in batch if each.qos == qos]
            if answers:
                self.connection.order(inputs.Answer(answers))
        self._received(batch)

    def _take_steps(self, steps: Sequence[packets.Handshake]) -> None:
        ids = [step.packet_id for step in steps if not step.refused]
        match steps[0]:
            case packets.PubRec():
                self.counters["dropped: the broker refuses it"] += len(steps) - len(ids)
                self._under_way -= {step.packet_id for step in steps}
                self._accepted.update(ids)
                if ids:
                    self.connection.order(inputs.Answer([packets.PubRel(each) for each in ids]))
            case packets.PubRel():
                answers = [packets.PubComp(step.packet_id) for step in steps]
                self.connection.order(inputs.Answer(answers))
            case _:
                self._accepted -= {step.packet_id for step in steps}
        self._send()
