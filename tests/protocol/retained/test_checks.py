"""Which writes are compared with the broker, and which values count as replaced."""

import math

from hansa.protocol.retained.checks import (
    CHECK_S,
    FORMER_MAX,
    FORMER_S,
    FULL_S,
    RECENT,
    SAMPLE_BYTES_MAX,
    SAMPLE_MAX,
    STEP_MAX,
    STEP_S,
    Checks,
    FullComparison,
)

SETTLE_S = 1.0


def test_sample_holds_settled_writes_the_oldest_first():
    checks = Checks(SETTLE_S)
    assert checks.due == math.inf
    checks.record_write("a", 0.0, 1, 1, None)
    checks.record_write("b", 1.0, 1, 1, None)
    checks.record_write("a", 2.0, 1, 1, b"1")
    checks.record_write("c", CHECK_S - 0.5, 1, 1, None)
    assert checks.due == CHECK_S
    assert checks.sample(CHECK_S - 0.1) == []
    assert checks.sample(CHECK_S) == ["b", "a"]
    assert checks.due == 2 * CHECK_S
    assert checks.sample(2 * CHECK_S) == ["c"]
    assert checks.due == math.inf


def test_sample_is_bounded_in_topics_and_bytes():
    checks = Checks(SETTLE_S)
    for topic, size in (("large", 2 * SAMPLE_BYTES_MAX), ("half", SAMPLE_BYTES_MAX), ("a", 1)):
        checks.record_write(topic, 0.0, 0, size, None)
    for number in range(SAMPLE_MAX):
        checks.record_write(f"{number}", 0.0, 0, 0, None)
    samples = [checks.sample((n + 1) * CHECK_S) for n in range(4)]
    assert samples[:2] == [["large"], ["half"]]
    assert [len(each) for each in samples[2:]] == [SAMPLE_MAX, 1]


def test_replaced_values_are_remembered_for_a_while():
    checks = Checks(SETTLE_S)
    for number in range(FORMER_MAX + 1):
        checks.record_write("a", 0.0, 1, 1, b"%d" % number)
    assert not checks.is_former("a", b"0", 1.0)
    assert checks.is_former("a", b"1", 1.0)
    assert not checks.is_former("a", b"1", FORMER_S)
    assert not checks.is_former("b", b"1", 1.0)
    checks.record_write("a", FORMER_S, 1, 1, b"last")
    assert not checks.is_former("a", b"1", FORMER_S)
    assert checks.is_former("a", b"last", FORMER_S)


def test_writes_are_forgotten_when_they_are_old_and_checked_or_unknown():
    checks = Checks(SETTLE_S)
    checks.record_write("a", 0.0, 2, 1, None)
    checks.record_write("gone", 0.0, 2, 1, None)
    checks.forget_settled(CHECK_S, {"a"})
    assert checks.sample(CHECK_S) == ["a"]
    assert checks.qos("a") == 2
    assert not checks.is_settled("a", 1.0, 2)
    checks.forget_settled(CHECK_S + RECENT * SETTLE_S, {"a"})
    assert checks.is_settled("a", 0.0)


def test_full_comparison_reads_in_bounded_steps():
    full = FullComparison(SETTLE_S)
    topics = [f"{n}" for n in range(STEP_MAX + 1)]
    full.begin(topics, 0.0)
    assert full.due == SETTLE_S
    assert full.step(0.0) == []
    assert full.step(SETTLE_S) == topics[:STEP_MAX]
    assert full.due == SETTLE_S + STEP_S
    assert full.step(full.due) == topics[STEP_MAX:]
    assert full.due == math.inf


def test_full_comparison_is_not_begun_again_at_once():
    """A connection that is interrupted every second does not cause a reading per second."""
    full = FullComparison(SETTLE_S)
    full.begin([], 0.0)
    assert full.due == math.inf
    full.begin(["a"], 0.0)
    assert full.step(SETTLE_S) == ["a"]
    full.begin(["a"], 2.0)
    full.begin(["a", "b"], 3.0)
    assert full.due == SETTLE_S + FULL_S
    assert full.step(full.due) == ["a", "b"]


def test_full_comparison_that_is_begun_again_keeps_the_places_of_topics_that_wait():
    full = FullComparison(SETTLE_S)
    topics = [f"{n}" for n in range(STEP_MAX + 1)]
    full.begin(topics, 0.0)
    full.step(SETTLE_S)
    full.begin(topics, SETTLE_S)
    assert full.step(SETTLE_S + STEP_S) == [topics[-1], *topics[: STEP_MAX - 1]]


def test_full_comparison_of_a_slow_broker_takes_smaller_steps():
    full = FullComparison(SETTLE_S)
    topics = [f"{n}" for n in range(STEP_MAX)]
    full.begin_smaller(topics, 0.0)
    assert full.step(SETTLE_S) == topics[: STEP_MAX // 2]
    for _ in range(STEP_MAX):
        full.begin_smaller(topics, SETTLE_S)
    assert full.step(SETTLE_S + STEP_S) == topics[STEP_MAX // 2 :][:1]


def test_steps_of_a_full_comparison_grow_again_if_the_broker_answers_in_time():
    full = FullComparison(SETTLE_S)
    topics = [f"{n}" for n in range(STEP_MAX)]
    full.begin_smaller(topics, 0.0)
    full.end_in_time(STEP_MAX // 2 - 1)  # not a whole step
    now = SETTLE_S
    sizes = [len(full.step(now))]
    for _ in range(7):
        full.end_in_time(sizes[-1])
        full.begin(topics, now)
        now = full.due
        sizes.append(len(full.step(now)))
    assert sizes == [500, 563, 634, 714, 804, 905, STEP_MAX, STEP_MAX]
