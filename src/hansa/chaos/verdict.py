"""Was the promise kept? A pure judgement over a history.

An acknowledged publication that a subscriber got is *ok*, or *recovered* if it came late; one that
it did not get is *lost*. One that was not acknowledged is *unknown* if it did not come (its broker
may never have had it) and recovered if it did; *refused* if the broker said so. What is lost is
told apart by where: at the start of a stream, in its middle, or at its end.

What a broker took with it when it lost its memory, or a node with its state directory, nobody
promises: what was published then there, or for there, is *forfeited* if it does not come.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hansa.chaos.history import Event, Op, Stream

LATE_S = 2.0
"""Seconds after which an arrival counts as recovered: it came by repair, not by the usual way."""

Spans = Mapping[str, Sequence[tuple[float, float]]]
"""Per client, from when to when its broker or agent had lost its memory."""


@dataclass(slots=True)
class Verdict:
    """What became of all publications at all subscribers."""

    published: int = 0
    acknowledged: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    """Pairs of publication and subscriber: ok, recovered, unknown, refused, forfeited, lost."""
    lost_where: Counter[str] = field(default_factory=Counter)
    """Of the lost ones: prefix, middle, postfix."""
    lost_at: Counter[str] = field(default_factory=Counter)
    """Of the lost ones: per subscriber."""
    duplicates: dict[int, Counter[str]] = field(
        default_factory=lambda: {qos: Counter() for qos in (0, 1, 2)}
    )
    """Second and further arrivals, by QoS and subscriber."""
    inversions: int = 0
    """First arrivals after a later one of the same stream; at QoS 0 a new way may overtake."""
    phantoms: int = 0
    """Arrivals of what nobody published, not to that topic, with that QoS and those properties."""
    examples: list[str] = field(default_factory=list)
    """A few of what went wrong, in words."""

    def twice(self, qos: int) -> int:
        """Return how many arrivals of a QoS were not the first."""
        return self.duplicates[qos].total()

    def broken(self, allowed: Mapping[int, Mapping[str, int]] | None = None) -> list[str]:
        """Return which promises were broken; none if the promise was kept. `allowed` are the
        duplicates that crashes may cost, by QoS and subscriber."""
        found = {
            f"{self.fates['lost']} lost": self.fates["lost"],
            f"{self.inversions} out of order": self.inversions,
            f"{self.phantoms} that nobody published": self.phantoms,
        }
        for qos, counts in self.duplicates.items():
            spare = (allowed or {}).get(qos, {})
            too_many = any(count > spare.get(name, 0) for name, count in counts.items())
            found[f"{counts.total()} twice at QoS {qos}"] = too_many
        return [text for text, is_broken in found.items() if is_broken]


EXAMPLES_MAX = 10


def judge(
    events: Iterable[Event],
    subscribers: Mapping[str, Iterable[str]],
    forfeits: Spans | None = None,
) -> Verdict:
    """Judge a history; `subscribers` got the streams of these topics, from start to end."""
    verdict = Verdict()
    published: dict[Stream, dict[int, float]] = {}
    answers: dict[Stream, dict[int, Op]] = {}
    arrivals: dict[tuple[str, Stream], list[Event]] = {}
    for event in sorted(events, key=lambda each: each.at):
        if event.op is Op.INVOKE:
            published.setdefault(event.stream, {})[event.counter] = event.at
        elif event.op is Op.DELIVER:
            arrivals.setdefault((event.subscriber, event.stream), []).append(event)
        else:
            answers.setdefault(event.stream, {})[event.counter] = event.op
    verdict.published = sum(map(len, published.values()))
    verdict.acknowledged = sum(
        op is Op.OK for answered in answers.values() for op in answered.values()
    )
    for subscriber, topics in subscribers.items():
        wanted = set(topics)
        for stream, sent in published.items():
            if stream.topic in wanted:
                first = _arrivals(verdict, sent, arrivals.pop((subscriber, stream), []))
                fates = _Fates(sent, answers.get(stream, {}), first)
                spans = [*_spans(forfeits, subscriber), *_spans(forfeits, stream.publisher)]
                _judge_stream(verdict, (subscriber, stream), fates, spans)
    for (subscriber, stream), strays in arrivals.items():
        verdict.phantoms += len(strays)
        _note(verdict, f"{subscriber} got {stream}, which nobody published for it like this")
    return verdict


def _spans(forfeits: Spans | None, client: str) -> Sequence[tuple[float, float]]:
    return (forfeits or {}).get(client, ())


def _arrivals(
    verdict: Verdict, sent: Mapping[int, float], came: Iterable[Event]
) -> dict[int, float]:
    """Return when each publication came first; note what else came."""
    first: dict[int, float] = {}
    newest = -1
    for event in came:
        who, stream, counter = event.subscriber, event.stream, event.counter
        if counter not in sent or event.qos != stream.qos:
            verdict.phantoms += 1
            _note(verdict, f"{who} got {stream} {counter} at QoS {event.qos}")
        elif counter in first:
            verdict.duplicates[stream.qos][who] += 1
            _note(verdict, f"{who} got {stream} {counter} twice")
        else:
            first[counter] = event.at
            if counter < newest and stream.qos:
                verdict.inversions += 1
                _note(verdict, f"{who} got {stream} {counter} after {newest}")
            newest = max(newest, counter)
    return first


@dataclass(frozen=True, slots=True)
class _Fates:
    """What became of one stream at one subscriber."""

    sent: Mapping[int, float]
    answers: Mapping[int, Op]
    first: Mapping[int, float]


def _judge_stream(
    verdict: Verdict,
    name: tuple[str, Stream],
    fates: _Fates,
    forfeits: Sequence[tuple[float, float]],
) -> None:
    subscriber, stream = name
    for counter, at in fates.sent.items():
        answer = fates.answers.get(counter)
        if counter in fates.first:
            is_late = fates.first[counter] - at > LATE_S or answer is not Op.OK
            verdict.fates["recovered" if is_late else "ok"] += 1
        elif answer is not Op.OK:
            verdict.fates["refused" if answer is Op.REFUSED else "unknown"] += 1
        elif stream.qos == 0:
            verdict.fates["lost at QoS 0"] += 1
        elif any(since <= at <= until for since, until in forfeits):
            verdict.fates["forfeited"] += 1
        else:
            verdict.fates["lost"] += 1
            verdict.lost_at[subscriber] += 1
            verdict.lost_where[_where(counter, fates.first)] += 1
            _note(verdict, f"{subscriber} never got {stream} {counter}")


def _where(counter: int, first: Mapping[int, float]) -> str:
    if not first or counter > max(first):
        return "postfix"
    return "prefix" if counter < min(first) else "middle"


def _note(verdict: Verdict, text: str) -> None:
    if len(verdict.examples) < EXAMPLES_MAX:
        verdict.examples.append(text)
