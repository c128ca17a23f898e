import random

from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.topology.graph import bridges, graph_of, is_connected, pair, parts
from hansa.topology.healing import Surroundings, Wishes, heal
from hansa.topology.planner import Limits

LIMITS = Limits(degree_max=5)


def surroundings(me: str, links: str, absent: str = "") -> Surroundings:
    pairs = frozenset(pair(*text.split("-")) for text in links.split())
    reach = tuple(sorted({me, *(name for link in pairs for name in link)}))
    return Surroundings(me, reach, tuple(absent), pairs)


def always() -> random.Random:
    chance = random.Random(1)
    chance.random = lambda: 0.0  # type: ignore[method-assign]
    return chance


def test_in_a_sound_federation_a_node_wishes_for_nothing():
    assert heal(surroundings("a", "a-b b-c a-c"), frozenset(), LIMITS, always()) == Wishes()


def test_alone_it_dials_as_many_of_those_it_knows_as_it_should_have():
    wishes = heal(surroundings("a", "", "bcd"), frozenset(), LIMITS, random.Random(1))
    assert len(wishes.dial) == 2
    assert set(wishes.dial) <= set("bcd")
    assert heal(surroundings("a", ""), frozenset(), LIMITS, random.Random(1)) == Wishes()


def test_both_ends_of_a_line_close_the_ring_and_nobody_else_does():
    dialled = {
        me: heal(surroundings(me, "a-b b-c c-d"), frozenset(), LIMITS, always()).dial
        for me in "abcd"
    }
    assert dialled == {"a": ("d",), "b": (), "c": (), "d": ("a",)}


def test_who_is_out_of_reach_is_tried_now_and_then():
    known = surroundings("a", "a-b b-c a-c", absent="x")
    chance = random.Random(7)
    tried = sum(heal(known, frozenset(), LIMITS, chance).dial == ("x",) for _ in range(900))
    assert 500 < tried < 700  # two of three nodes each time


def test_with_too_many_neighbours_it_gives_up_only_links_of_its_own():
    links = " ".join(f"{a}-{b}" for a in "abcde" for b in "abcde" if a < b)
    wishes = heal(surroundings("a", links), frozenset("cd"), Limits(degree_max=3), always())
    assert wishes.dial == ()
    assert set(wishes.drop) <= set("cd")
    others = heal(surroundings("a", links), frozenset(), Limits(degree_max=3), always())
    assert others == Wishes()


def test_a_link_that_is_the_only_way_to_somebody_is_needed():
    known = surroundings("a", "a-b b-c a-c a-d")
    assert [known.needs(name) for name in known.neighbours] == [False, False, True]


@given(st.integers(2, 14), st.sets(st.tuples(st.integers(0, 13), st.integers(0, 13))), st.data())
@settings(deadline=None, max_examples=60)
def test_nodes_that_know_each_other_find_together_whatever_links_they_have(count, edges, data):
    """All look in turn, and what they dial stands: the model of a federation without a manager."""
    names = [f"n{number:02}" for number in range(count)]
    links = {pair(names[a], names[b]) for a, b in edges if a < b < count}
    chance = random.Random(data.draw(st.integers(0, 99)))
    own: dict[str, set[str]] = {name: set() for name in names}
    for _ in range(60):
        for me in names:
            for part in parts(graph_of(names, links)):
                if me in part:
                    inside = frozenset(link for link in links if link[0] in part)
                    absent = tuple(name for name in names if name not in part)
                    known = Surroundings(me, tuple(part), absent, inside)
                    break
            wishes = heal(known, frozenset(own[me]), LIMITS, chance)
            links |= {pair(me, other) for other in wishes.dial}
            links -= {pair(me, other) for other in wishes.drop}
            own[me] |= set(wishes.dial)
    end = graph_of(names, links)
    assert is_connected(end)
    if count > 2:
        assert bridges(end) == set()
