"""The state that Mosquitto writes to its database and restores when it starts.

Saved are retained messages, and the sessions whose last CONNECT was without clean start, with their
plain subscriptions, their handshakes and their queues. Not saved are shared subscriptions, other
sessions whatever their expiry interval, and wills.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hansa.mqtt.packets import Subscription
from hansa.simulator.broker.message import Message
from hansa.simulator.broker.outgoing import Outgoing
from hansa.simulator.broker.retained import RetainedMessages
from hansa.simulator.broker.session import Session
from hansa.simulator.broker.settings import MosquittoSettings
from hansa.simulator.broker.subscriptions import Subscriptions


@dataclass(frozen=True, slots=True)
class PersistedSession:
    client_id: str
    expiry_interval: int
    expires_at: int | None
    """As if it had disconnected at the time of the save, if it was connected."""
    last_packet_id: int
    outgoing: list[Outgoing]
    incoming: list[tuple[int, Message]]


@dataclass(frozen=True, slots=True)
class SavedState:
    sessions: list[PersistedSession] = field(default_factory=list)
    subscriptions: list[tuple[str, Subscription, int]] = field(default_factory=list)
    """Client id, subscription and subscription identifier."""
    retained: list[Message] = field(default_factory=list)


def save_state(
    sessions: Iterable[Session],
    subscriptions: Subscriptions,
    retained: RetainedMessages,
    second: int,
) -> SavedState:
    return SavedState(
        [
            PersistedSession(
                session.client_id,
                session.expiry_interval,
                session.expiry_from(second) if session.expires_at is None else session.expires_at,
                session.outgoing.last_packet_id,
                session.outgoing.saved(),
                session.incoming.saved(),
            )
            for session in sessions
            if session.is_saved
        ],
        [
            (
                each.session.client_id,
                Subscription(topic_filter, each.qos, each.no_local, each.retain_as_published),
                each.identifier,
            )
            for topic_filter, each in subscriptions.plain()
            if each.session.is_saved
        ],
        list(retained.messages()),
    )


def restore_state(
    saved: SavedState,
    settings: MosquittoSettings,
    subscriptions: Subscriptions,
    retained: RetainedMessages,
) -> dict[str, Session]:
    """Return the saved sessions by client id, and add subscriptions and retained messages."""
    sessions: dict[str, Session] = {}
    for each in saved.sessions:
        session = sessions[each.client_id] = Session(each.client_id, settings)
        session.expiry_interval = each.expiry_interval
        if settings.is_v2_1:
            session.expires_at = each.expires_at
        session.outgoing.last_packet_id = each.last_packet_id
        session.outgoing.restore(each.outgoing)
        session.incoming.restore(each.incoming)
    for client_id, subscription, identifier in saved.subscriptions:
        subscriptions.add(sessions[client_id], subscription, identifier)
    for message in saved.retained:
        retained.store(message)
    return sessions
