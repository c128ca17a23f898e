"""Every observer keeps the contract of `hansa.observers.base` in every situation.

A complete observer knows every subscription. The results are a table of `docs/brokers.md`; after a
change run `REWRITE=1 ./run test tests/observers/test_conformance.py` and read the difference.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.observers.worlds import WORLDS, StaticWorld, World

from hansa.errors import UsageError
from hansa.observers.base import FilterCounts, ObserverOutput

PAGE = Path(__file__).parents[2] / "docs" / "brokers.md"
BEGIN, END = "<!-- conformance: begin -->\n", "<!-- conformance: end -->\n"

EXACT, EXCESS, WIDE, NOT_APPLICABLE = "exact", "superset", "wide", "–"

FILTERS = ("a", "b/1", "c/+/d", "e/#")
MANY = tuple(f"many/{number}" for number in range(2_000))
SHARED = "$share/g/a"

Scenario = Callable[[World], None]


def subscribe_and_unsubscribe(world: World) -> None:
    """subscribe and unsubscribe"""
    world.start_observer()
    world.connect("one")
    world.connect("two")
    world.subscribe("one", *FILTERS)
    world.subscribe("two", "a")
    world.unsubscribe("one", "a")
    world.unsubscribe("one", "b/1")


def late_start(world: World) -> None:
    """observer starts late"""
    world.connect("one")
    world.connect("two", is_persistent=True)
    world.subscribe("one", *FILTERS[:2])
    world.subscribe("two", *FILTERS[2:])
    world.start_observer()


def clean_session_ends(world: World) -> None:
    """clean session ends"""
    world.start_observer()
    world.connect("one")
    world.connect("two")
    world.subscribe("one", *FILTERS)
    world.subscribe("two", "b/1")
    world.disconnect("one")


def persistent_session_stays(world: World) -> None:
    """persistent session, client disconnected"""
    world.start_observer()
    world.connect("one", is_persistent=True)
    world.subscribe("one", *FILTERS)
    world.disconnect("one")


def persistent_session_resumes(world: World) -> None:
    """persistent session resumes, then changes"""
    persistent_session_stays(world)
    world.connect("one", is_persistent=True)
    world.unsubscribe("one", "a")
    world.subscribe("one", "f")


def persistent_session_is_discarded(world: World) -> None:
    """persistent session replaced by a clean one"""
    persistent_session_stays(world)
    world.connect("one")
    world.subscribe("one", "f")


def takeover(world: World) -> None:
    """connection taken over"""
    world.start_observer()
    world.connect("one", is_persistent=True)
    world.subscribe("one", "a")
    world.connect("two")
    world.subscribe("two", "b/1")
    world.connect("one", is_persistent=True)
    world.subscribe("one", "f")
    world.connect("two")
    world.subscribe("two", "c/+/d")


def broker_restart(world: World) -> None:
    """broker restarts, sessions restored"""
    world.start_observer()
    world.connect("one", is_persistent=True)
    world.connect("two")
    world.subscribe("one", "a", "e/#")
    world.subscribe("two", "b/1")
    world.settle()
    world.restart_broker()
    world.connect("two")
    world.subscribe("two", "c/+/d")


def shared_subscription(world: World) -> None:
    """shared subscription"""
    world.start_observer()
    world.connect("one")
    world.connect("two")
    world.subscribe("one", SHARED)
    world.subscribe("two", SHARED, "a")
    world.unsubscribe("two", SHARED)


def denied_subscription(world: World) -> None:
    """denied subscription"""
    world.start_observer()
    world.connect("one")
    world.subscribe("one", "a")
    world.be_denied("one", "b/1")


def lost_notifications(world: World) -> None:
    """lost notifications"""
    world.start_observer()
    world.connect("one")
    world.connect("two", is_persistent=True)
    world.subscribe("one", "a")
    world.subscribe("two", "b/1")
    world.settle()
    world.cut_observer()
    world.unsubscribe("one", "a")
    world.subscribe("one", "c/+/d")
    world.disconnect("two")
    world.connect("three")
    world.subscribe("three", "e/#")
    world.reconnect_observer()


def repeated_notifications(world: World) -> None:
    """repeated notifications"""
    world.start_observer()
    world.connect("one")
    world.subscribe("one", "a", "a", "b/1")
    world.unsubscribe("one", "a")
    world.unsubscribe("one", "a")
    world.subscribe("one", "b/1")


def broker_hangs(world: World) -> None:
    """broker hangs and recovers"""
    world.start_observer()
    world.connect("one")
    world.subscribe("one", "a")
    world.settle()
    world.hang()
    world.settle()
    world.recover()


def observer_restart(world: World) -> None:
    """observer restarts"""
    world.start_observer()
    world.connect("one", is_persistent=True)
    world.connect("two")
    world.subscribe("one", "a")
    world.subscribe("two", "b/1")
    world.settle()
    world.restart_observer()


def thousands_of_clients(world: World) -> None:
    """thousands of clients"""
    world.start_observer()
    for number, topic_filter in enumerate(MANY):
        world.connect(f"c{number}", is_persistent=number % 2 == 0)
        world.subscribe(f"c{number}", topic_filter)
    for number in range(0, len(MANY), 3):
        world.disconnect(f"c{number}")


SCENARIOS: tuple[Scenario, ...] = (
    subscribe_and_unsubscribe,
    late_start,
    clean_session_ends,
    persistent_session_stays,
    persistent_session_resumes,
    persistent_session_is_discarded,
    takeover,
    broker_restart,
    shared_subscription,
    denied_subscription,
    lost_notifications,
    repeated_notifications,
    broker_hangs,
    observer_restart,
    thousands_of_clients,
)


@contextmanager
def recorded_changes() -> Iterator[list[set[str]]]:
    """Sum up the outputs of each observer: the filters that a node would have been told of."""
    announced: list[set[str]] = []
    by_observer: dict[FilterCounts, set[str]] = {}
    drain_changes = FilterCounts.drain_changes

    def record(counts: FilterCounts, *arguments: Any) -> ObserverOutput:
        output = drain_changes(counts, *arguments)
        if counts not in by_observer:
            by_observer[counts] = set()
            announced.append(by_observer[counts])
        assert by_observer[counts].isdisjoint(output.added)
        assert by_observer[counts].issuperset(output.removed)
        by_observer[counts] -= set(output.removed)
        by_observer[counts] |= set(output.added)
        return output

    with mock.patch.object(FilterCounts, "drain_changes", record):
        yield announced


def play(world_class: type[World], scenario: Scenario) -> str:
    """Play a scenario, check the contract, and return how exact the observer is at the end."""
    if scenario is lost_notifications and not world_class.can_miss_notifications:
        return NOT_APPLICABLE
    world = world_class((*FILTERS, "f", SHARED, *MANY))
    with recorded_changes() as announced:
        scenario(world)
        world.settle()
    observer, truth = world.observer, world.subscribed()
    known = set(observer.subscribed_filters())
    assert known in announced, "every change must be in one output"
    assert observer.is_complete == (not observer.incomplete_reason)
    if not observer.is_complete:
        return WIDE
    assert known >= truth, "a complete observer must know every subscription"
    return EXACT if known == truth else EXCESS


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("world_class", WORLDS.values(), ids=lambda world: world.__name__)
def test_complete_observer_knows_every_subscription(world_class, scenario):
    play(world_class, scenario)


@pytest.mark.parametrize("world_class", WORLDS.values(), ids=lambda world: world.__name__)
def test_snapshot_of_another_observer_is_refused_or_ignored(world_class):
    """A state directory of an agent whose observer was changed must not end it."""
    world = world_class(FILTERS)
    world.start_observer()
    foreign = {"format": -1, "filters": ["x"], "sessions": {"c": ["x"]}}
    try:
        world.observer.restore(foreign, 0.0)
    except UsageError:
        pass
    assert "x" not in world.observer.subscribed_filters()


def test_observer_that_misses_a_subscription_fails_the_test():
    class Deaf(StaticWorld):
        def __init__(self, declared):
            super().__init__(f for f in declared if f != "e/#")

    with pytest.raises(AssertionError, match="must know every"):
        play(Deaf, clean_session_ends_with_more)


def clean_session_ends_with_more(world: World) -> None:
    clean_session_ends(world)
    world.subscribe("two", "e/#")


def test_table_of_the_documentation_is_current():
    lines = [
        f"| situation | {' | '.join(WORLDS)} |",
        "|" + "---|" * (1 + len(WORLDS)),
        *(
            f"| {scenario.__doc__} | {' | '.join(play(w, scenario) for w in WORLDS.values())} |"
            for scenario in SCENARIOS
        ),
    ]
    table = "".join(f"{line}\n" for line in lines)
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    current, _, after = rest.partition(END)
    if os.environ.get("REWRITE"):
        PAGE.write_text(f"{before}{BEGIN}{table}{END}{after}", encoding="utf-8")
        current = table
    assert current == table
