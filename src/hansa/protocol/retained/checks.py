"""Which topics were written lately, and which of them are to be compared with the broker next.

A node believes that its broker stores what was last delivered or captured. To find a wrong belief
soon, it reads a bounded sample of the topics that were written lately back from the broker: every
CHECK_S seconds at most SAMPLE_MAX topics with SAMPLE_BYTES_MAX bytes, those that were written
longest ago first, and each once per write. While nothing is written, nothing is read.

A broker that was restarted may have gone back to an older state, and an agent that was restarted
does not know which of its last writes arrived. So whenever the agent has connected to its broker,
all values of other nodes are compared, in bounded steps.
"""

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass
from itertools import islice

CHECK_S = 10.0
"""Seconds between two samples."""

FORMER_S = 2 * CHECK_S
"""For how long after a write the broker may store a value that was replaced. Later, such a value is
one that a client has written again, unseen."""

SAMPLE_MAX = 200
"""Topics in one sample."""

SAMPLE_BYTES_MAX = 1 << 20
"""Payload bytes that a sample reads, or one value that is larger."""

FORMER_MAX = 8
"""Values of one topic that are remembered after they were replaced."""

STEP_MAX = 1_000
"""Topics in one step of a full comparison."""

STEP_S = 1.0
"""Seconds between two steps of a full comparison."""

FULL_S = 10.0
"""Seconds from the end of a full comparison until the next may begin."""

RECENT = 10
"""After so many times the settling time a value has reached the broker, whatever disks do."""


@dataclass(slots=True)
class Change:
    """The last write of one topic."""

    at: float
    qos: int
    size: int
    former: tuple[bytes, ...]
    """Digests of the values that were replaced lately, oldest first. If the broker stores one of
    them, an older write has overtaken a newer one."""
    checked_at: float = math.inf
    """When it was put into a sample."""


class Checks:
    """The writes of one node's topics that are recent or not yet checked."""

    def __init__(self, settle_s: float) -> None:
        """A write has reached the broker after `settle_s`."""
        self._settle_s = settle_s
        self._changes: dict[str, Change] = {}  # the oldest first
        self.due = math.inf
        """When the next sample is to be taken."""

    def note(self, topic: str, now: float, qos: int, size: int, replaced: bytes | None) -> None:
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
        """Return whether a value was replaced lately."""
        change = self._changes.get(topic)
        return change is not None and digest in change.former and now < change.at + FORMER_S

    def is_settled(self, topic: str, now: float, times: float = 1) -> bool:
        """Return whether the last write was at least so many settling times ago."""
        change = self._changes.get(topic)
        return change is None or now >= change.at + times * self._settle_s

    def recent(self, now: float) -> list[str]:
        """Return the topics that were written or checked lately, or are not checked yet."""
        return [topic for topic, change in self._changes.items() if self._is_current(change, now)]

    def _is_current(self, change: Change, now: float) -> bool:
        keep_s = RECENT * self._settle_s
        return now < change.at + keep_s or now < change.checked_at + keep_s

    def sample(self, now: float) -> list[str]:
        """Return the topics to be compared now, if it is time for that."""
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

    def tidy(self, now: float, known: Container[str]) -> None:
        """Forget writes that are neither recent nor to be checked."""
        self._changes = {
            topic: change
            for topic, change in self._changes.items()
            if now < change.at + RECENT * self._settle_s
            or (topic in known and self._is_current(change, now))
        }


class FullComparison:
    """The topics that are still to be compared because the agent has connected to its broker."""

    def __init__(self, settle_s: float) -> None:
        """A write has reached the broker after `settle_s`."""
        self._settle_s = settle_s
        self._topics: dict[str, None] = {}  # in this order
        self._ended_at = -math.inf
        self.due = math.inf
        """When the next step is to be taken."""

    def begin(self, topics: Iterable[str], now: float) -> None:
        """Compare all of these. Those that already wait keep their place: connections that are
        interrupted again and again cannot keep any topic from its turn."""
        self._topics.update(dict.fromkeys(topics))
        if self._topics and self.due == math.inf:
            self.due = max(now + self._settle_s, self._ended_at + FULL_S)

    def step(self, now: float) -> list[str]:
        """Return the topics to be compared now, if it is time for that."""
        if now < self.due:
            return []
        found = list(islice(self._topics, STEP_MAX))
        for topic in found:
            del self._topics[topic]
        self.due = now + STEP_S if self._topics else math.inf
        self._ended_at = now
        return found
