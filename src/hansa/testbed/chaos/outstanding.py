"""What is still missing, kept up to date as events come in: the verdict is for the end.

An acknowledged publication of QoS 1 or 2 is missing at a subscriber until it has come there.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from hansa.testbed.chaos.history import Event, Op, Stream


class Account:
    """Keeps a history, and knows what it lacks."""

    def __init__(self, subscribers: Mapping[str, Iterable[str]]) -> None:
        """Each subscriber is to get the streams of these topics."""
        self.history: list[Event] = []
        self.missing = 0
        self._topics = {name: frozenset(topics) for name, topics in subscribers.items()}
        self._acknowledged: defaultdict[Stream, set[int]] = defaultdict(set)
        self._arrived: defaultdict[tuple[str, Stream], set[int]] = defaultdict(set)

    def note(self, event: Event) -> None:
        """Add an event."""
        self.history.append(event)
        stream, counter = event.stream, event.counter
        if not stream.qos:
            return
        if event.op is Op.OK and counter not in self._acknowledged[stream]:
            self._acknowledged[stream].add(counter)
            for name, topics in self._topics.items():
                if stream.topic in topics and counter not in self._arrived[name, stream]:
                    self.missing += 1
        elif event.op is Op.DELIVER and stream.topic in self._topics[event.subscriber]:
            arrived = self._arrived[event.subscriber, stream]
            if counter in self._acknowledged[stream] and counter not in arrived:
                self.missing -= 1
            arrived.add(counter)
