"""What is still missing, kept up to date as events come in: the verdict is for the end.

An acknowledged publication of QoS 1 or 2 is missing at a subscriber until it has come there.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from hansa.testbed.chaos.history import HistoryEvent, HistoryOperation, PublisherStream


class OutstandingDeliveries:
    """Keeps a history, and knows what it lacks."""

    def __init__(self, subscribers: Mapping[str, Iterable[str]]) -> None:
        """Each subscriber is to get the streams of these topics."""
        self.history: list[HistoryEvent] = []
        self.missing_count = 0
        self._topics = {name: frozenset(topics) for name, topics in subscribers.items()}
        self._acknowledged: defaultdict[PublisherStream, set[int]] = defaultdict(set)
        self._arrived: defaultdict[tuple[str, PublisherStream], set[int]] = defaultdict(set)

    def add_event(self, event: HistoryEvent) -> None:
        """Add an event."""
        self.history.append(event)
        stream, counter = event.stream, event.counter
        if not stream.qos:
            return
        if event.op is HistoryOperation.OK and counter not in self._acknowledged[stream]:
            self._acknowledged[stream].add(counter)
            for name, topics in self._topics.items():
                if stream.topic in topics and counter not in self._arrived[name, stream]:
                    self.missing_count += 1
        elif (
            event.op is HistoryOperation.DELIVER and stream.topic in self._topics[event.subscriber]
        ):
            arrived = self._arrived[event.subscriber, stream]
            if counter in self._acknowledged[stream] and counter not in arrived:
                self.missing_count -= 1
            arrived.add(counter)
