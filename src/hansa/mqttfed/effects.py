"""What a node of `mqtt-fed` wants done, and what it tells."""

from dataclasses import dataclass

from hansa.mqttfed.messages import CoreAnnouncement, Membership, Routed


@dataclass(frozen=True, slots=True)
class Send:
    """Publish this at a neighbour's broker."""

    neighbour: int
    topic: str
    message: CoreAnnouncement | Membership | Routed


@dataclass(frozen=True, slots=True)
class Deliver:
    """Publish this to the clients of our own broker."""

    topic: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class CoreChanged:
    """News: a topic has another core, or none."""

    topic: str
    core: int | None


@dataclass(frozen=True, slots=True)
class LeftAside:
    """News: a message led to nothing."""

    reason: str
    """One of a few, to be counted by."""
    detail: str = ""


Effect = Send | Deliver | CoreChanged | LeftAside
