"""The index: which publications get an entry, and which entries are plausible."""

from hypothesis import given
from hypothesis import strategies as st

from hansa.journal import index
from hansa.journal.index import INDEX_SPACING_BYTES, IndexSpacing
from hansa.journal.segment import index_name


def test_entries_are_far_enough_apart():
    entries: list[index.IndexEntry] = []
    spacing = IndexSpacing(1_000)
    for number, offset in enumerate(
        range(1_000, 1_000 + 3 * INDEX_SPACING_BYTES + 1, 1_024), start=1
    ):
        spacing.add_if_due(entries, number, offset)
    assert entries == [(1 + 64 * n, 1_000 + n * INDEX_SPACING_BYTES) for n in (1, 2, 3)]


def test_entries_round_trip(tmp_path):
    entries = [(5, 100), (9, 2**63)]
    (tmp_path / index_name(40)).write_bytes(index.pack_entries(entries))
    assert index.read_index(tmp_path, 40) == entries
    assert index.read_index(tmp_path, 41) == []


def test_implausible_entries_are_ignored(tmp_path):
    good = [(5, 100), (9, 200)]
    data = (
        index.pack_entries([(0, 0), (4, 40), good[0], (6, 90), (5, 150), good[1], (0, 0)]) + b"half"
    )
    (tmp_path / index_name(40)).write_bytes(data)
    assert index.read_index(tmp_path, 40) == good


@given(st.binary(max_size=200))
def test_any_bytes_give_ascending_entries(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp()
    (path / index_name(0)).write_bytes(data)
    entries = index.read_index(path, 0)
    assert entries == sorted(set(entries))
    assert [offset for _, offset in entries] == sorted({offset for _, offset in entries})
