"""The result of a run: plain values that print, compare and cross process boundaries.

Equal options give equal results and equal JSON on any machine; the wall-clock time is in neither.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class ConvergenceRecord:
    """Time to convergence after one disturbance."""

    after: str
    """The disturbance: `start`, `crash 3`, `cut 0-1` …"""
    at_s: float
    """Virtual seconds."""
    converged_s: float | None
    """Seconds until the federation was converged and stayed so until the next disturbance; None if
    never."""


@dataclass(frozen=True, slots=True)
class DelayStatistics:
    """Delay from the publishing client to the receiving ones."""

    count: int
    mean: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class GuaranteeSummary:
    """Outcome of QoS 1 and 2 publications, counted per guaranteed receiver."""

    promised: int
    """Guaranteed deliveries whose preconditions held until the end of the run."""
    delivered: int
    """Of these, the delivered ones."""
    reported: int
    """Of these, the ones not delivered whose loss receiver or origin reported with a reason."""
    uncaptured: int
    """Not guaranteed: the publisher's broker lost them before its agent had them on disk."""
    gaps: int
    """Reports of publications that will never arrive."""
    repaired: int
    """Deliveries from the journal of their origin."""


@dataclass(frozen=True, slots=True)
class SimulationResult:
    seed: int
    topology: str
    """Its specification such as `grid:3x3`, or its name."""
    nodes: int
    links: int

    converged_s: tuple[ConvergenceRecord, ...]
    """After the start and after each disturbance, in order."""

    control_frames: dict[str, int]
    """Frames sent, by type. On datagram links a frame counts as the type that it carries."""
    control_bytes: dict[str, int]
    frames_per_announcement_max: int
    """The largest number of frames that carried one announcement (core, incarnation, sequence) over
    the links that were up when it was made. Theorem 1 of Spohn 2020: at most twice the links."""

    publications: int
    """Publications of clients."""
    expected: int
    """Pairs of a publication and another interested broker that was running."""
    delivered: int
    """Expected pairs that were delivered."""
    lost: int
    """Expected pairs that were not delivered."""
    duplicates_delivered: int
    """Deliveries of a publication to a broker that already had it."""
    duplicates_dropped: int
    """Copies that a node recognised and dropped."""
    copies_per_publication: float
    """Copies sent over links, per publication that left its node."""
    delay_ms: DelayStatistics | None
    """Of all deliveries; None if there were none."""
    delay_ms_by_node: dict[int, DelayStatistics]
    """The same by receiving node."""

    guaranteed: GuaranteeSummary | None
    """None without disks or without checks."""

    violations: tuple[str, ...]
    """Violated invariants, each with time, nodes and seed."""
    fingerprint: str
    """Hash of the whole transcript. Equal for equal options, on any machine."""

    virtual_s: float
    events: int
    """Events that nodes handled."""
    data_frames: int
    data_bytes: int
    wall_s: float = field(default=0.0, compare=False)
    """Wall-clock seconds of the run; not part of equality and JSON."""

    @property
    def ok(self) -> bool:
        """Whether no invariant was violated."""
        return not self.violations

    def to_json(self) -> str:
        """Return the result as one JSON object, the same bytes for the same run."""
        values = asdict(self)
        del values["wall_s"]
        return json.dumps(values, sort_keys=True, indent=2)


def delay_statistics(samples_s: Sequence[float]) -> DelayStatistics | None:
    """Summarise delays given in seconds; None if there are none."""
    if not samples_s:
        return None
    ordered = sorted(samples_s)
    last = len(ordered) - 1
    return DelayStatistics(
        count=len(ordered),
        mean=_milliseconds(sum(ordered) / len(ordered)),
        p50=_milliseconds(ordered[round(0.50 * last)]),
        p99=_milliseconds(ordered[round(0.99 * last)]),
    )


def _milliseconds(seconds: float) -> float:
    """Round to nanoseconds: more precision means nothing in this model."""
    return round(seconds * 1000, 6)
