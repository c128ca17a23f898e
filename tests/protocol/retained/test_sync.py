"""Anti-entropy of retained values, slice by slice."""

import math

import pytest

from hansa.protocol.model import NodeId
from hansa.protocol.retained import sync
from hansa.protocol.retained.digest import RetainedEntry, bucket_digests
from hansa.protocol.retained.sync import DIGEST_REPEATS_S, RetainedSync
from hansa.protocol.wire.frames import RETAINED_BUCKETS, RetainedDigests, RetainedVersions, Unicast

ME, YOU, OTHER = NodeId(1), NodeId(2), NodeId(3)
ALL = tuple(range(RETAINED_BUCKETS))


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "SLICE_TOPICS", 3)


def owned(count: int) -> dict[str, RetainedEntry]:
    """So many values of this node, in which all are interested, and one of another node."""
    values = {f"t/{number}": RetainedEntry(number + 1, ME, b"x") for number in range(count)}
    return {**values, "theirs": RetainedEntry(9, OTHER, b"x")}


def make_sync(count: int) -> RetainedSync:
    return RetainedSync(ME, owned(count), lambda topic: (YOU, OTHER))


def steps(made: RetainedSync) -> list[list[Unicast]]:
    """Frames of each step, until there are no more."""
    sent: list[list[Unicast]] = []
    while made.is_busy:
        sent.append(made.process_next_slice(0.0))
    return sent


@pytest.mark.parametrize(("count", "slices"), [(0, 1), (1, 1), (3, 1), (4, 2), (9, 3)])
def test_digest_is_sent_after_the_last_slice(count, slices):
    made = make_sync(count)
    made.schedule_digest(YOU, 0.0)
    made.schedule_digest(OTHER, 0.0)
    mine = owned(count)
    del mine["theirs"]
    digests = bucket_digests(mine)
    sent = [RetainedDigests(YOU, ME, digests), RetainedDigests(OTHER, ME, digests)]
    assert steps(made) == [*[[]] * (slices - 1), sent]


def test_versions_are_sent_slice_by_slice_to_interested_nodes():
    made = RetainedSync(ME, owned(5), lambda topic: () if topic == "t/1" else (YOU,))
    made.schedule_versions(YOU, ALL)
    assert steps(made) == [
        [RetainedVersions(YOU, ME, (("t/0", 1), ("t/2", 3)))],
        [RetainedVersions(YOU, ME, (("t/3", 4), ("t/4", 5)))],
    ]


def test_requests_come_before_digests_and_are_answered_in_order():
    made = make_sync(4)
    made.schedule_digest(YOU, 0.0)
    made.schedule_versions(OTHER, ALL[:1])
    made.schedule_versions(YOU, ALL)
    made.schedule_versions(OTHER, ALL[1:])
    sent = steps(made)
    assert [[type(frame) for frame in step] for step in sent] == [
        [RetainedVersions],
        [RetainedVersions],
        [RetainedVersions],
        [RetainedVersions],
        [],
        [RetainedDigests],
    ]
    assert [frame.destination for step in sent for frame in step] == [OTHER, OTHER, YOU, YOU, YOU]


def test_only_topics_of_the_requested_buckets_are_listed():
    made = make_sync(40)
    made.schedule_versions(YOU, ALL[:8])
    listed = [topic for step in steps(made) for frame in step for topic, _ in frame.entries]  # type: ignore[union-attr]
    assert 0 < len(listed) < 40


def test_without_values_nothing_is_sent():
    assert steps(make_sync(2)) == []
    assert make_sync(2).process_next_slice(0.0) == []


def test_digest_is_repeated_a_fixed_number_of_times():
    made = make_sync(1)
    made.schedule_digest(YOU, 100.0)
    steps(made)
    sent: list[float] = []
    while made.next_due < math.inf:
        now = made.next_due
        sent += [
            now for frame in made.process_next_slice(now) if isinstance(frame, RetainedDigests)
        ]
    assert sent == [100.0 + after for after in DIGEST_REPEATS_S]


def test_node_that_got_a_new_value_gets_a_digest_once_later():
    made = make_sync(1)
    made.schedule_digest_later(YOU, 100.0)
    made.schedule_digest_later(YOU, 101.0)
    assert (made.next_due, made.is_busy) == (100.0 + DIGEST_REPEATS_S[0], False)
    assert [type(frame) for frame in made.process_next_slice(made.next_due)] == [RetainedDigests]
    assert made.next_due == math.inf


def test_former_owner_is_informed_of_the_newer_value():
    made = make_sync(0)
    made.schedule_correction(YOU, OTHER, "a", 5)
    made.schedule_correction(YOU, OTHER, "b", 6)
    assert made.is_busy
    assert made.process_next_slice(0.0) == [RetainedVersions(YOU, OTHER, (("a", 5), ("b", 6)))]
    assert not made.is_busy
