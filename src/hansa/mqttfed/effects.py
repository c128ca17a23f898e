"""The output of an `mqtt-fed` node: commands and notifications."""

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
    """Notification: a topic has another core, or none."""

    topic: str
    core: int | None


@dataclass(frozen=True, slots=True)
class MessageIgnored:
    """Notification: a message had no effect."""

    reason: str
    """One of a small fixed set, so that it can be counted."""
    detail: str = ""


Effect = PublishAtNeighbour | PublishToClients | TopicCoreChanged | MessageIgnored
