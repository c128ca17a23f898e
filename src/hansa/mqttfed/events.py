"""The input of an `mqtt-fed` node."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokerMessageReceived:
    """Our own broker sent a message."""

    topic: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class TopicInterestChanged:
    """Clients subscribe to other topics than before, as an observer reports; beacons count
    separately."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FedTimerFired:
    """The deadline has passed, or may have."""


FedEvent = BrokerMessageReceived | TopicInterestChanged | FedTimerFired
