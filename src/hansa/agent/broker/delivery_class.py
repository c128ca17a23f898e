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
class Proof:
    """What a broker did; None for what could not be tried."""

    resumes: bool | None = None
    """Whether it still knew a client that had broken off."""
    redelivers: bool | None = None
    """Whether what that client had not acknowledged came again at once."""
    keeps_ids: bool | None = None
    """Whether it came with the same packet ids."""
    marks_dup: bool | None = None
    """Whether it was marked as sent before. MQTT says so; an agent does not need it."""
    takes_qos_2: bool | None = None
    delivers_once: bool | None = None
    """Whether a PUBLISH that was sent again before its PUBREL was delivered once."""
    completes_again: bool | None = None
    """Whether a PUBREL that was sent again got its PUBCOMP, and nothing was delivered again."""
    queued: int | None = None
    """Publications that it kept for a client that was away …"""
    queue_tried: int = 0
    """… of so many."""

    @property
    def queue_overflowed(self) -> bool:
        """Whether it dropped some."""
        return self.queued is not None and self.queued < self.queue_tried


@dataclass(frozen=True, slots=True)
class Verdict:
    """A class, and in one line why."""

    delivery_class: DeliveryClass | None
    """None if too little could be tried."""
    reason: str


def classify(proof: Proof) -> Verdict:
    """Judge a broker: the first thing that it lacks decides."""
    if proof.resumes is None:
        return Verdict(None, "no QoS 1 publication of one client reached another")
    if not proof.resumes:
        reason = "it forgets a client that breaks off, and what is published until it is back"
        return Verdict(DeliveryClass.BEST_EFFORT, reason)
    if proof.queued == 0:
        return Verdict(DeliveryClass.BEST_EFFORT, "it keeps nothing for a client that is away")
    lacking = [reason for is_met, reason in _needed_for_exactly_once(proof) if not is_met]
    if lacking:
        return Verdict(DeliveryClass.AT_LEAST_ONCE, "; ".join(lacking))
    reason = "it resumes sessions, and delivers QoS 2 once also when clients break off"
    if proof.queue_overflowed:
        reason += f", while no more than {proof.queued} publications wait for one"
    return Verdict(DeliveryClass.EXACTLY_ONCE, reason)


def _needed_for_exactly_once(proof: Proof) -> list[tuple[bool | None, str]]:
    needed: list[tuple[bool | None, str]] = [(proof.takes_qos_2, "it takes no QoS 2")]
    if proof.takes_qos_2:
        needed += [
            (proof.delivers_once, "a QoS 2 publication that is sent again is not delivered once"),
            (proof.completes_again, "a PUBREL that is sent again is not just answered"),
        ]
    if proof.redelivers:
        needed.append((proof.keeps_ids, "what it sends again has other packet ids"))
    else:
        needed.append((False, "what was not acknowledged does not come again at once"))
    return needed
