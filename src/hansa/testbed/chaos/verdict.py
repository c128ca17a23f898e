"""Was the promise kept? A pure judgement over a history.

An acknowledged publication that a subscriber got is *ok*, or *recovered* if it came late; one that
it did not get is *lost*. One that was not acknowledged is *unknown* if it did not come (its broker
may never have had it) and recovered if it did; *refused* if the broker said so. What is lost is
told apart by where: at the start of a stream, in its middle, or at its end.

What a broker took with it when it lost its memory, or a node with its state directory, nobody
promises: it is *forfeited*, but only in the direction, and for as long, as that memory mattered.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hansa.testbed.chaos.history import HistoryEvent, HistoryOperation, PublisherStream

LATE_S = 2.0
"""Seconds after which an arrival counts as recovered: it came by repair, not by the usual way."""
GRACE_S = 3.0
"""Seconds that a publication may be on its way."""
REPEAT_S = 30.0
"""Seconds within which what was under way is published again; a busy machine starts slowly."""


@dataclass(frozen=True, slots=True)
class AllowedLoss:
    """Memory was lost at one end: what was on its way just then, and what was published until all
    was back, may never come."""

    since: float
    until: float
    captured_by: tuple[str, ...] = ()
    """What one of these subscribers got had been captured, and is owed to all."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """Something under way was interrupted: some of it may come twice, soon after."""

    interrupted_at: float
    qos_max: int
    """Up to which quality."""
    count_max: int
    """How many of each quality."""


@dataclass(frozen=True, slots=True)
class FaultContext:
    """What was done, as far as the promise makes an exception for it."""

    allowed_losses: Mapping[str, Sequence[AllowedLoss]] = field(default_factory=dict)
    """Per client: of a publisher for what it published, of a subscriber for what it was to get."""
    interruptions: Mapping[str, Sequence[Interruption]] = field(default_factory=dict)
    """Per client, as excuses."""


NO_FAULTS = FaultContext()


@dataclass(slots=True)
class ChaosVerdict:
    """What became of all publications at all subscribers."""

    published: int = 0
    acknowledged: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    """Pairs of publication and subscriber: ok, recovered, unknown, refused, forfeited, lost."""
    excusable: int = 0
    """Of the acknowledged ones at QoS 1 and 2, those that might have been forfeited."""
    promised: int = 0
    """Acknowledged ones at QoS 1 and 2."""
    lost_where: Counter[str] = field(default_factory=Counter)
    """Of the lost ones: prefix, middle, postfix."""
    lost_at: Counter[str] = field(default_factory=Counter)
    """Of the lost ones: per subscriber."""
    duplicates: dict[int, Counter[str]] = field(
        default_factory=lambda: {qos: Counter() for qos in (0, 1, 2)}
    )
    """Second and further arrivals, by QoS and subscriber."""
    unexplained: Counter[int] = field(default_factory=Counter)
    """Of the duplicates, by QoS, those that no interruption explains."""
    inversions: int = 0
    """First arrivals after a later one of the same stream; at QoS 0 a new way may overtake."""
    phantoms: int = 0
    """Arrivals of what nobody published, not to that topic, with that QoS and those properties."""
    examples: list[str] = field(default_factory=list)
    """A few of what went wrong, in words."""

    def duplicate_count(self, qos: int) -> int:
        """Return how many arrivals of a QoS were not the first."""
        return self.duplicates[qos].total()

    @property
    def violations(self) -> list[str]:
        """Return which promises were broken; none if the promise was kept."""
        found = {
            "nothing was published": not self.published,
            f"{self.fates['lost']} lost": self.fates["lost"],
            f"{self.inversions} out of order": self.inversions,
            f"{self.phantoms} that nobody published": self.phantoms,
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
    """Judge a history; `subscribers` got the streams of these topics, from start to end."""
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
        _add_example(verdict, f"{who} got {stream}, which nobody published for it like this")
    return verdict


def _unexplained_repeats(
    who: str,
    qos: int,
    by_publisher: Mapping[str, Iterable[float]],
    interruptions: Mapping[str, Sequence[Interruption]],
) -> list[float]:
    """Return which second arrivals nothing explains. One of QoS 1 may have been captured twice
    where it was published, or published twice where it arrived; one of QoS 2 only that."""
    rest: list[float] = []
    for publisher, times in by_publisher.items():
        rest += unexplained_repeats(times, interruptions.get(publisher, ()) if qos == 1 else ())
    return unexplained_repeats(
        rest, [hit for hit in interruptions.get(who, ()) if hit.qos_max >= qos > 0]
    )


def unexplained_repeats(
    repeats: Iterable[float], interruptions: Iterable[Interruption]
) -> list[float]:
    """Return which second arrivals came too late after each hit, or are too many for it."""
    upcoming = sorted(interruptions, key=lambda hit: hit.interrupted_at)
    room: list[list[float]] = []  # the hits before the present, each with how many it still allows
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
    """Return when each publication came first; note what else came, and when it came again."""
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
    """What became of one stream at one subscriber."""

    sent: Mapping[int, float]
    answers: Mapping[int, HistoryOperation]
    first: Mapping[int, float]


class _StreamAllowance:
    """An excuse as it counts for one stream at one subscriber."""

    def __init__(
        self,
        allowed_loss: AllowedLoss,
        first: Mapping[int, float],
        captured_by: Sequence[Mapping[int, float]],
    ) -> None:
        self._allowed_loss = allowed_loss
        self._captured_by = captured_by
        # What should have come before that was not on its way any more.
        self._newest = max((n for n, at in first.items() if at < allowed_loss.since), default=-1)

    def covers_time(self, counter: int, at: float) -> bool:
        """Whether a publication of that time may be lost, as far as one can tell by the clock."""
        is_then = self._allowed_loss.since - GRACE_S <= at <= self._allowed_loss.until
        return is_then and counter > self._newest

    def allows_loss(self, counter: int, at: float) -> bool:
        """Whether it may be lost, by all that is known."""
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
