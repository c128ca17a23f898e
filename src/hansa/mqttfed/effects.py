"""What a node of `mqtt-fed` wants done, and what it tells."""

from dataclasses import dataclass

from hansa.mqttfed.messages import CoreAnnouncementMessage, MembershipMessage, RoutedMessage


@dataclass(frozen=True, slots=True)
class PublishAtNeighbour:
    """Publish this at a neighbour's broker."""

    neighbour: int
    topic: str
    message: CoreAnnouncementMessage | MembershipMessage | RoutedMessage


@dataclass(frozen=True, slots=True)
class PublishToClients:
    """Publish this to the clients of our own broker."""

    topic: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class TopicCoreChanged:
    """News: a topic has another core, or none."""

    topic: str
    core: int | None


@dataclass(frozen=True, slots=True)
class MessageIgnored:
    """News: a message led to nothing."""

    reason: str
    """One of a few, to be counted by."""
    detail: str = ""


Effect = PublishAtNeighbour | PublishToClients | TopicCoreChanged | MessageIgnored
