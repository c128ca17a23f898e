"""How far a broker can be trusted with QoS 1 and 2: its class, judged from what it did when tried.

`hansa.testbed.probes.delivery` tries it, with clients that disconnect and return; here is what
follows. A class is about a broker that runs: what it still knows after a restart cannot be tried
from outside.
"""

from dataclasses import dataclass
from enum import Enum


class DeliveryClass(Enum):
    """What the agents can promise at this broker for QoS 2; the best first."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    """A crash of the agent may bring copies."""
    BEST_EFFORT = "best effort"
    """What is published while the agent is away is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryProbeResult:
    """What a broker did; None for what could not be tried."""

    resumes_session: bool | None = None
    """Whether it still knew a client that had broken off."""
    redelivers_unacknowledged: bool | None = None
    """Whether what that client had not acknowledged came again at once."""
    keeps_packet_ids: bool | None = None
    """Whether it came with the same packet ids."""
    marks_dup: bool | None = None
    """Whether it was marked as sent before. MQTT says so; an agent does not need it."""
    accepts_qos2: bool | None = None
    deduplicates_publish: bool | None = None
    """Whether a PUBLISH that was sent again before its PUBREL was delivered once."""
    repeats_pubcomp: bool | None = None
    """Whether a PUBREL that was sent again got its PUBCOMP, and nothing was delivered again."""
    queued_count: int | None = None
    """Publications that it kept for a disconnected client …"""
    queue_offered_count: int = 0
    """… of so many."""

    @property
    def has_queue_overflowed(self) -> bool:
        """Whether it dropped some."""
        return self.queued_count is not None and self.queued_count < self.queue_offered_count


@dataclass(frozen=True, slots=True)
class DeliveryClassification:
    """A class, and in one line why."""

    delivery_class: DeliveryClass | None
    """None if too little could be tried."""
    reason: str


def classify(result: DeliveryProbeResult) -> DeliveryClassification:
    """Judge a broker: the first thing that it lacks decides."""
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
