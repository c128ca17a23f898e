"""What an owner of retained values tells the nodes that want them: digests, and which there are.

A node may own very many. They are gone through in slices, so that links are served in between: who
waits for the answer waits a little longer, and nobody takes the node for dead meanwhile.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from hansa.protocol.frames import BUCKETS, Holdings, Letter, Listing
from hansa.protocol.values import Value, bucket, term
from hansa.protocol.vocabulary import NodeId

SLICE = 2_000
"""Topics that are looked at in one go."""

LISTED_MAX = 1_000
"""Topics in one listing."""

_Slice = tuple[list[tuple[str, Value]], bool]
"""Some topics with their values, and whether they are the last."""

_Step = tuple[list[Letter], bool]
"""What to send after a slice, and whether it was the last."""


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
        self._asked: dict[NodeId, set[int]] = {}
        self._work: Iterator[_Step] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether there is something left to tell."""
        return bool(self._work or self._asked or self._offered)

    def offer(self, node: NodeId) -> None:
        """Tell a node, in its turn, a digest of what is owned here and wanted there."""
        self._offered[node] = None

    def ask(self, node: NodeId, buckets: tuple[int, ...]) -> None:
        """Tell a node, in its turn, which versions there are in some buckets."""
        self._asked.setdefault(node, set()).update(buckets)

    def proceed(self) -> list[Letter]:
        """Look at the next slice; return what is to be sent."""
        if self._work is None:
            self._work = self._next_work()
        letters, is_done = next(self._work, ([], True))
        if is_done:
            self._work = None
        return letters

    def listings(self, node: NodeId, entries: list[tuple[str, int]]) -> list[Letter]:
        """Return the letters that tell a node these versions."""
        return [
            Listing(node, self._node, tuple(entries[at : at + LISTED_MAX]))
            for at in range(0, len(entries), LISTED_MAX)
        ]

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
            return self.listings(node, entries), is_last

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
