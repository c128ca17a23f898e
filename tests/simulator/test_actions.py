"""Texts of actions."""

import pytest

from hansa.simulator.actions import (
    AddLink,
    BackUpState,
    ClientSubscribe,
    CloneNode,
    CrashAgent,
    CutLink,
    CutOneWay,
    CutSilently,
    FlapLink,
    FreezeAgent,
    HealAll,
    Partition,
    RestartAgent,
    RestartBroker,
    RollBackState,
    describe_action,
)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (CrashAgent(3), "crash 3"),
        (CutLink(0, 1), "cut 0-1"),
        (CutSilently(0, 1), "silence 0-1"),
        (CutOneWay(2, 1), "silence 2>1"),
        (AddLink(0, 4), "link 0-4"),
        (FlapLink(0, 1, 2.5, 3.0), "flap 0-1 2.5 Hz 3 s"),
        (Partition(((0, 1), (2,))), "partition 0,1|2"),
        (HealAll(), "heal"),
        (FreezeAgent(1, 2.25), "freeze 1 2.25 s"),
        (RestartAgent(3), "restart 3"),
        (RestartAgent(3, with_state=False), "restart 3 without state"),
        (RestartBroker(2), "restart-broker 2"),
        (RestartBroker(2, return_s=1.5), "restart-broker 2 1.5 s"),
        (BackUpState(1), "back-up 1"),
        (RollBackState(1), "roll-back 1"),
        (CloneNode(1, near=2), "clone 1 near 2"),
        (ClientSubscribe(1, "a/#"), "subscribe 1 a/#"),
    ],
)
def test_description_of_actions(action, words):
    assert describe_action(action) == words
