"""A model broker: who subscribed, what its agent is subscribed to, what passes between the two.

It does at once what it is told; the time between a broker and its agent is the world's business.
Local clients get local publications whatever the agent does, so they are not modelled.
"""

from collections.abc import Iterable

from hansa.protocol.events import Published
from hansa.protocol.model import Publication
from hansa.protocol.topics import FilterTrie, is_local_only, matches, split_share

QUEUE_MAX = 100_000


class Queued(Published, frozen=True):
    """A publication that stays in the agent's session until it is acknowledged."""

    packet: int = 0


class Broker:
    """One broker, seen by its clients and by its agent."""

    __slots__ = (
        "_granted",
        "_wanted",
        "changes",
        "clients",
        "connected",
        "connections",
        "dropped",
        "gone",
        "granted",
        "has_session",
        "held",
        "lost_at",
        "packets",
        "queue_max",
        "refuses_until",
        "session",
        "stored",
    )

    def __init__(self, queue_max: int = QUEUE_MAX) -> None:
        """Start without any subscription; the agent's session holds so many publications."""
        self.queue_max = queue_max
        self.clients: dict[str, int] = {}
        """How many clients subscribe to each filter."""
        self.gone: list[tuple[str, tuple[str, ...]]] = []
        """The filters that their last client left, each with those that were wanted even so."""
        self.changes = 0
        """Counts what clients changed in it."""
        self.granted: dict[str, None] = {}
        """The agent's own subscriptions, in the order in which it made them."""
        self.session: dict[int, Queued] = {}
        """What the agent's session holds until it is acknowledged, by packet, in order."""
        self.dropped = 0
        """Publications that found the agent's session full."""
        self.held: dict[int, Publication] = {}
        """What the agent has published at QoS 2 and not yet released, by packet."""
        self.stored: dict[str, tuple[bytes, int]] = {}
        """Retained values with their QoS, by topic. A publication of QoS 2 is stored when its
        handshake ends, others when they arrive."""
        self.has_session = False
        self.connected = False
        """Whether the agent is."""
        self.connections = 0
        """Counts connections of the agent, and their ends by the broker: what belongs to an old
        one is void."""
        self.lost_at = float("-inf")
        """When it last lost the agent's session."""
        self.refuses_until = float("-inf")
        """Until when it lets no agent in."""
        self.packets = 0
        self._wanted = FilterTrie[None]()
        self._granted = FilterTrie[None]()

    # ------------------------------------------------------------ clients

    def subscribe(self, name: str) -> bool:
        """Add one client's subscription; say whether it is the first to this filter."""
        self.clients[name] = self.clients.get(name, 0) + 1
        if self.clients[name] > 1:
            return False
        self.changes += 1
        if split_share(name)[0] is None:
            self._wanted.put(name, None)
        return True

    def unsubscribe(self, name: str) -> bool:
        """Remove one client's subscription; say whether it was the last to this filter."""
        count = self.clients.get(name, 0)
        if count > 1:
            self.clients[name] = count - 1
        if count != 1:
            return False
        del self.clients[name]
        self.changes += 1
        if split_share(name)[0] is None:
            others = tuple(other for other in self.clients if split_share(other)[0] is None)
            self.gone.append((name, others))
            self._wanted.remove(name)
        return True

    def store(self, topic: str, payload: bytes, qos: int) -> None:
        """Keep a retained value, or forget it if the payload is empty."""
        if payload:
            self.stored[topic] = (payload, qos)
        else:
            self.stored.pop(topic, None)

    def wants(self, topic: str) -> bool:
        """Say whether some client subscribes to this topic, and not only in a share group, which
        gets it at one broker or another."""
        return bool(self._wanted.match(topic))

    def lapses(self, topic: str) -> int:
        """Return how often nobody wanted this topic any more."""
        return sum(
            matches(name, topic) and not any(matches(other, topic) for other in others)
            for name, others in self.gone
        )

    # ------------------------------------------------------------ the agent

    def grant(self, filters: Iterable[str]) -> None:
        """Subscribe the agent."""
        for name in filters:
            self.granted[name] = None
            self._granted.put(name, None)

    def withdraw(self, filters: Iterable[str]) -> None:
        """Unsubscribe the agent."""
        for name in filters:
            if self.granted.pop(name, False) is None:
                self._granted.remove(name)

    def connect(self) -> bool:
        """Let the agent in; say whether its session is still there."""
        self.connected = True
        self.connections += 1
        present, self.has_session = self.has_session, True
        return present

    def hang_up(self, now: float, refuse_s: float = 0.0) -> None:
        """End the agent's connection, and let it in again after a while."""
        self.connected = False
        self.connections += 1
        self.refuses_until = max(self.refuses_until, now + refuse_s)

    def forget_agent(self, now: float) -> None:
        """Lose the agent's session, with all that it holds."""
        self.hang_up(now)
        self.session.clear()
        self.held.clear()
        self.has_session = False
        self.lost_at = now

    def queue(self, topic: str, payload: bytes, qos: int, retain: bool) -> Queued | None:
        """Put a publication into the agent's session; when that is full, brokers drop it."""
        if len(self.session) >= self.queue_max:
            self.dropped += 1
            return None
        self.packets += 1
        event = self.session[self.packets] = Queued(
            topic, payload, qos, retain, packet=self.packets
        )
        return event

    def shows(self, topic: str) -> bool:
        """Say whether the agent is subscribed to this topic, so that it sees what is published."""
        return not is_local_only(topic) and bool(self._granted.match(topic))
