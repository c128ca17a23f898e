"""The broker of one site: the packet-level model, with the clients of the site.

Clients publish through the model. Their subscriptions are only counted: a broker delivers to its
own clients without the agent, so the world is told whatever the agent publishes. Every call takes
effect at once; the world models the delay between broker and agent.
"""

from collections.abc import Callable, Mapping
from itertools import count

from hansa.mqtt import packets
from hansa.mqtt.packets import AnyPacket, ConnectPacket, PublishPacket
from hansa.mqtt.properties import Property
from hansa.protocol.topics import FilterTrie, is_local_only, matches, split_share
from hansa.simulator.broker import Effect, MosquittoModel, MosquittoSettings
from hansa.simulator.broker.message import Message
from hansa.simulator.broker.outgoing import State
from hansa.simulator.broker.session import Session
from hansa.simulator.world.ledger import ledger_number

AGENT = "agent"
CLIENT = "client"
"""Client ids at the model broker."""

_CLIENT_CONNECTION = 0
_SESSION_EXPIRES_NEVER = 0xFFFFFFFF

OnAgentPublished = Callable[[Message], None]


class SiteBroker(MosquittoModel):
    """A model broker with one agent and any number of clients."""

    __slots__ = (
        "_client_filters",
        "_new_connection_id",
        "_new_packet_id",
        "agent_connection",
        "change_count",
        "connection_count",
        "on_agent_published",
        "refused_numbers",
        "refuses_until",
        "removed_filters",
        "session_lost_at",
        "subscriber_counts",
    )

    def __init__(self, queue_max: int = 0) -> None:
        """Start without subscriptions; `queue_max` bounds the agent's session queue."""
        super().__init__(MosquittoSettings(max_queued_messages=queue_max, autosave_interval=0))
        self.on_agent_published: OnAgentPublished = lambda message: None
        """Called with every message of the agent that is passed to the clients and stored."""
        self.subscriber_counts: dict[str, int] = {}
        """Clients per filter."""
        self.removed_filters: list[tuple[str, tuple[str, ...]]] = []
        """Filters without clients, each with the filters that still had some at that time."""
        self.change_count = 0
        """Changes that clients made."""
        self.agent_connection: int | None = None
        """The connection of the agent."""
        self.connection_count = 0
        """Incremented when the agent connects and when it is disconnected."""
        self.session_lost_at = float("-inf")
        """When the broker last lost the agent's session."""
        self.refuses_until = float("-inf")
        """Until then the broker refuses the agent."""
        self.refused_numbers: set[int] = set()
        """Ledger numbers of the agent's publications that the broker refused for its quota."""
        self._client_filters = FilterTrie[None]()
        self._new_connection_id = count(1).__next__
        self._new_packet_id = count(1).__next__
        self.receive(_CLIENT_CONNECTION, ConnectPacket(CLIENT), 0.0)

    def _publish(self, source_id: str, message: Message, second: int) -> bool:
        if source_id == AGENT:
            self.on_agent_published(message)
        return super()._publish(source_id, message, second)

    def _refuse_publish(self, session: Session, packet: PublishPacket) -> None:
        if session.client_id == AGENT:
            self.refused_numbers.add(ledger_number(packet.payload))
        super()._refuse_publish(session, packet)

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
        subscribers = self.subscriber_counts.get(name, 0)
        if subscribers > 1:
            self.subscriber_counts[name] = subscribers - 1
        if subscribers != 1:
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

    def publish(
        self, topic: str, payload: bytes, qos: int, retain: bool, now: float
    ) -> tuple[list[Effect], bool]:
        """Publish for a client. Return the effects, and whether the agent gets it now or later."""
        dropped_before = self.dropped_count
        packet_id = 1 + self._new_packet_id() % 65_535 if qos else 0
        packet = PublishPacket(topic, payload, qos, retain, packet_id=packet_id)
        effects = self.receive(_CLIENT_CONNECTION, packet, now)
        if qos == 2:
            effects += self.receive(_CLIENT_CONNECTION, packets.PubRelPacket(packet_id), now)
        is_kept = self.agent_connection is not None or (qos > 0 and AGENT in self._sessions)
        was_dropped = self.dropped_count > dropped_before
        return effects, is_kept and self.is_agent_subscribed(topic) and not was_dropped

    @property
    def stored(self) -> Mapping[str, Message]:
        """Retained messages by topic."""
        return {message.topic: message for message in self._retained.messages()}

    # ------------------------------------------------------------ the agent

    @property
    def is_connected(self) -> bool:
        """Whether the agent is connected."""
        return self.agent_connection is not None

    @property
    def granted(self) -> Mapping[str, None]:
        """The filters of the agent's subscriptions."""
        session = self._sessions.get(AGENT)
        return session.filters if session is not None else {}

    def is_agent_subscribed(self, topic: str) -> bool:
        return not is_local_only(topic) and any(True for _ in self._subscriptions.match(topic))

    def connect_agent(self, has_session: bool, in_flight_max: int, now: float) -> list[Effect]:
        """Accept the agent, with or without a session that lasts."""
        self.agent_connection = self._new_connection_id()
        self.connection_count += 1
        expiry = _SESSION_EXPIRES_NEVER if has_session else 0
        packet = ConnectPacket(
            AGENT,
            clean_start=not has_session,
            properties=(
                (Property.SESSION_EXPIRY_INTERVAL, expiry),
                (Property.RECEIVE_MAXIMUM, in_flight_max),
            ),
        )
        return self.receive(self.agent_connection, packet, now)

    def receive_from_agent(self, connection: int, packet: AnyPacket, now: float) -> list[Effect]:
        """Handle a packet of the agent, if its connection still exists."""
        return self.receive(connection, packet, now) if connection == self.agent_connection else []

    def close_agent(self, now: float, refuse_s: float = 0.0) -> None:
        """End the agent's connection and refuse it for `refuse_s` seconds."""
        if self.agent_connection is not None:
            self.disconnected(self.agent_connection, now)
            self.agent_connection = None
        self.connection_count += 1
        self.refuses_until = max(self.refuses_until, now + refuse_s)

    def lose_session(self, now: float) -> list[PublishPacket]:
        """End the agent's session, as a broker without persistence does when it restarts. Return
        the publications that the agent has not acknowledged."""
        self.close_agent(now)
        session = self._sessions.get(AGENT)
        self.session_lost_at = now
        if session is None:
            return []
        lost = self.unacknowledged
        self._forget(session)
        return lost

    @property
    def unacknowledged(self) -> list[PublishPacket]:
        """Publications that the agent has not acknowledged, in order."""
        session = self._sessions.get(AGENT)
        if session is None:
            return []
        window = session.outgoing
        in_flight = [each for each in window.in_flight.values() if each.state != State.RELEASED]
        return [each.packet for each in (*in_flight, *window.queue)]

    @property
    def unreleased_count(self) -> int:
        """QoS 2 publications of the agent that are not released yet."""
        session = self._sessions.get(AGENT)
        return len(session.incoming.in_flight) if session is not None else 0
