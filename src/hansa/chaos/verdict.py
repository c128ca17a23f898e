"""Was the promise kept? A pure judgement over a history.

An acknowledged publication that a subscriber got is *ok*, or *recovered* if it came late; one that
it did not get is *lost*. One that was not acknowledged is *unknown* if it did not come (its broker
may never have had it) and recovered if it did. What is lost is told apart by where: at the start
of a stream, in its middle, or at its end.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hansa.chaos.history import Event, Op, Stream

LATE_S = 2.0
"""Seconds after which an arrival counts as recovered: it came by repair, not by the usual way."""


@dataclass(slots=True)
class Verdict:
    """What became of all publications at all subscribers."""

    published: int = 0
    acknowledged: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    """Pairs of publication and subscriber: ok, recovered, unknown, lost."""
    lost_where: Counter[str] = field(default_factory=Counter)
    """Of the lost ones: prefix, middle, postfix."""
    lost_at: Counter[str] = field(default_factory=Counter)
    """Of the lost ones: per subscriber."""
    duplicates: Counter[int] = field(default_factory=Counter)
    """Second and further arrivals, by QoS."""
    inversions: int = 0
    """First arrivals after a later one of the same stream; at QoS 0 a new way may overtake."""
    phantoms: int = 0
    """Arrivals of what nobody published, or with another QoS."""
    examples: list[str] = field(default_factory=list)
    """A few of what went wrong, in words."""

    def broken(self, duplicates_allowed: int = 0) -> list[str]:
        """Return which promises were broken; none if the promise was kept. At QoS 1 a crash may
        cost so many duplicates."""
        found = {
            f"{self.fates['lost']} lost": self.fates["lost"],
            f"{self.duplicates[2]} twice at QoS 2": self.duplicates[2],
            f"{self.duplicates[1]} twice at QoS 1": self.duplicates[1] > duplicates_allowed,
            f"{self.inversions} out of order": self.inversions,
            f"{self.phantoms} that nobody published": self.phantoms,
        }
        return [text for text, is_broken in found.items() if is_broken]


EXAMPLES_MAX = 10


def judge(events: Iterable[Event], subscribers: Mapping[str, Iterable[str]]) -> Verdict:
    """Judge a history; `subscribers` got the streams of these topics, from start to end."""
    verdict = Verdict()
    published: dict[Stream, dict[int, float]] = {}
    acknowledged: dict[Stream, set[int]] = {}
    arrivals: dict[tuple[str, Stream], list[Event]] = {}
    for event in sorted(events, key=lambda each: each.at):
        if event.op is Op.INVOKE:
            published.setdefault(event.stream, {})[event.counter] = event.at
        elif event.op is Op.OK:
            acknowledged.setdefault(event.stream, set()).add(event.counter)
        else:
            arrivals.setdefault((event.subscriber, event.stream), []).append(event)
    verdict.published = sum(map(len, published.values()))
    verdict.acknowledged = sum(map(len, acknowledged.values()))
    for subscriber, topics in subscribers.items():
        wanted = set(topics)
        for stream, sent in published.items():
            if stream.topic in wanted:
                came = arrivals.pop((subscriber, stream), [])
                _judge_stream(verdict, subscriber, stream, sent, came, acknowledged)
    for (subscriber, stream), strays in arrivals.items():
        verdict.phantoms += len(strays)
        _note(verdict, f"{subscriber} got {stream} without wanting it")
    return verdict


def _judge_stream(
    verdict: Verdict,
    subscriber: str,
    stream: Stream,
    sent: Mapping[int, float],
    came: list[Event],
    acknowledged: Mapping[Stream, set[int]],
) -> None:
    first: dict[int, float] = {}
    newest = -1
    for event in came:
        if event.counter not in sent or event.qos != stream.qos:
            verdict.phantoms += 1
            _note(verdict, f"{subscriber} got {stream} {event.counter} at QoS {event.qos}")
        elif event.counter in first:
            verdict.duplicates[stream.qos] += 1
            _note(verdict, f"{subscriber} got {stream} {event.counter} twice")
        else:
            first[event.counter] = event.at
            if event.counter < newest and stream.qos:
                verdict.inversions += 1
                _note(verdict, f"{subscriber} got {stream} {event.counter} after {newest}")
            newest = max(newest, event.counter)
    sure = acknowledged.get(stream, set())
    for counter, at in sent.items():
        if counter in first:
            is_late = first[counter] - at > LATE_S or counter not in sure
            verdict.fates["recovered" if is_late else "ok"] += 1
        elif counter not in sure:
            verdict.fates["unknown"] += 1
        elif stream.qos == 0:
            verdict.fates["lost at QoS 0"] += 1
        else:
            verdict.fates["lost"] += 1
            verdict.lost_at[subscriber] += 1
            verdict.lost_where[_where(counter, first)] += 1
            _note(verdict, f"{subscriber} never got {stream} {counter}")


def _where(counter: int, first: Mapping[int, float]) -> str:
    if not first or counter > max(first):
        return "postfix"
    return "prefix" if counter < min(first) else "middle"


def _note(verdict: Verdict, text: str) -> None:
    if len(verdict.examples) < EXAMPLES_MAX:
        verdict.examples.append(text)
