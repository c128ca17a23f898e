"""Token buckets: bursts, and the rate after them."""

from hypothesis import given
from hypothesis import strategies as st

from hansa.agent.token_bucket import TokenBucket

BURST_S = 10.0


def test_burst_passes_and_then_the_rate_counts():
    bucket = TokenBucket(10.0, BURST_S, now=0.0)
    assert bucket.charge(10 * BURST_S, 0.0) == 0.0
    assert bucket.charge(5, 0.0) == 0.5
    assert bucket.is_overdrawn(0.4) and not bucket.is_overdrawn(0.51)
    assert bucket.charge(5, 1.0) == 0.0


def test_clock_that_goes_back_adds_no_tokens():
    bucket = TokenBucket(10.0, BURST_S, now=100.0)
    bucket.charge(10 * BURST_S, 100.0)
    assert bucket.charge(1, 0.0) == 0.1
    assert bucket.charge(1, 100.0) == 0.2


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 2)), max_size=50))
def test_total_never_exceeds_burst_and_rate(steps):
    """A reader that obeys the pauses handles at most the burst and the rate."""
    bucket, now, total = TokenBucket(10.0, BURST_S, 0.0), 0.0, 0.0
    for amount, elapsed in steps:
        now += elapsed
        total += amount
        now += bucket.charge(amount, now)
        assert total <= 10 * (BURST_S + now) + 1e-6


def test_tokens_are_taken_one_by_one_and_never_overdrawn():
    bucket = TokenBucket(2.0, 1.0, now=0.0)
    assert [bucket.take(0.0) for _ in range(3)] == [True, True, False]
    assert not bucket.is_overdrawn(0.0)
    assert [bucket.take(0.5) for _ in range(2)] == [True, False]
