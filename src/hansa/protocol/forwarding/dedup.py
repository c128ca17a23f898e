"""Duplicate filter: the newest sequence numbers of each origin. No copy is handled twice."""

from array import array
from collections.abc import Mapping

from hansa.protocol.clock import AHEAD, EPOCH_AHEAD, WallClock
from hansa.protocol.membership.records import NodeRecord
from hansa.protocol.model import GroupId, NodeId, Publication

EPOCHS_MAX = 2
"""Epochs of one origin that are remembered: the present one and the one before."""

UNKNOWN_ORIGINS_MAX = 16
"""Origins without a record whose publications are accepted: publications of a new node may overtake
its record, which waits a moment to share a frame."""

_NO_SLOTS = array("Q")


class SequenceWindow:
    """The newest sequence numbers of one epoch of one origin: exact for the last `size`.

    A slot holds the last number seen there, so a number is new if its slot holds a smaller one. A
    copy that is more than `size` numbers late counts as a duplicate.
    """

    __slots__ = ("_mask", "_further_groups", "_slots", "_core_slots", "_core_slot_groups")

    def __init__(self, size: int) -> None:
        """`size` is a power of two."""
        self._mask = size - 1
        self._slots = array("Q", bytes(8 * size))
        self._core_slots = _NO_SLOTS  # numbers sent towards a core, and the first group of each
        self._core_slot_groups = _NO_SLOTS
        self._further_groups: dict[
            int, list[GroupId]
        ] = {}  # further groups, where there are several

    def add(self, number: int) -> bool:
        """Add a number, counted from 1; return whether it is new."""
        slot = number & self._mask
        if self._slots[slot] >= number:
            return False
        self._slots[slot] = number
        return True

    def add_with_groups(self, number: int, groups: tuple[GroupId, ...]) -> bool:
        """Do `add` and, if the number is new, `mark_sent_towards` for each group; there is at least
        one. Groups of an earlier number in the same slot are discarded."""
        slot = number & self._mask
        if self._slots[slot] >= number:
            return False
        self._slots[slot] = number
        if not self._core_slots:
            self._allocate()
        self._core_slots[slot] = number
        self._core_slot_groups[slot] = groups[0]
        if self._further_groups:
            self._further_groups.pop(slot, None)
        for group in groups[1:]:
            self.mark_sent_towards(number, group)
        return True

    def _allocate(self) -> None:
        self._core_slots = array("Q", bytes(8 * len(self._slots)))
        self._core_slot_groups = array("Q", bytes(8 * len(self._slots)))

    def mark_sent_towards(self, number: int, group: GroupId) -> bool:
        """Note that a publication was sent towards a group's core; return whether that is new."""
        if not self._core_slots:
            self._allocate()
        slot = number & self._mask
        held = self._core_slots[slot]
        if held < number:
            self._core_slots[slot] = number
            self._core_slot_groups[slot] = group
            self._further_groups.pop(slot, None)
            return True
        if held > number or self._core_slot_groups[slot] == group:
            return False
        more = self._further_groups.setdefault(slot, [])
        if group in more:
            return False
        more.append(group)
        return True


class DuplicateFilter:
    """The windows of all known origins and of a few unknown ones."""

    def __init__(self, size: int, known: Mapping[NodeId, NodeRecord], clock: WallClock) -> None:
        self._size = size
        self._known = known
        self._clock = clock
        self._unknown_origins: list[NodeId] = []
        self._windows: dict[tuple[NodeId, bool], dict[int, SequenceWindow]] = {}

    def __len__(self) -> int:
        """Return the number of windows."""
        return sum(map(len, self._windows.values()))

    def window_for(self, origin: NodeId, epoch: int, is_guaranteed: bool) -> SequenceWindow | None:
        """Return the window of one epoch of an origin; None if the epoch is too old, or the origin
        unknown and without room (see `admit_origin`)."""
        by_epoch = self._windows.get((origin, is_guaranteed))
        if by_epoch is None:
            if not self.admit_origin(origin):
                return None
            by_epoch = self._windows[origin, is_guaranteed] = {}
        window = by_epoch.get(epoch)
        if window is not None:
            return window
        if len(by_epoch) == EPOCHS_MAX:
            record = None if is_guaranteed else self._known.get(origin)
            if not _make_room(by_epoch, epoch, record.incarnation if record else None):
                return None
        window = by_epoch[epoch] = SequenceWindow(self._size)
        return window

    def sequence_max(self, epoch: int) -> int:
        """Return the greatest sequence number of an epoch; -1 if the epoch is ahead of the
        clock."""
        return self._clock.numbers_max(epoch) if epoch <= self._clock.limit_ms else -1

    def number_refusal(self, publication: Publication) -> str | None:
        """Return why the epoch or sequence number of a publication is impossible, None if it is
        not."""
        if publication.epoch > self._clock.limit_ms:
            return EPOCH_AHEAD if publication.qos else AHEAD
        is_too_high = publication.sequence > self.sequence_max(publication.epoch)
        return "publication number out of bounds" if is_too_high else None

    def admit_origin(self, origin: NodeId) -> bool:
        """Whether publications of this origin are accepted: of unknown origins only while there is
        room."""
        if origin in self._known or origin in self._unknown_origins:
            return True
        self._unknown_origins = [node for node in self._unknown_origins if node not in self._known]
        if len(self._unknown_origins) >= UNKNOWN_ORIGINS_MAX:
            return False
        self._unknown_origins.append(origin)
        return True

    def expire_node(self, origin: NodeId) -> None:
        """A node's lease has ended."""
        for is_guaranteed in (False, True):
            self._windows.pop((origin, is_guaranteed), None)


def _make_room(windows: dict[int, SequenceWindow], epoch: int, present: int | None) -> bool:
    """Drop the oldest epoch for a newer one. The epoch in the origin's record always has a window:
    two forged epochs of the future must not replace it."""
    if epoch == present:
        del windows[max(windows) if min(windows) > epoch else min(windows)]
        return True
    oldest = min(each for each in windows if each != present)
    if epoch < oldest:
        return False
    del windows[oldest]
    return True
