"""A model broker: subscriptions of clients and of the agent, and the agent's session.

Every call takes effect at once; the world models the delay between broker and agent. A broker
delivers local publications to local clients without the agent, so they are not modelled.
"""

from collections.abc import Iterable

from hansa.protocol.events import ClientPublished
from hansa.protocol.model import Publication
from hansa.protocol.topics import FilterTrie, is_local_only, matches, split_share

QUEUE_MAX = 100_000


class QueuedPublication(ClientPublished, frozen=True):
    """A publication in the agent's session, until it is acknowledged."""

    packet_id: int = 0


class ModelBroker:
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
        """Start without subscriptions; `queue_max` bounds the agent's session queue."""
        self.queue_max = queue_max
        self.subscriber_counts: dict[str, int] = {}
        """Clients per filter."""
        self.removed_filters: list[tuple[str, tuple[str, ...]]] = []
        """Filters without clients, each with the filters that still had some at that time."""
        self.change_count = 0
        """Changes that clients made."""
        self.granted: dict[str, None] = {}
        """The agent's subscriptions, in the order it made them."""
        self.session_queue: dict[int, QueuedPublication] = {}
        """Unacknowledged publications of the agent's session, by packet id, in order."""
        self.dropped_count = 0
        """Publications dropped because the agent's session was full."""
        self.unreleased: dict[int, Publication] = {}
        """The agent's QoS 2 publications that are not released yet, by packet id."""
        self.stored: dict[str, tuple[bytes, int]] = {}
        """Retained messages with their QoS, by topic. A QoS 2 publication is stored when its
        handshake ends, others on arrival."""
        self.has_session = False
        self.is_connected = False
        """Whether the agent is connected."""
        self.connection_count = 0
        """Incremented when the agent connects and when the broker disconnects it, to discard
        messages of earlier connections."""
        self.session_lost_at = float("-inf")
        """When the broker last lost the agent's session."""
        self.refuses_until = float("-inf")
        """Until then the broker refuses the agent."""
        self.last_packet_id = 0
        self._client_filters = FilterTrie[None]()
        self._agent_filters = FilterTrie[None]()

    # ------------------------------------------------------------ clients

    def subscribe(self, name: str) -> bool:
        """Add a client's subscription; return whether it is the first to this filter."""
        self.subscriber_counts[name] = self.subscriber_counts.get(name, 0) + 1
        if self.subscriber_counts[name] > 1:
            return False
        self.change_count += 1
        if split_share(name)[0] is None:
            self._client_filters.put(name, None)
        return True

    def unsubscribe(self, name: str) -> bool:
        """Remove a client's subscription; return whether it was the last to this filter."""
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
        """Store a retained message; an empty payload removes it."""
        if payload:
            self.stored[topic] = (payload, qos)
        else:
            self.stored.pop(topic, None)

    def has_plain_subscriber(self, topic: str) -> bool:
        """Return whether a client subscribes to this topic, shared subscriptions excluded: they may
        be served at another broker."""
        return bool(self._client_filters.match(topic))

    def lapse_count(self, topic: str) -> int:
        """Return how often the last subscriber of this topic left."""
        return sum(
            matches(name, topic) and not any(matches(other, topic) for other in others)
            for name, others in self.removed_filters
        )

    # ------------------------------------------------------------ the agent

    def grant(self, filters: Iterable[str]) -> None:
        for name in filters:
            self.granted[name] = None
            self._agent_filters.put(name, None)

    def withdraw(self, filters: Iterable[str]) -> None:
        for name in filters:
            if self.granted.pop(name, False) is None:
                self._agent_filters.remove(name)

    def connect_agent(self) -> bool:
        """Accept the agent; return whether its session is present."""
        self.is_connected = True
        self.connection_count += 1
        present, self.has_session = self.has_session, True
        return present

    def disconnect_agent(self, now: float, refuse_s: float = 0.0) -> None:
        """Disconnect the agent and refuse it for `refuse_s` seconds."""
        self.is_connected = False
        self.connection_count += 1
        self.refuses_until = max(self.refuses_until, now + refuse_s)

    def drop_session(self, now: float) -> None:
        self.disconnect_agent(now)
        self.session_queue.clear()
        self.unreleased.clear()
        self.has_session = False
        self.session_lost_at = now

    def enqueue(
        self, topic: str, payload: bytes, qos: int, retain: bool
    ) -> QueuedPublication | None:
        """Queue a publication in the agent's session; if it is full, drop it as brokers do."""
        if len(self.session_queue) >= self.queue_max:
            self.dropped_count += 1
            return None
        self.last_packet_id += 1
        event = self.session_queue[self.last_packet_id] = QueuedPublication(
            topic, payload, qos, retain, packet_id=self.last_packet_id
        )
        return event

    def is_agent_subscribed(self, topic: str) -> bool:
        return not is_local_only(topic) and bool(self._agent_filters.match(topic))
