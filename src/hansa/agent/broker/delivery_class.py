"""Delivery class of a broker for QoS 1 and 2, derived from the results of a probe.

`hansa.testbed.probes.delivery` tests the broker with clients that disconnect and return; this
module draws the conclusions. The class describes a running broker: what it keeps across its own
restart cannot be tested from outside.
"""

from dataclasses import dataclass
from enum import Enum


class DeliveryClass(Enum):
    """The guarantee for QoS 2 that agents can give at this broker, the best first."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    """A crash of the agent may cause duplicates."""
    BEST_EFFORT = "best effort"
    """Publications are lost while the agent is disconnected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryProbeResult:
    """Observed behaviour of a broker; None where it could not be tested."""

    resumes_session: bool | None = None
    """Whether the broker resumed the session of a client that had disconnected."""
    redelivers_unacknowledged: bool | None = None
    """Whether unacknowledged publications were sent again at once."""
    keeps_packet_ids: bool | None = None
    """Whether they had the same packet ids."""
    marks_dup: bool | None = None
    """Whether they had the DUP flag. MQTT requires it; an agent does not need it."""
    accepts_qos2: bool | None = None
    deduplicates_publish: bool | None = None
    """Whether a PUBLISH that was repeated before its PUBREL was delivered once."""
    repeats_pubcomp: bool | None = None
    """Whether a repeated PUBREL got its PUBCOMP without a second delivery."""
    queued_count: int | None = None
    """Publications that the broker kept for a disconnected client …"""
    queue_offered_count: int = 0
    """… of so many that were published."""

    @property
    def has_queue_overflowed(self) -> bool:
        """Whether it dropped some."""
        return self.queued_count is not None and self.queued_count < self.queue_offered_count


@dataclass(frozen=True, slots=True)
class DeliveryClassification:
    """A delivery class and the reason, in one line."""

    delivery_class: DeliveryClass | None
    """None if too little could be tested."""
    reason: str


def classify(result: DeliveryProbeResult) -> DeliveryClassification:
    """Derive the class: the first missing property decides."""
    if result.resumes_session is None:
        return DeliveryClassification(None, "no QoS 1 publication of one client reached another")
    if not result.resumes_session:
        reason = "it forgets a client that breaks off, and what is published until it is back"
        return DeliveryClassification(DeliveryClass.BEST_EFFORT, reason)
    if result.queued_count == 0:
        return DeliveryClassification(
            DeliveryClass.BEST_EFFORT, "it keeps nothing for a client that is away"
        )
    lacking = [reason for is_met, reason in _exactly_once_requirements(result) if not is_met]
    if lacking:
        return DeliveryClassification(DeliveryClass.AT_LEAST_ONCE, "; ".join(lacking))
    reason = "it resumes sessions, and delivers QoS 2 once also when clients break off"
    if result.has_queue_overflowed:
        reason += f", while no more than {result.queued_count} publications wait for one"
    return DeliveryClassification(DeliveryClass.EXACTLY_ONCE, reason)


def _exactly_once_requirements(result: DeliveryProbeResult) -> list[tuple[bool | None, str]]:
    needed: list[tuple[bool | None, str]] = [(result.accepts_qos2, "it takes no QoS 2")]
    if result.accepts_qos2:
        needed += [
            (
                result.deduplicates_publish,
                "a QoS 2 publication that is sent again is not delivered once",
            ),
            (result.repeats_pubcomp, "a PUBREL that is sent again is not just answered"),
        ]
    if result.redelivers_unacknowledged:
        needed.append((result.keeps_packet_ids, "what it sends again has other packet ids"))
    else:
        needed.append((False, "what was not acknowledged does not come again at once"))
    return needed
