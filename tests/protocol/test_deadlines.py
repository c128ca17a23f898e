"""The earliest of several deadlines, and tables of them."""

import math

import pytest

from hansa.protocol.deadlines import DeadlineTable, earliest


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
def test_earliest_of_optional_deadlines(dues, first):
    assert earliest(*dues) == first


def test_table_returns_due_keys_once_and_in_bounded_numbers():
    table: DeadlineTable[str] = DeadlineTable()
    assert (table.next_due, table.pop_due(9.0)) == (math.inf, [])
    for key, at in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        table.schedule(key, at)
    assert (table.next_due, table.pop_due(0.5), "a" in table) == (1.0, [], True)
    assert table.pop_due(2.0, max_count=1) == ["a"]
    assert ("a" in table, table.next_due) == (False, 2.0)
    table.schedule("b", 5.0)
    assert table.pop_due(3.0) == ["c"]
    assert table.pop_due(5.0) == ["b"]
    assert table.next_due == math.inf
