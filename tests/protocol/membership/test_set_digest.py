"""The digest of a set depends on its names and on nothing else."""

from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.arbitrary import filters

from hansa.protocol.membership.set_digest import BucketDigest, NoDigest

EMPTY = BucketDigest()
MANY = [f"plant/{n}" for n in range(1_000)]  # several in each bucket

sets = st.lists(filters, max_size=8)


@given(sets, sets, sets)
def test_changed_set_has_the_digest_of_a_new_one_with_the_same_names(names, added, removed):
    changed = EMPTY.changed(names, ()).changed(added, removed)
    result = (set(names) - set(removed)) | set(added)
    assert changed.root == EMPTY.changed(sorted(result), ()).root


def test_order_does_not_matter():
    assert EMPTY.changed(MANY, ()).root == EMPTY.changed(MANY[::-1], ()).root


def test_one_name_more_or_less_changes_the_digest():
    full = EMPTY.changed(MANY, ())
    assert full.changed((), MANY[:1]).root != full.root
    assert full.changed(("x",), ()).root != full.root


def test_border_between_two_names_counts():
    assert EMPTY.changed(("ab", "c"), ()).root != EMPTY.changed(("a", "bc"), ()).root


def test_digest_before_a_change_stays():
    full = EMPTY.changed(MANY, ())
    root = full.root
    full.changed(("x",), MANY[:10])
    assert full.root == root == EMPTY.changed(MANY, ()).root


def test_digest_never_changes_between_versions():
    assert EMPTY.changed(("a", "b/#"), ()).root.hex() == (
        "1d42aa5bf12db965431e01997ddb30ad5a2a1558fc74abc3a07fbe30e6a3a830"
    )


def test_sets_without_signatures_have_no_digest():
    assert NoDigest().changed(("a",), ()).root == b""
