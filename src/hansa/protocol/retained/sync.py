"""What an owner of retained values tells the nodes that want them: digests, and which there are.

A node may own very many. They are gone through in slices, so that links are served in between: who
waits for the answer waits a little longer, and nobody takes the node for dead meanwhile.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from hansa.protocol.deadlines import Timetable
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.retained.digest import Value, bucket, term
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import BUCKETS, Holdings, Letter, Listing, Values

SLICE = 2_000
"""Topics that are looked at in one go."""

LISTED_MAX = 1_000
"""Topics in one listing."""

OFFERS_S = (5.0, 30.0, 120.0)
"""When a node is told once more what there is: nobody misses a letter that was lost."""

_Slice = tuple[list[tuple[str, Value]], bool]
"""Some topics with their values, and whether they are the last."""

_Step = tuple[list[Letter], bool]
"""What to send after a slice, and whether it was the last."""


def listings(to: NodeId, owner: NodeId, entries: list[tuple[str, int]]) -> list[Letter]:
    """Return the letters that tell a node these versions of an owner's values."""
    return [
        Listing(to, owner, tuple(entries[at : at + LISTED_MAX]))
        for at in range(0, len(entries), LISTED_MAX)
    ]


def parcels(
    to: NodeId, owner: NodeId, publications: list[Publication], bytes_max: int
) -> list[Letter]:
    """Return letters with these values, each with as many as fit, but at least one."""
    letters: list[Letter] = []
    batch: list[bytes] = []
    room = bytes_max
    for data in map(encode, publications):
        if batch and len(data) > room:
            letters.append(Values(to, owner, tuple(batch)))
            batch, room = [], bytes_max
        batch.append(data)
        room -= len(data)
    return [*letters, Values(to, owner, tuple(batch))] if batch else letters


class Teller:
    """Answers one question after the other."""

    def __init__(
        self,
        node: NodeId,
        values: Mapping[str, Value],
        receivers: Callable[[str], tuple[NodeId, ...]],
    ) -> None:
        """Tell of these values, which change all the time; `receivers` want a topic."""
        self._node = node
        self._values = values
        self._receivers = receivers
        self._offered: dict[NodeId, None] = {}
        self._repeats: Timetable[tuple[NodeId, float]] = Timetable()
        self._corrections: dict[tuple[NodeId, NodeId], list[tuple[str, int]]] = {}
        self._asked: dict[NodeId, set[int]] = {}
        self._work: Iterator[_Step] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether there is something left to tell."""
        return bool(self._work or self._asked or self._offered or self._corrections)

    @property
    def due(self) -> float:
        """When there is something to tell once more."""
        return self._repeats.due

    def offer(self, node: NodeId, now: float) -> None:
        """Tell a node, in its turn, a digest of what is owned here and wanted there; and again."""
        self._offered[node] = None
        for after in OFFERS_S:
            self._repeats.put((node, after), now + after)

    def offer_later(self, node: NodeId, now: float) -> None:
        """Tell a node a digest some time after it was told what is new."""
        key = (node, OFFERS_S[0])
        if key not in self._repeats:
            self._repeats.put(key, now + OFFERS_S[0])

    def correct(self, former: NodeId, owner: NodeId, topic: str, version: int) -> None:
        """Tell a former owner that another node's value is newer: it will ask for it, and its
        broker hold the same as all."""
        self._corrections.setdefault((former, owner), []).append((topic, version))

    def ask(self, node: NodeId, buckets: tuple[int, ...]) -> None:
        """Tell a node, in its turn, which versions there are in some buckets."""
        self._asked.setdefault(node, set()).update(buckets)

    def proceed(self, now: float) -> list[Letter]:
        """Look at the next slice; return what is to be sent."""
        for node, _ in self._repeats.take(now):
            self._offered[node] = None
        corrections, self._corrections = self._corrections, {}
        letters = [
            letter
            for (former, owner), entries in corrections.items()
            for letter in listings(former, owner, entries)
        ]
        if not self.is_busy:
            return letters
        if self._work is None:
            self._work = self._next_work()
        more, is_done = next(self._work, ([], True))
        if is_done:
            self._work = None
        return letters + more

    def _next_work(self) -> Iterator[_Step]:
        if self._asked:
            node = next(iter(self._asked))
            return self._listing(node, self._asked.pop(node))
        offered, self._offered = self._offered, {}
        return self._digests({node: [0] * BUCKETS for node in offered})

    def _listing(self, node: NodeId, buckets: set[int]) -> Iterator[_Step]:
        def step(part: _Slice) -> _Step:
            slice_, is_last = part
            entries = [
                (topic, value.version)
                for topic, value in slice_
                if bucket(topic) in buckets and node in self._receivers(topic)
            ]
            return listings(node, self._node, entries), is_last

        return map(step, self._slices())

    def _digests(self, digests: dict[NodeId, list[int]]) -> Iterator[_Step]:
        for slice_, is_last in self._slices():
            for topic, value in slice_:
                for node in self._receivers(topic):
                    if node in digests:
                        digests[node][bucket(topic)] ^= term(topic, value)
            if not is_last:
                yield [], False
        yield [Holdings(node, self._node, tuple(found)) for node, found in digests.items()], True

    def _slices(self) -> Iterator[_Slice]:
        """Yield what this node owned when it was asked, and whether that is the end of it."""
        owned = iter([item for item in self._values.items() if item[1].owner == self._node])
        slice_ = list(islice(owned, SLICE))
        while following := list(islice(owned, SLICE)):
            yield slice_, False
            slice_ = following
        yield slice_, True
