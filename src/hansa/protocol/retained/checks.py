"""Which topics were written recently, and which of them are compared with the broker next.

A node assumes that its broker stores the last delivered or captured value. To detect a wrong
assumption soon, it reads a bounded sample of the recently written topics back from the broker:
every CHECK_S seconds at most SAMPLE_MAX topics with SAMPLE_BYTES_MAX bytes, the oldest writes
first, each write once. Without writes, nothing is read.

A restarted broker may have restored an older state, and a restarted agent does not know which of
its last writes arrived. So after each connection of the agent to its broker, all values of other
nodes are compared, in bounded steps.
"""

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass
from itertools import islice

CHECK_S = 10.0
"""Seconds between two samples."""

FORMER_S = 2 * CHECK_S
"""For how long after a write the broker may store a replaced value. Later, such a value is one that
a client has written again, unseen."""

SAMPLE_MAX = 200
"""Topics in one sample."""

SAMPLE_BYTES_MAX = 1 << 20
"""Payload bytes that a sample reads, or one value that is larger."""

FORMER_MAX = 8
"""Replaced values of one topic that are remembered."""

STEP_MAX = 1_000
"""Topics in one step of a full comparison; half as many after each listing that took too long, an
eighth more after each one of a whole step that did not."""

STEP_S = 1.0
"""Seconds between two steps of a full comparison."""

FULL_S = 10.0
"""Seconds from the end of a full comparison until the next may begin."""

RECENT = 10
"""After this many settling times a value has reached the broker, however slow the disks are."""


@dataclass(slots=True)
class Change:
    """The last write of one topic."""

    at: float
    qos: int
    size: int
    former: tuple[bytes, ...]
    """Digests of recently replaced values, oldest first. If the broker stores one of them, an older
    write has overtaken a newer one."""
    checked_at: float = math.inf
    """When it was put into a sample."""


class Checks:
    """Recent or unchecked writes of one node's topics."""

    def __init__(self, settle_s: float) -> None:
        """A write has reached the broker after `settle_s`."""
        self._settle_s = settle_s
        self._changes: dict[str, Change] = {}  # oldest first
        self.due = math.inf
        """When the next sample is due."""

    def record_write(
        self, topic: str, now: float, qos: int, size: int, replaced: bytes | None
    ) -> None:
        """A topic was written; `replaced` is the digest of its value before, None if unknown."""
        before = self._changes.pop(topic, None)
        former = before.former if before is not None and now < before.at + FORMER_S else ()
        if replaced is not None:
            former = (*former, replaced)[-FORMER_MAX:]
        self._changes[topic] = Change(now, qos, size, former)
        self.due = min(self.due, now + CHECK_S)

    def qos(self, topic: str) -> int:
        """Return the QoS of the last write of a topic that is not settled."""
        return self._changes[topic].qos

    def is_former(self, topic: str, digest: bytes, now: float) -> bool:
        """Whether a value was replaced recently."""
        change = self._changes.get(topic)
        return change is not None and digest in change.former and now < change.at + FORMER_S

    def is_settled(self, topic: str, now: float, times: float = 1) -> bool:
        """Whether the last write was at least so many settling times ago."""
        change = self._changes.get(topic)
        return change is None or now >= change.at + times * self._settle_s

    def recent(self, now: float) -> list[str]:
        """Return the topics that were written or checked recently, or are not checked yet."""
        return [topic for topic, change in self._changes.items() if self._is_current(change, now)]

    def _is_current(self, change: Change, now: float) -> bool:
        keep_s = RECENT * self._settle_s
        return now < change.at + keep_s or now < change.checked_at + keep_s

    def sample(self, now: float) -> list[str]:
        """Return the topics to compare now, if a sample is due."""
        if now < self.due:
            return []
        found: list[str] = []
        room = SAMPLE_BYTES_MAX
        self.due = math.inf
        for topic, change in self._changes.items():
            if change.checked_at != math.inf:
                continue
            is_full = len(found) == SAMPLE_MAX or (found and change.size > room)
            if is_full or now < change.at + self._settle_s:
                self.due = now + CHECK_S
                break
            found.append(topic)
            room -= change.size
            change.checked_at = now
        return found

    def forget_settled(self, now: float, known: Container[str]) -> None:
        """Forget writes that are neither recent nor unchecked."""
        self._changes = {
            topic: change
            for topic, change in self._changes.items()
            if now < change.at + RECENT * self._settle_s
            or (topic in known and self._is_current(change, now))
        }


class FullComparison:
    """Topics to compare, because the agent has connected to its broker or a listing took too
    long."""

    def __init__(self, settle_s: float) -> None:
        """A write has reached the broker after `settle_s`."""
        self._settle_s = settle_s
        self._topics: dict[str, None] = {}  # in this order
        self._step_max = STEP_MAX
        self._ended_at = -math.inf
        self.due = math.inf
        """When the next step is due."""

    def begin(self, topics: Iterable[str], now: float) -> None:
        """Compare all of these. Waiting topics keep their place: repeated interruptions cannot keep
        a topic from its turn."""
        self._topics.update(dict.fromkeys(topics))
        if self._topics and self.due == math.inf:
            self.due = max(now + self._settle_s, self._ended_at + FULL_S)

    def begin_smaller(self, topics: Iterable[str], now: float) -> None:
        """Compare these, which a listing found that took too long: in smaller steps than before, so
        that a slow broker can answer them in time."""
        self._step_max = max(1, self._step_max // 2)
        self.begin(topics, now)

    def end_in_time(self, topic_count: int) -> None:
        """So many topics were listed in time: if it was a whole step, the next may be larger."""
        if topic_count >= self._step_max:
            self._step_max = min(STEP_MAX, self._step_max + self._step_max // 8 + 1)

    def step(self, now: float) -> list[str]:
        """Return the topics to compare now, if a step is due."""
        if now < self.due:
            return []
        found = list(islice(self._topics, self._step_max))
        for topic in found:
            del self._topics[topic]
        self.due = now + STEP_S if self._topics else math.inf
        self._ended_at = now
        return found
