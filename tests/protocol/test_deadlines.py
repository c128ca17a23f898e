"""The earliest of several deadlines."""

import pytest

from hansa.protocol.deadlines import earliest


@pytest.mark.parametrize(
    ("dues", "first"),
    [
        ((), None),
        ((None, None), None),
        ((5.0,), 5.0),
        ((None, 5.0, None), 5.0),
        ((7.0, 5.0, 6.0), 5.0),
        ((0.0, 1.0), 0.0),
    ],
)
def test_the_earliest_is_found_among_those_that_are_there(dues, first):
    assert earliest(*dues) == first
