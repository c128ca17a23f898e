"""How actions are said."""

import pytest

from hansa.simulator.actions import (
    AddLink,
    BackUp,
    Clone,
    Crash,
    Cut,
    CutOneWay,
    CutSilently,
    Flap,
    Freeze,
    Heal,
    Partition,
    Restart,
    RestartBroker,
    RollBack,
    Subscribe,
    describe,
)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (Crash(3), "crash 3"),
        (Cut(0, 1), "cut 0-1"),
        (CutSilently(0, 1), "silence 0-1"),
        (CutOneWay(2, 1), "silence 2>1"),
        (AddLink(0, 4), "link 0-4"),
        (Flap(0, 1, 2.5, 3.0), "flap 0-1 2.5 Hz 3 s"),
        (Partition(((0, 1), (2,))), "partition 0,1|2"),
        (Heal(), "heal"),
        (Freeze(1, 2.25), "freeze 1 2.25 s"),
        (Restart(3), "restart 3"),
        (Restart(3, with_state=False), "restart 3 without state"),
        (RestartBroker(2), "restart-broker 2"),
        (RestartBroker(2, return_s=1.5), "restart-broker 2 1.5 s"),
        (BackUp(1), "back-up 1"),
        (RollBack(1), "roll-back 1"),
        (Clone(1, near=2), "clone 1 near 2"),
        (Subscribe(1, "a/#"), "subscribe 1 a/#"),
    ],
)
def test_an_action_is_said_in_the_words_of_a_script(action, words):
    assert describe(action) == words
