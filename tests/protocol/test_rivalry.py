"""Two nodes with one id: verdicts by example, and that one of the two stays, whatever they hear."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.protocol.effects import Halt, Rekey
from hansa.protocol.records import NodeRecord
from hansa.protocol.rivalry import Verdict, give_way, judge
from hansa.protocol.vocabulary import Identity, NodeId

K, SMALLER_KEY, LARGER_KEY = b"k" * 32, b"a" * 32, b"z" * 32
ME = Identity(NodeId(7), K, incarnation=5)


def record(incarnation: int, born: int, key: bytes) -> NodeRecord:
    return NodeRecord(NodeId(7), incarnation, 1, born, key, "", (), 1.0, ())


# ---------------------------------------------------------------- verdicts


@pytest.mark.parametrize("alive", [False, True])
@pytest.mark.parametrize("incarnation", [5, 9])
def test_a_record_of_this_very_life_is_ours(incarnation, alive):
    assert judge(ME, incarnation, record(incarnation, 5, K), alive) is Verdict.OURS


@pytest.mark.parametrize(("incarnation", "born"), [(4, 4), (4, 2), (2, 2)])
def test_a_record_of_a_former_life_is_ours(incarnation, born):
    assert judge(ME, 5, record(incarnation, born, K), alive=False) is Verdict.OURS


@pytest.mark.parametrize("born", [5, 8])
def test_a_past_that_we_forgot_is_outranked(born):
    assert judge(ME, 5, record(8, born, K), alive=False) is Verdict.OUTRANK


@pytest.mark.parametrize(
    ("theirs", "key", "verdict"),
    [
        (4, LARGER_KEY, Verdict.OURS),  # below ours: it will hear of us
        (5, SMALLER_KEY, Verdict.GIVE_WAY),
        (5, LARGER_KEY, Verdict.OUTRANK),
        (6, K, Verdict.OUTRANK),
        (6, SMALLER_KEY, Verdict.OUTRANK),
    ],
)
def test_of_two_that_never_raised_the_first_to_start_stays(theirs, key, verdict):
    assert judge(ME, 5, record(theirs, theirs, key), alive=False) is verdict


@pytest.mark.parametrize("key", [SMALLER_KEY, K, LARGER_KEY])
@pytest.mark.parametrize("incarnation", [5, 6])
def test_who_started_earlier_and_raised_its_incarnation_is_alive(incarnation, key):
    assert judge(ME, 5, record(incarnation, 4, key), alive=False) is Verdict.GIVE_WAY


def test_a_neighbours_word_makes_up_for_a_lower_incarnation():
    assert judge(ME, 5, record(4, 4, LARGER_KEY), alive=True) is Verdict.GIVE_WAY


def test_a_living_rival_that_we_outrank_already_is_no_reason_to_raise_again():
    assert judge(ME, 9, record(6, 6, LARGER_KEY), alive=True) is Verdict.OURS


# ---------------------------------------------------------------- giving way


def test_with_another_key_one_gives_way_by_taking_a_new_one():
    assert give_way(ME, LARGER_KEY) == Rekey("another node with this id started earlier")


def test_with_the_same_key_one_gives_way_by_stopping():
    assert give_way(ME, K) == Halt("another node runs with this key and started earlier")


# ---------------------------------------------------------------- two rivals


@dataclass
class Rival:
    """One of two nodes with one id: what it ever said of itself, and whether it has given way."""

    identity: Identity
    gone: bool = False
    said: list[NodeRecord] = field(default_factory=list)

    def speak(self, incarnation: int) -> None:
        self.said.append(record(incarnation, self.identity.incarnation, self.identity.key))

    def hear(self, theirs: NodeRecord, alive: bool) -> bool:
        """Take a record and return whether that changed anything."""
        if self.gone:
            return False
        verdict = judge(self.identity, self.said[-1].incarnation, theirs, alive)
        if verdict is Verdict.OUTRANK:
            self.speak(theirs.incarnation + 1)
            assert self.said[-1].incarnation > self.said[-2].incarnation
        self.gone = verdict is Verdict.GIVE_WAY
        return verdict is not Verdict.OURS


births = st.tuples(st.integers(1, 3), st.sampled_from([SMALLER_KEY, K]))
raises = st.integers(0, 3)
news = st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.booleans()), max_size=8)


@settings(max_examples=200)
@given(st.lists(births, min_size=2, max_size=2, unique=True), raises, raises, news)
def test_exactly_the_later_of_two_rivals_gives_way_whatever_they_hear_first(
    births, first_raise, second_raise, news
):
    pair = [Rival(Identity(NodeId(7), key, born)) for born, key in sorted(births)]
    for rival, raised in zip(pair, (first_raise, second_raise), strict=True):
        rival.speak(rival.identity.incarnation + raised)
    for is_second, place, alive in news:
        said = pair[not is_second].said
        pair[is_second].hear(said[place % len(said)], alive)
    while any([pair[0].hear(pair[1].said[-1], False), pair[1].hear(pair[0].said[-1], False)]):
        pass
    assert [rival.gone for rival in pair] == [False, True]
