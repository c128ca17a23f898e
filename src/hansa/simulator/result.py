"""What a run has shown: plain values that print, compare, and cross process boundaries.

Two runs of the same options give equal results and the same JSON, on any machine; only the wall
clock, which is in neither, differs.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class ConvergenceRecord:
    """How long the federation took to get everything right after one disturbance."""

    after: str
    """What happened: `start`, `crash 3`, `cut 0-1` …"""
    at_s: float
    """When it happened, in virtual seconds."""
    converged_s: float | None
    """Seconds until all was right and stayed so until the next disturbance; None if never."""


@dataclass(frozen=True, slots=True)
class DelayStatistics:
    """How long publications took from the publishing client to the receiving ones."""

    count: int
    mean: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class GuaranteeSummary:
    """What became of publications of QoS 1 and 2, counted per node to which they were promised."""

    promised: int
    """Where nothing that the promise needs was taken away before the end of the run."""
    delivered: int
    """Of these, those that came."""
    reported: int
    """Of these, those that did not come, and the receiver or the origin said so, with reason."""
    uncaptured: int
    """Not promised: the publisher's broker lost them before its agent had them safe."""
    gaps: int
    """Reports of something that will never come."""
    repaired: int
    """Deliveries that came from the journal of their origin."""


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """One run."""

    seed: int
    topology: str
    """Its word, such as `grid:3x3`, or its name."""
    nodes: int
    links: int

    converged_s: tuple[ConvergenceRecord, ...]
    """After the start and after each disturbance, in order."""

    control_frames: dict[str, int]
    """Frames sent, by kind. On datagram links a frame counts as the kind that it carries."""
    control_bytes: dict[str, int]
    frames_per_announcement_max: int
    """The most frames that carried one announcement (core, incarnation, seq) over the links that
    were up when it was made. Theorem 1 of Spohn 2020: at most twice the links."""

    publications: int
    """What clients published."""
    expected: int
    """Pairs of a publication and another broker that wanted it and ran when it was published."""
    delivered: int
    """Expected pairs that were delivered."""
    lost: int
    """Expected pairs that were not."""
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
    """None if there are no disks, or nothing was checked."""

    violations: tuple[str, ...]
    """Broken promises, each with time, nodes and seed. A good run has none."""
    fingerprint: str
    """Hash of everything that happened. Equal for equal options, on any machine."""

    virtual_s: float
    events: int
    """Events that nodes handled."""
    data_frames: int
    data_bytes: int
    wall_s: float = field(default=0.0, compare=False)
    """Seconds that the run took; not part of equality and JSON."""

    @property
    def ok(self) -> bool:
        """Whether all promises were kept."""
        return not self.violations

    def to_json(self) -> str:
        """Return the result as one JSON object, the same bytes for the same run."""
        values = asdict(self)
        del values["wall_s"]
        return json.dumps(values, sort_keys=True, indent=2)


def delay_statistics(samples_s: Sequence[float]) -> DelayStatistics | None:
    """Sum up delays given in seconds; None if there are none."""
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
    """Nanoseconds are below what the model means; without them results read well."""
    return round(seconds * 1000, 6)
