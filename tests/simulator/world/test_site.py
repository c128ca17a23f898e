"""Sites: ids, keys and persistent state."""

from hansa.protocol.model import NodeId, node_id
from hansa.simulator.world.site import IdentityAllocator, PersistentState, Site


def test_ids_are_places_or_random():
    assert IdentityAllocator(1, 4, shuffle=False, derive_ids=False).initial_ids == [0, 1, 2, 3]
    drawn = IdentityAllocator(1, 4, shuffle=True, derive_ids=False).initial_ids
    assert (
        drawn
        == IdentityAllocator(1, 4, shuffle=True, derive_ids=False).initial_ids
        != IdentityAllocator(2, 4, shuffle=True, derive_ids=False).initial_ids
    )
    assert len(set(drawn)) == 4


def test_new_id_is_unused():
    for shuffle in (False, True):
        naming = IdentityAllocator(1, 4, shuffle, derive_ids=False)
        fresh = [naming.new_id() for _ in range(20)]
        assert len({*fresh, *naming.initial_ids}) == 24


def test_secured_ids_follow_from_keys():
    naming = IdentityAllocator(1, 4, shuffle=False, derive_ids=True)
    for generation in (0, 1):
        node, key = naming.new_identity(2, generation)
        assert (node, key) == (node_id(key), naming.make_key(2, generation))


def test_keys_differ_by_seed_place_and_generation():
    keys = [
        IdentityAllocator(seed, 4, shuffle=False, derive_ids=False).make_key(place, generation)
        for seed in (1, 2)
        for place in (0, 1)
        for generation in (0, 1)
    ]
    assert len(set(keys)) == 8
    assert {len(key) for key in keys} == {32}


def test_copied_state_is_equal_and_independent():
    memory = PersistentState(NodeId(7), b"k" * 32, incarnation=3)
    twin = memory.copy()
    twin.incarnation += 1
    assert (twin.id, twin.key, twin.incarnation) == (7, b"k" * 32, 4)
    assert memory.incarnation == 3


def test_every_start_has_a_higher_incarnation():
    memory = PersistentState(NodeId(7), b"k" * 32)
    incarnations = []
    for now in (0.0, 0.0, 5.0, 5.0):
        memory.start_incarnation(now)
        incarnations.append(memory.incarnation)
    memory.clock_offset_s = -3600.0
    memory.start_incarnation(6.0)
    memory.clock_offset_s = 3600.0
    memory.start_incarnation(6.0)
    incarnations += [memory.incarnation - 1, memory.incarnation]
    assert incarnations == [1, 2, 5000, 5001, 3_605_999, 3_606_000]


def test_link_ids_are_unique():
    site = Site(0, PersistentState(NodeId(0), b"k" * 32), "n0", 1.0)
    assert [site.new_link_id() for _ in range(3)] == [1, 2, 3]
