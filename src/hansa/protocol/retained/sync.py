"""Anti-entropy of retained values: an owner sends digests and versions to interested nodes.

A node may own very many values. They are processed in slices, so that links are served in between
and neighbours do not take the node for dead.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from hansa.protocol.deadlines import DeadlineTable
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.retained.digest import RetainedEntry, bucket_of, bucket_term
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import (
    RETAINED_BUCKETS,
    RetainedDigests,
    RetainedValuesFrame,
    RetainedVersions,
    Unicast,
)

SLICE_TOPICS = 2_000
"""Topics processed at a time."""

VERSIONS_PER_FRAME_MAX = 1_000
"""Topics in one `RetainedVersions` frame."""

TOPIC_BYTES_PER_FRAME_MAX = 1 << 18
"""Bytes of the topics in one frame, or one topic that is longer: a topic may have 65,535 bytes, and
control frames have a bound."""

DIGEST_REPEATS_S = (5.0, 30.0, 120.0)
"""Seconds after which digests are sent again: a lost frame would not be noticed."""

_Slice = tuple[list[tuple[str, RetainedEntry]], bool]
"""Some topics with their values, and whether they are the last."""

_Step = tuple[list[Unicast], bool]
"""Frames to send after a slice, and whether it was the last."""


def version_frames(to: NodeId, owner: NodeId, entries: list[tuple[str, int]]) -> list[Unicast]:
    """Return the frames with these versions of an owner's values."""
    parts = split_topics(entries, VERSIONS_PER_FRAME_MAX)
    return [RetainedVersions(to, owner, part) for part in parts]


def split_topics(
    entries: list[tuple[str, int]], count_max: int
) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield topics with their versions in parts that each fit a frame."""
    part: list[tuple[str, int]] = []
    room = TOPIC_BYTES_PER_FRAME_MAX
    for entry in entries:
        size = len(entry[0].encode())
        if part and (len(part) == count_max or size > room):
            yield tuple(part)
            part, room = [], TOPIC_BYTES_PER_FRAME_MAX
        part.append(entry)
        room -= size
    if part:
        yield tuple(part)


def value_frames(
    to: NodeId, owner: NodeId, publications: list[Publication], bytes_max: int
) -> list[Unicast]:
    """Return frames with these values, each with as many as fit, but at least one."""
    frames: list[Unicast] = []
    batch: list[bytes] = []
    room = bytes_max
    for data in map(encode, publications):
        if batch and len(data) > room:
            frames.append(RetainedValuesFrame(to, owner, tuple(batch)))
            batch, room = [], bytes_max
        batch.append(data)
        room -= len(data)
    return [*frames, RetainedValuesFrame(to, owner, tuple(batch))] if batch else frames


class RetainedSync:
    """Processes one request after the other."""

    def __init__(
        self,
        node: NodeId,
        values: Mapping[str, RetainedEntry],
        receivers: Callable[[str], tuple[NodeId, ...]],
    ) -> None:
        """`values` are live; `receivers` returns the nodes interested in a topic."""
        self._node = node
        self._entries = values
        self._receivers = receivers
        self.has_owned = any(value.owner == node for value in values.values())
        """Whether this node has owned a value since it started."""
        self._digest_receivers: dict[NodeId, None] = {}
        self._digest_repeats: DeadlineTable[tuple[NodeId, float]] = DeadlineTable()
        self._corrections: dict[tuple[NodeId, NodeId], list[tuple[str, int]]] = {}
        self._requested_buckets: dict[NodeId, set[int]] = {}
        self._current_job: Iterator[_Step] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether there is something left to send."""
        return bool(
            self._current_job
            or self._requested_buckets
            or self._digest_receivers
            or self._corrections
        )

    @property
    def next_due(self) -> float:
        """When a repeated digest is due."""
        return self._digest_repeats.next_due

    def schedule_digest(self, node: NodeId, now: float) -> None:
        """Send a node the digests of the values that are owned here and of its interest; and again
        later."""
        self._digest_receivers[node] = None
        for after in DIGEST_REPEATS_S:
            self._digest_repeats.schedule((node, after), now + after)

    def schedule_digest_later(self, node: NodeId, now: float) -> None:
        """Send a node digests some time after it was sent a new value."""
        key = (node, DIGEST_REPEATS_S[0])
        if key not in self._digest_repeats:
            self._digest_repeats.schedule(key, now + DIGEST_REPEATS_S[0])

    def schedule_correction(self, former: NodeId, owner: NodeId, topic: str, version: int) -> None:
        """Inform a former owner that another node's value is newer: it will request it, so that its
        broker gets the same value."""
        self._corrections.setdefault((former, owner), []).append((topic, version))

    def schedule_versions(self, node: NodeId, buckets: tuple[int, ...]) -> None:
        self._requested_buckets.setdefault(node, set()).update(buckets)

    def process_next_slice(self, now: float) -> list[Unicast]:
        for node, _ in self._digest_repeats.pop_due(now):
            self._digest_receivers[node] = None
        corrections, self._corrections = self._corrections, {}
        frames = [
            frame
            for (former, owner), entries in corrections.items()
            for frame in version_frames(former, owner, entries)
        ]
        if not self.is_busy:
            return frames
        if self._current_job is None:
            self._current_job = self._start_next_job()
        more, is_done = next(self._current_job, ([], True))
        if is_done:
            self._current_job = None
        return frames + more

    def _start_next_job(self) -> Iterator[_Step]:
        if self._requested_buckets:
            node = next(iter(self._requested_buckets))
            return self._list_versions(node, self._requested_buckets.pop(node))
        offered, self._digest_receivers = self._digest_receivers, {}
        return self._compute_digests({node: [0] * RETAINED_BUCKETS for node in offered})

    def _list_versions(self, node: NodeId, buckets: set[int]) -> Iterator[_Step]:
        def step(part: _Slice) -> _Step:
            slice_, is_last = part
            entries = [
                (topic, value.version)
                for topic, value in slice_
                if bucket_of(topic) in buckets and node in self._receivers(topic)
            ]
            return version_frames(node, self._node, entries), is_last

        return map(step, self._slices())

    def _compute_digests(self, digests: dict[NodeId, list[int]]) -> Iterator[_Step]:
        for slice_, is_last in self._slices():
            for topic, value in slice_:
                for node in self._receivers(topic):
                    if node in digests:
                        digests[node][bucket_of(topic)] ^= bucket_term(topic, value)
            if not is_last:
                yield [], False
        yield (
            [RetainedDigests(node, self._node, tuple(found)) for node, found in digests.items()],
            True,
        )

    def _slices(self) -> Iterator[_Slice]:
        """Yield the values that this node owned at the start, and whether they are the last."""
        owned = iter([item for item in self._entries.items() if item[1].owner == self._node])
        slice_ = list(islice(owned, SLICE_TOPICS))
        while following := list(islice(owned, SLICE_TOPICS)):
            yield slice_, False
            slice_ = following
        yield slice_, True
