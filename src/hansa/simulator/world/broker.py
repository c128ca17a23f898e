"""A model broker: who subscribed, what its agent is subscribed to, what passes between the two.

It does at once what it is told; the time between a broker and its agent is the world's business.
Local clients get local publications whatever the agent does, so they are not modelled.
"""

from collections.abc import Iterable

from hansa.protocol.events import ClientPublished
from hansa.protocol.model import Publication
from hansa.protocol.topics import FilterTrie, is_local_only, matches, split_share

QUEUE_MAX = 100_000


class QueuedPublication(ClientPublished, frozen=True):
    """A publication that stays in the agent's session until it is acknowledged."""

    packet_id: int = 0


class ModelBroker:
    """One broker, seen by its clients and by its agent."""

    __slots__ = (
        "_agent_filters",
        "_client_filters",
        "change_count",
        "subscriber_counts",
        "is_connected",
        "connection_count",
        "dropped_count",
        "removed_filters",
        "granted",
        "has_session",
        "unreleased",
        "session_lost_at",
        "last_packet_id",
        "queue_max",
        "refuses_until",
        "session_queue",
        "stored",
    )

    def __init__(self, queue_max: int = QUEUE_MAX) -> None:
        """Start without any subscription; the agent's session holds so many publications."""
        self.queue_max = queue_max
        self.subscriber_counts: dict[str, int] = {}
        """How many clients subscribe to each filter."""
        self.removed_filters: list[tuple[str, tuple[str, ...]]] = []
        """The filters that their last client left, each with those that were wanted even so."""
        self.change_count = 0
        """Counts what clients changed in it."""
        self.granted: dict[str, None] = {}
        """The agent's own subscriptions, in the order in which it made them."""
        self.session_queue: dict[int, QueuedPublication] = {}
        """What the agent's session holds until it is acknowledged, by packet, in order."""
        self.dropped_count = 0
        """Publications that found the agent's session full."""
        self.unreleased: dict[int, Publication] = {}
        """What the agent has published at QoS 2 and not yet released, by packet."""
        self.stored: dict[str, tuple[bytes, int]] = {}
        """Retained values with their QoS, by topic. A publication of QoS 2 is stored when its
        handshake ends, others when they arrive."""
        self.has_session = False
        self.is_connected = False
        """Whether the agent is."""
        self.connection_count = 0
        """Counts connections of the agent, and their ends by the broker: what belongs to an old
        one is void."""
        self.session_lost_at = float("-inf")
        """When it last lost the agent's session."""
        self.refuses_until = float("-inf")
        """Until when it lets no agent in."""
        self.last_packet_id = 0
        self._client_filters = FilterTrie[None]()
        self._agent_filters = FilterTrie[None]()

    # ------------------------------------------------------------ clients

    def subscribe(self, name: str) -> bool:
        """Add one client's subscription; say whether it is the first to this filter."""
        self.subscriber_counts[name] = self.subscriber_counts.get(name, 0) + 1
        if self.subscriber_counts[name] > 1:
            return False
        self.change_count += 1
        if split_share(name)[0] is None:
            self._client_filters.put(name, None)
        return True

    def unsubscribe(self, name: str) -> bool:
        """Remove one client's subscription; say whether it was the last to this filter."""
        count = self.subscriber_counts.get(name, 0)
        if count > 1:
            self.subscriber_counts[name] = count - 1
        if count != 1:
            return False
        del self.subscriber_counts[name]
        self.change_count += 1
        if split_share(name)[0] is None:
            others = tuple(
                other for other in self.subscriber_counts if split_share(other)[0] is None
            )
            self.removed_filters.append((name, others))
            self._client_filters.remove(name)
        return True

    def store(self, topic: str, payload: bytes, qos: int) -> None:
        """Keep a retained value, or forget it if the payload is empty."""
        if payload:
            self.stored[topic] = (payload, qos)
        else:
            self.stored.pop(topic, None)

    def has_plain_subscriber(self, topic: str) -> bool:
        """Say whether some client subscribes to this topic, and not only in a share group, which
        gets it at one broker or another."""
        return bool(self._client_filters.match(topic))

    def lapse_count(self, topic: str) -> int:
        """Return how often nobody wanted this topic any more."""
        return sum(
            matches(name, topic) and not any(matches(other, topic) for other in others)
            for name, others in self.removed_filters
        )

    # ------------------------------------------------------------ the agent

    def grant(self, filters: Iterable[str]) -> None:
        """Subscribe the agent."""
        for name in filters:
            self.granted[name] = None
            self._agent_filters.put(name, None)

    def withdraw(self, filters: Iterable[str]) -> None:
        """Unsubscribe the agent."""
        for name in filters:
            if self.granted.pop(name, False) is None:
                self._agent_filters.remove(name)

    def connect_agent(self) -> bool:
        """Let the agent in; say whether its session is still there."""
        self.is_connected = True
        self.connection_count += 1
        present, self.has_session = self.has_session, True
        return present

    def disconnect_agent(self, now: float, refuse_s: float = 0.0) -> None:
        """End the agent's connection, and let it in again after a while."""
        self.is_connected = False
        self.connection_count += 1
        self.refuses_until = max(self.refuses_until, now + refuse_s)

    def drop_session(self, now: float) -> None:
        """Lose the agent's session, with all that it holds."""
        self.disconnect_agent(now)
        self.session_queue.clear()
        self.unreleased.clear()
        self.has_session = False
        self.session_lost_at = now

    def enqueue(
        self, topic: str, payload: bytes, qos: int, retain: bool
    ) -> QueuedPublication | None:
        """Put a publication into the agent's session; when that is full, brokers drop it."""
        if len(self.session_queue) >= self.queue_max:
            self.dropped_count += 1
            return None
        self.last_packet_id += 1
        event = self.session_queue[self.last_packet_id] = QueuedPublication(
            topic, payload, qos, retain, packet_id=self.last_packet_id
        )
        return event

    def is_agent_subscribed(self, topic: str) -> bool:
        """Say whether the agent is subscribed to this topic, so that it sees what is published."""
        return not is_local_only(topic) and bool(self._agent_filters.match(topic))
