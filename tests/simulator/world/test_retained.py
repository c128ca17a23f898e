"""Retained messages in virtual time: writes of mixed QoS with faults, and mutants of their
order."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from tests.simulator.test_mutants import caught

from hansa.delivery.retained_order import RetainedOrder
from hansa.protocol.retained.values import RetainedState
from hansa.simulator.actions import (
    ClientPublish,
    ClientSubscribe,
    CrashAgent,
    FreezeAgent,
    RefuseAgent,
    RestartAgent,
    RestartBroker,
    SimulatedAction,
)
from hansa.simulator.options import DiskOptions, LinkOptions, Phases

Script = Sequence[tuple[float, SimulatedAction]]

DISK = DiskOptions(sync_ms=5.0)
FAR_BROKER = LinkOptions(broker_delay_ms=10.0)
"""A QoS 2 handshake takes 45 ms with the disk, so that the second write overlaps it."""

PAIRS = list(product(range(3), range(3)))
BROKEN = {"retained values agree"}


def writes(first: int, second: int, pause_s: float = 0.02) -> Script:
    """Write three topics twice at the origin while the receiver is subscribed."""
    topics = [f"t/{number}" for number in range(3)]
    return [
        (0.0, ClientSubscribe(1, "t/+")),
        *((5.0, ClientPublish(0, topic, qos=first, retain=True)) for topic in topics),
        *((5.0 + pause_s, ClientPublish(0, topic, qos=second, retain=True)) for topic in topics),
    ]


def broken(script: Script, word: str = "line:2") -> set[str]:
    return caught(word, script, disk=DISK, links=FAR_BROKER, phases=Phases(warm_up_s=100.0))


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_all_brokers_store_the_last_value(first, second):
    for pause_s in (0.001, 0.005, 0.007, 0.02, 0.04):
        assert broken(writes(first, second, pause_s)) == set()


FAULTS: dict[str, Sequence[SimulatedAction]] = {
    "killed": (CrashAgent(1), RestartAgent(1)),
    "suspended": (FreezeAgent(1, 3.0),),
    "refused by its broker": (RefuseAgent(1, 2.0),),
    "forgotten by its broker": (RestartBroker(1),),
}


def fault_cases() -> list[Any]:
    """Every pair with every fault; each pair with one of them in every run."""
    return [
        pytest.param(fault, *pair, marks=() if index == number % len(FAULTS) else pytest.mark.long)
        for number, pair in enumerate(PAIRS)
        for index, fault in enumerate(FAULTS)
    ]


@pytest.mark.parametrize(("fault", "first", "second"), fault_cases())
def test_all_brokers_store_the_last_value_after_a_fault_of_the_receiver(fault, first, second):
    for at_ms in range(5000, 5100, 11):
        actions = [(at_ms / 1000 + n, action) for n, action in enumerate(FAULTS[fault])]
        assert broken([*writes(first, second), *actions]) == set(), at_ms


def without_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetainedOrder, "wait_or_send", lambda *_: False)
    monkeypatch.setattr(RetainedOrder, "hold_back", lambda _, publications: publications)


def without_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetainedState, "_schedule_check", lambda *_: None)
    monkeypatch.setattr("hansa.protocol.retained.checks.CHECK_S", float("inf"))


OVERTAKING = [(2, 1, 0.005), (2, 0, 0.02), (1, 0, 0.007)]
"""Pairs whose second write can overtake the first, and how soon it has to follow."""


@pytest.mark.parametrize("pair", OVERTAKING)
def test_mutant_without_write_order_is_repaired_only_by_checks(monkeypatch, pair):
    assert broken(writes(*pair)) == set()
    without_order(monkeypatch)
    assert broken(writes(*pair)) == set()
    without_checks(monkeypatch)
    assert broken(writes(*pair)) == BROKEN


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_write_order_is_sufficient_without_checks(monkeypatch, first, second):
    without_checks(monkeypatch)
    assert broken(writes(first, second)) == set()


@pytest.mark.parametrize("second", range(3))
def test_write_lost_before_receiver_crash_is_repaired(second):
    """The broker refuses the agent while the second values arrive; the agent saves their versions
    and is killed before the broker accepts it again."""
    faults = [(18.0, RefuseAgent(1, 7.0)), (23.0, CrashAgent(1)), (26.0, RestartAgent(1))]
    assert broken([*writes(1, second, pause_s=14.0), *faults]) == set()
