"""Fingerprints distinguish databases on every machine; sets are split into parts that fit."""

import os
import subprocess
import sys
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.arbitrary import any_record, filters

from hansa.protocol.membership.records import (
    ClaimsRecord,
    InterestRecord,
    NodeRecord,
    RecordKind,
)
from hansa.protocol.membership.rows import estimate_bytes, fingerprint, split_names
from hansa.protocol.model import NodeId
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import Update

ROWS = tuple(product(RecordKind, map(NodeId, range(16)), product(range(16), range(32))))


# ---------------------------------------------------------------- fingerprints


@pytest.mark.parametrize(
    ("kind", "node", "stamp", "expected"),
    [
        (RecordKind.NODE, 0, (0, 0), 0xB55A8FA067537A73),
        (RecordKind.INTEREST, 1, (7, 3), 0xAF6D6BD6F3FB8656),
        (RecordKind.CLAIMS, (1 << 64) - 1, (1 << 63, 9), 0x9A7E9BF4DD7F6C8F),
    ],
)
def test_fingerprints_never_change_because_neighbours_compare_them(kind, node, stamp, expected):
    assert fingerprint(kind, node, stamp) == expected


def test_rows_that_differ_have_fingerprints_that_differ():
    assert len({fingerprint(*row) for row in ROWS}) == len(ROWS)


def test_every_row_changes_the_sum():
    assert 0 not in {fingerprint(*row) for row in ROWS}


def test_fingerprint_has_64_bits_whatever_the_row():
    most = (1 << 64) - 1
    for row in (ROWS[0], ROWS[-1], (RecordKind.CLAIMS, NodeId(most), (most, most))):
        assert 0 <= fingerprint(*row) <= most


def test_databases_that_differ_have_sums_that_differ():
    kinds, nodes, versions = (
        (RecordKind.NODE, RecordKind.INTEREST),
        (NodeId(1), NodeId(2)),
        range(4),
    )
    rows = list(product(kinds, nodes))
    digests = {
        sum(fingerprint(*row, (7, v)) for row, v in zip(rows, found, strict=True)) % (1 << 64)
        for found in product(versions, repeat=len(rows))
    }
    assert len(digests) == len(versions) ** len(rows)


def test_half_of_the_bits_change_with_the_smallest_change():
    steps = [
        (fingerprint(kind, node, (7, version)), fingerprint(kind, node, (7, version + 1)))
        for kind, node, version in product(RecordKind, map(NodeId, range(16)), range(16))
    ]
    changed = [(before ^ after).bit_count() for before, after in steps]
    assert 31 < sum(changed) / len(changed) < 33
    assert min(changed) > 12


def test_fingerprints_do_not_depend_on_the_hash_seed():
    program = (
        "from hansa.protocol.membership.records import RecordKind\n"
        "from hansa.protocol.membership.rows import fingerprint\n"
        "print(*(fingerprint(kind, 5, (7, 9)) for kind in RecordKind), hash('a'))\n"
    )
    printed = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.split()
        for seed in ("1", "2")
    ]
    (*one, one_hash), (*other, other_hash) = printed
    assert one_hash != other_hash
    assert one == other == [str(fingerprint(kind, NodeId(5), (7, 9))) for kind in RecordKind]


# ---------------------------------------------------------------- parts


@pytest.mark.parametrize(
    ("names", "bytes_max", "parts"),
    [
        ((), 10, [()]),
        (("a",), 10, [("a",)]),
        (("a", "b", "c", "d", "e"), 12, [("a", "b"), ("c", "d"), ("e",)]),
        (("a", "b", "c"), 11, [("a",), ("b",), ("c",)]),
        (("é", "b"), 12, [("é",), ("b",)]),  # counted in bytes, as encoded
        (("far too long", "b"), 6, [("far too long",), ("b",)]),
    ],
)
def test_names_are_split_when_a_part_is_full(names, bytes_max, parts):
    assert split_names(names, bytes_max) == parts


@given(st.lists(filters, max_size=8), st.integers(1, 60))
def test_parts_hold_every_name_in_order_and_stay_small(names, bytes_max):
    parts = split_names(iter(names), bytes_max)
    assert [name for part in parts for name in part] == names
    for part in parts:
        assert len(part) == 1 or sum(len(name.encode()) + 5 for name in part) <= bytes_max
    assert all(parts) or parts == [()]


# ---------------------------------------------------------------- weights


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (NodeRecord(NodeId(1), 7, 3, 7, b"k" * 32, "one", (), 1.0, ()), 120),
        (NodeRecord(NodeId(1), 7, 3, 7, b"", "", ("host",), 1.0, ((NodeId(2), 9),)), 140),
        (NodeRecord(NodeId(1), 7, 3, 7, b"", "", (), 1.0, (), exchange_key=b"x" * 32), 152),
        (InterestRecord(NodeId(1), 7, 4, 3, ()), 62),
        (ClaimsRecord(NodeId(1), 7, 4, 3, ("ab",), ("c",)), 84),
    ],
)
def test_estimated_bytes_of_a_record_are_close(record, expected):
    assert estimate_bytes(record) == expected


HEAVIEST = NodeRecord(
    *(NodeId((1 << 64) - 1), (1 << 64) - 1, (1 << 64) - 1, (1 << 64) - 1, b"k" * 32),
    *("x" * 255, ("\N{GRINNING FACE}" * 63,) * 16, 1.0, ()),
)


@given(any_record | st.just(HEAVIEST))
def test_record_takes_at_most_four_times_its_estimate(record):
    assert len(encode(Update((record,)))) <= 4 * estimate_bytes(record)
