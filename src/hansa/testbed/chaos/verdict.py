"""The verdict over a history of clients; pure, except for reading and writing evidence files.

For each publication and subscriber: *ok* if acknowledged and delivered, *recovered* if delivered
late or without an acknowledgement, *unknown* if neither acknowledged nor delivered, *refused* if
the broker refused it, *lost* if acknowledged and never delivered. Losses are counted by position in
the stream: start, middle, end.

A loss is *forfeited* instead if a broker or node lost the state that held the publication. That
holds only for publications of that time and in that direction (`AllowedLoss`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hansa.errors import UsageError
from hansa.testbed.chaos.history import HistoryEvent, HistoryOperation, PublisherStream

LATE_S = 2.0
"""Seconds after which a delivery counts as recovered."""
GRACE_S = 3.0
"""Seconds before a loss of state in which a publication may have been in flight."""
REPEAT_S = 30.0
"""Seconds after an interruption in which duplicates are allowed; a busy machine restarts slowly."""


@dataclass(frozen=True, slots=True)
class AllowedLoss:
    """State was lost at one end: publications in flight at that time, and those published until the
    recovery, may be lost."""

    since: float
    until: float
    captured_by: tuple[str, ...] = ()
    """A publication that one of these subscribers got had been captured, and may not be lost."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """Handshakes were interrupted: publications in flight may be delivered twice, soon after."""

    interrupted_at: float
    qos_max: int
    """Highest QoS for which this holds."""
    count_max: int
    """Number of allowed duplicates per QoS."""


@dataclass(frozen=True, slots=True)
class FaultContext:
    """Allowed losses and duplicates by client."""

    allowed_losses: Mapping[str, Sequence[AllowedLoss]] = field(default_factory=dict)
    """Of a publisher for its publications, of a subscriber for its deliveries."""
    interruptions: Mapping[str, Sequence[Interruption]] = field(default_factory=dict)


NO_FAULTS = FaultContext()


@dataclass(slots=True)
class ChaosVerdict:
    """Counts over all publications and subscribers."""

    published: int = 0
    acknowledged: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    """Pairs of publication and subscriber: ok, recovered, unknown, refused, forfeited, lost."""
    excusable: int = 0
    """Number of `promised` whose loss would have been forfeited."""
    promised: int = 0
    """Pairs of acknowledged publication at QoS 1 or 2 and subscriber."""
    lost_where: Counter[str] = field(default_factory=Counter)
    """Losses by position in the stream: prefix, middle, postfix."""
    lost_at: Counter[str] = field(default_factory=Counter)
    """Losses by subscriber."""
    duplicates: dict[int, Counter[str]] = field(
        default_factory=lambda: {qos: Counter() for qos in (0, 1, 2)}
    )
    """Second and further deliveries, by QoS and subscriber."""
    unexplained: Counter[int] = field(default_factory=Counter)
    """Duplicates by QoS that no interruption explains."""
    inversions: int = 0
    """First deliveries at QoS 1 and 2 after a later one of the same stream. At QoS 0 a new path may
    reorder."""
    phantoms: int = 0
    """Deliveries that were not published with this topic, payload, QoS and properties."""
    examples: list[str] = field(default_factory=list)

    def duplicate_count(self, qos: int) -> int:
        return self.duplicates[qos].total()

    @property
    def violations(self) -> list[str]:
        """Broken promises; empty if all were kept."""
        found = {
            "nothing was published": not self.published,
            f"{self.fates['lost']} lost": self.fates["lost"],
            f"{self.inversions} out of order": self.inversions,
            f"{self.phantoms} never published": self.phantoms,
        }
        for qos, count in sorted(self.unexplained.items()):
            found[f"{count} twice at QoS {qos}"] = count
        return [text for text, is_broken in found.items() if is_broken]


EXAMPLES_MAX = 10


def judge_history(
    events: Iterable[HistoryEvent],
    subscribers: Mapping[str, Iterable[str]],
    fault_context: FaultContext = NO_FAULTS,
) -> ChaosVerdict:
    """Judge a history; `subscribers` maps each subscriber to its topics."""
    verdict = ChaosVerdict()
    published: dict[PublisherStream, dict[int, float]] = {}
    answers: dict[PublisherStream, dict[int, HistoryOperation]] = {}
    arrivals: dict[tuple[str, PublisherStream], list[HistoryEvent]] = {}
    for event in sorted(events, key=lambda each: each.at):
        if event.op is HistoryOperation.INVOKE:
            published.setdefault(event.stream, {})[event.counter] = event.at
        elif event.op is HistoryOperation.DELIVER:
            arrivals.setdefault((event.subscriber, event.stream), []).append(event)
        else:
            answers.setdefault(event.stream, {})[event.counter] = event.op
    verdict.published = sum(map(len, published.values()))
    verdict.acknowledged = sum(
        op is HistoryOperation.OK for answered in answers.values() for op in answered.values()
    )
    expected = [
        (subscriber, stream)
        for subscriber, topics in subscribers.items()
        for stream in published
        if stream.topic in set(topics)
    ]
    repeats: dict[tuple[str, int], dict[str, list[float]]] = {}
    firsts = {
        (who, stream): _first_arrivals(
            verdict,
            published[stream],
            arrivals.pop((who, stream), []),
            repeats.setdefault((who, stream.qos), {}).setdefault(stream.publisher, []),
        )
        for who, stream in expected
    }
    for who, stream in expected:
        fates = _StreamHistory(published[stream], answers.get(stream, {}), firsts[who, stream])
        allowances = [
            _StreamAllowance(
                excuse, fates.first, [firsts.get((w, stream), {}) for w in excuse.captured_by]
            )
            for client in (who, stream.publisher)
            for excuse in fault_context.allowed_losses.get(client, ())
        ]
        _judge_stream(verdict, (who, stream), fates, allowances)
    for (who, qos), by_publisher in repeats.items():
        verdict.duplicates[qos][who] += sum(map(len, by_publisher.values()))
        verdict.unexplained[qos] += len(
            _unexplained_repeats(who, qos, by_publisher, fault_context.interruptions)
        )
    for (who, stream), strays in arrivals.items():
        verdict.phantoms += len(strays)
        _add_example(verdict, f"{who} got {stream}, which was not published like this")
    return verdict


def _unexplained_repeats(
    who: str,
    qos: int,
    by_publisher: Mapping[str, Iterable[float]],
    interruptions: Mapping[str, Sequence[Interruption]],
) -> list[float]:
    """Return the times of duplicates that nothing explains. At QoS 1 a publication may have been
    captured twice at its publisher, or delivered twice at its subscriber; at QoS 2 only the
    latter."""
    rest: list[float] = []
    for publisher, times in by_publisher.items():
        rest += unexplained_repeats(times, interruptions.get(publisher, ()) if qos == 1 else ())
    return unexplained_repeats(
        rest, [each for each in interruptions.get(who, ()) if each.qos_max >= qos > 0]
    )


def unexplained_repeats(
    repeats: Iterable[float], interruptions: Iterable[Interruption]
) -> list[float]:
    """Return the times of duplicates that are too late after every interruption, or too many."""
    upcoming = sorted(interruptions, key=lambda each: each.interrupted_at)
    room: list[list[float]] = []  # deadline and remaining count of each past interruption
    found: list[float] = []
    for at in sorted(repeats):
        while upcoming and upcoming[0].interrupted_at <= at:
            interruption = upcoming.pop(0)
            room.append([interruption.interrupted_at + REPEAT_S, interruption.count_max])
        room = [each for each in room if each[0] >= at and each[1]]
        if room:
            room[0][1] -= 1
        else:
            found.append(at)
    return found


def _first_arrivals(
    verdict: ChaosVerdict,
    sent: Mapping[int, float],
    events: Iterable[HistoryEvent],
    repeats: list[float],
) -> dict[int, float]:
    """Return the first delivery of each publication; count phantoms and inversions, and add the
    times of duplicates to `repeats`."""
    first: dict[int, float] = {}
    newest = -1
    for event in events:
        who, stream, counter = event.subscriber, event.stream, event.counter
        if counter not in sent or event.qos != stream.qos:
            verdict.phantoms += 1
            _add_example(verdict, f"{who} got {stream} {counter} at QoS {event.qos}")
        elif counter in first:
            repeats.append(event.at)
            _add_example(verdict, f"{who} got {stream} {counter} twice")
        else:
            first[counter] = event.at
            if counter < newest and stream.qos:
                verdict.inversions += 1
                _add_example(verdict, f"{who} got {stream} {counter} after {newest}")
            newest = max(newest, counter)
    return first


@dataclass(frozen=True, slots=True)
class _StreamHistory:
    sent: Mapping[int, float]
    answers: Mapping[int, HistoryOperation]
    first: Mapping[int, float]


class _StreamAllowance:
    """An AllowedLoss, applied to one stream at one subscriber."""

    def __init__(
        self,
        allowed_loss: AllowedLoss,
        first: Mapping[int, float],
        captured_by: Sequence[Mapping[int, float]],
    ) -> None:
        self._allowed_loss = allowed_loss
        self._captured_by = captured_by
        # Older publications had been delivered before, so they were not in flight.
        self._newest = max((n for n, at in first.items() if at < allowed_loss.since), default=-1)

    def covers_time(self, counter: int, at: float) -> bool:
        """Whether the time of a publication allows its loss."""
        is_within = self._allowed_loss.since - GRACE_S <= at <= self._allowed_loss.until
        return is_within and counter > self._newest

    def allows_loss(self, counter: int, at: float) -> bool:
        """Whether a publication may be lost: by its time, and not known to be captured."""
        return self.covers_time(counter, at) and not any(
            counter in got for got in self._captured_by
        )


def _judge_stream(
    verdict: ChaosVerdict,
    name: tuple[str, PublisherStream],
    history: _StreamHistory,
    allowances: Sequence[_StreamAllowance],
) -> None:
    subscriber, stream = name
    for counter, at in history.sent.items():
        answer = history.answers.get(counter)
        if answer is HistoryOperation.OK and stream.qos:
            verdict.promised += 1
            verdict.excusable += any(each.covers_time(counter, at) for each in allowances)
        if counter in history.first:
            is_late = history.first[counter] - at > LATE_S or answer is not HistoryOperation.OK
            verdict.fates["recovered" if is_late else "ok"] += 1
        elif answer is not HistoryOperation.OK:
            verdict.fates["refused" if answer is HistoryOperation.REFUSED else "unknown"] += 1
        elif stream.qos == 0:
            verdict.fates["lost at QoS 0"] += 1
        elif any(each.allows_loss(counter, at) for each in allowances):
            verdict.fates["forfeited"] += 1
        else:
            verdict.fates["lost"] += 1
            verdict.lost_at[subscriber] += 1
            verdict.lost_where[_position_of_loss(counter, history.first)] += 1
            _add_example(verdict, f"{subscriber} never got {stream} {counter}")


def _position_of_loss(counter: int, first: Mapping[int, float]) -> str:
    if not first or counter > max(first):
        return "postfix"
    return "prefix" if counter < min(first) else "middle"


def _add_example(verdict: ChaosVerdict, text: str) -> None:
    if len(verdict.examples) < EXAMPLES_MAX:
        verdict.examples.append(text)


@dataclass(frozen=True, slots=True)
class EvidenceHeader:
    """The first line of an evidence file."""

    subscribers: dict[str, list[str]]
    """Topics by subscriber."""
    fault_context: FaultContext
    problems: list[str]
    """Broken promises besides those of publications."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A history with everything that its verdict needs."""

    header: EvidenceHeader
    events: list[HistoryEvent]

    def judge(self) -> ChaosVerdict:
        return judge_history(self.events, self.header.subscribers, self.header.fault_context)

    def write(self, path: Path) -> None:
        """Write lines of JSON: the header, then one line per event."""
        with path.open("wb") as out:
            for line in (self.header, *self.events):
                out.write(msgspec.json.encode(line) + b"\n")


def read_evidence(path: Path) -> Evidence:
    """Read a file of `Evidence.write`; raise UsageError if it is none."""
    event = msgspec.json.Decoder(HistoryEvent)
    try:
        with path.open("rb") as lines:
            header = msgspec.json.decode(lines.readline(), type=EvidenceHeader)
            return Evidence(header, [event.decode(line) for line in lines])
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # msgspec.DecodeError, or not UTF-8
        raise UsageError(f"{path} is not a file of `--history`: {error}") from error
