"""What a node answers about itself: the form of a summary and of an event.

The agent that collects the answers checks each one, because a node may run another version or be
compromised: its answer is left out, and those of the others are shown.
"""

from typing import Annotated, Any

import msgspec

WHOLE_MAX = (1 << 53) - 1

Whole = Annotated[int, msgspec.Meta(ge=0, le=WHOLE_MAX)]
"""A number that JSON parsers of all languages keep exactly, and that is a valid time in ms."""


class BrokerLimitsInfo(msgspec.Struct, frozen=True):
    """What a broker granted the agent in its CONNACK."""

    receive_maximum: Whole
    qos_max: Whole
    session_expiry: Whole


class BrokerInfo(msgspec.Struct, frozen=True):
    address: str
    connected: bool
    problem: str = ""
    observer_complete: bool = True
    observer_problem: str = ""
    limits: BrokerLimitsInfo | None = None
    """None until it has connected."""
    queued_max: Whole | None = None
    """Messages that the broker queues for a client, 0 without a limit; None if the agent does not
    know its configuration."""
    config_problem: str = ""
    """Why the agent cannot read the broker's configuration."""


class NeighbourInfo(msgspec.Struct, frozen=True):
    rtt_ms: float | None = None
    bytes_in: Whole = 0
    bytes_out: Whole = 0
    outstanding_bytes: Whole = 0
    dropped: Whole = 0
    drop_reasons: dict[str, Whole] = {}


class InterestInfo(msgspec.Struct, frozen=True):
    filters: Whole
    installed: bool
    wide: tuple[str, ...] = ()


class DeliveryInfo(msgspec.Struct, frozen=True):
    pending: dict[str, Whole] = {}
    inbox: Whole = 0
    inbox_bytes: Whole = 0
    inbox_waiting: Whole = 0
    journal_bytes: Whole = 0
    gaps: tuple[dict[str, Any], ...] = ()


class DeliverySettingsInfo(msgspec.Struct, frozen=True):
    """The settings of [delivery], and the lease that also decides how long publications are kept.
    JSON has no infinity: a time without end is None."""

    in_flight_max: Whole
    inbox_bytes: Whole
    session_loss_policy: str
    retention_seconds: float | None
    retention_bytes: Whole
    interest_lease: float | None


class NodeSummary(msgspec.Struct, frozen=True):
    """What an agent says about itself."""

    name: str
    node: str
    version: str
    incarnation: Whole
    broker: BrokerInfo
    neighbours: dict[str, NeighbourInfo]
    interest: InterestInfo
    delivery: DeliveryInfo
    alarms: dict[str, str]
    counters: dict[str, Whole]
    clock_ms: Whole = 0
    refused: tuple[str, ...] = ()
    not_reached: dict[str, str] = {}
    """Addresses of neighbours that it cannot dial, with reasons."""
    problem: str = ""
    link: str = ""
    security: dict[str, Any] | None = None
    disk: dict[str, Whole] = {}
    """Free and total bytes of the disk that holds its state."""
    local_filters: tuple[str, ...] = ()
    settings: dict[str, Any] | None = None
    """Settings of the protocol that are not the defaults; None if the agent does not say."""
    delivery_settings: DeliverySettingsInfo | None = None

    @property
    def dropped(self) -> int:
        """Publications that the agent dropped, for any reason."""
        return sum(n for name, n in self.counters.items() if name.startswith("dropped:"))


class RememberedEvent(msgspec.Struct, frozen=True):
    """An event that an agent remembers."""

    number: Whole
    at_ms: Whole
    kind: str
    node: str = ""
    name: str = ""
    subject: str = ""
    text: str = ""


UNREADABLE = "its answer has another form; does it run another version?"


def has_form(answer: object, kind: Any) -> bool:
    """Whether an answer has the fields of a type; others are allowed."""
    try:
        msgspec.convert(answer, kind)
    except msgspec.ValidationError:
        return False
    return True
