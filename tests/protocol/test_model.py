"""Ids are the same on every node, and a forwarded copy differs only in hops and target groups."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict
from tests.protocol.arbitrary import filters, publications, u64

from hansa.errors import InvalidTopic
from hansa.protocol.model import (
    HOPS_MAX,
    KEY_BYTES,
    MANAGEMENT_GROUP,
    GroupId,
    Identity,
    NodeId,
    Publication,
    group_id,
    node_id,
)
from hansa.protocol.topics import check_filter


def test_node_id_is_the_start_of_the_hash_of_its_key():
    key = bytes(range(KEY_BYTES))
    assert f"{node_id(key):016x}" == hashlib.sha256(key).hexdigest()[:16] == "630dcd2966c43366"


@pytest.mark.parametrize(
    ("group", "named"),
    [
        (MANAGEMENT_GROUP, "e4a6a0577479b2b4"),
        ("plant/+/temp", "ffeaa761b0cb4973"),
        ("é", "cb1abf8beff3192f"),
    ],
)
def test_group_has_the_same_id_everywhere(group, named):
    assert f"{group_id(group):016x}" == named


@given(filters, filters)
def test_different_groups_have_different_ids(one, other):
    assert (group_id(one) == group_id(other)) == (one == other)


@given(st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES), filters)
def test_ids_have_64_bits(key, group):
    assert 0 <= node_id(key) < 1 << 64
    assert 0 <= group_id(group) < 1 << 64


def test_no_filter_has_the_name_of_the_management_group():
    with pytest.raises(InvalidTopic):
        check_filter(MANAGEMENT_GROUP)


def test_hops_fit_their_byte():
    assert HOPS_MAX < 256


def test_identity_needs_only_a_key_and_an_incarnation():
    identity = Identity(NodeId(1), bytes(KEY_BYTES), 7)
    assert (identity.name, identity.addresses, identity.capacity) == ("", (), 1.0)


@given(publications, st.integers(0, HOPS_MAX), st.lists(u64, max_size=3))
def test_forwarded_copy_changes_only_hops_and_target_groups(publication, hops, named):
    groups = tuple(GroupId(group) for group in named)
    onward = publication.forwarded_copy(hops, groups)
    assert asdict(onward) == {**asdict(publication), "hops": hops, "target_groups": groups}
    assert onward.payload is publication.payload


def test_publication_cannot_be_changed():
    publication = Publication(NodeId(1), 2, 3, 0, "a", b"")
    with pytest.raises(AttributeError):
        publication.hops = 9  # type: ignore[misc]
