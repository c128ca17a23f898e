"""JSON in pieces equals JSON as a whole, and no piece has many entries."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.agent.admin.status import ENTRIES_PER_PIECE, json_entries, json_member

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.text(), VALUES), st.integers(1, 5), VALUES)
def test_pieces_make_the_same_document(entries, per_piece, other):
    pieces = json_entries("groups", entries.items(), per_piece)
    text = b"{" + json_member("other\n", other) + b"," + b"".join(pieces) + b"}"
    assert json.loads(text) == {"other\n": other, "groups": entries}


@pytest.mark.parametrize("count", [0, 1, ENTRIES_PER_PIECE, 5 * ENTRIES_PER_PIECE + 1])
def test_piece_has_a_bounded_number_of_entries(count):
    taken = 0

    def entries():
        nonlocal taken
        for number in range(count):
            taken += 1
            yield str(number), number

    before = 0
    for _ in json_entries("groups", entries()):
        assert taken - before <= ENTRIES_PER_PIECE
        before = taken
    assert taken == count
