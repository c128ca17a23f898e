"""Repairs that no failure explains raise an alarm."""

import pytest

from hansa.agent.alarms import Alarms
from hansa.agent.withheld_monitor import (
    ORIGINS_MAX,
    SETTLE_S,
    SLOT_S,
    SLOTS_MIN,
    WINDOW_S,
    WithheldMonitor,
)
from hansa.protocol.effects import NeighbourDown, NodeReachable, Repaired
from hansa.protocol.model import NodeId

NAME = "publications withheld"
NAMES = {NodeId(1): "north", NodeId(2): "so\x1buth"}


class Scene:
    def __init__(self) -> None:
        self.now = 1_000.0
        self.alarms = Alarms()
        self.monitor = WithheldMonitor(
            self.alarms.setter(NAME), lambda node: NAMES.get(node, ""), lambda: self.now
        )

    def repair(self, origin: int = 1, *, times: int = 1, every_s: float = SLOT_S) -> None:
        for _ in range(times):
            self.now += every_s
            self.monitor.on_notification(Repaired(NodeId(origin), 7))

    @property
    def text(self) -> str:
        return self.alarms.active.get(NAME, "")


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.now += SETTLE_S
    return made


def test_repeated_repairs_raise_the_alarm_until_a_minute_without_any(scene):
    scene.repair(times=SLOTS_MIN - 1)
    assert scene.text == ""
    scene.repair()
    assert scene.text.startswith("publications of 'north' arrive only from the origin's journal")
    scene.now += WINDOW_S - SLOTS_MIN * SLOT_S
    scene.monitor.check()
    assert scene.text
    scene.now += SLOTS_MIN * SLOT_S
    scene.monitor.check()
    assert scene.alarms.active == {}


def test_many_repairs_at_once_count_as_one(scene):
    scene.repair(times=100, every_s=SLOT_S / 200)
    assert scene.text == ""


@pytest.mark.parametrize("change", [NeighbourDown(NodeId(9), "gone"), NodeReachable(NodeId(9))])
def test_repairs_after_a_change_are_expected(scene, change):
    for _ in range(4 * SLOTS_MIN):
        scene.monitor.on_notification(change)
        scene.repair()
    assert scene.text == ""


def test_repairs_after_the_start_are_expected():
    scene = Scene()
    scene.repair(times=100, every_s=SETTLE_S / 101)
    assert scene.text == ""


def test_few_origins_are_named_safely_and_a_bounded_number_counted(scene):
    for origin in range(1, ORIGINS_MAX + 10):
        scene.repair(origin, every_s=0.0)
    for _ in range(SLOTS_MIN):
        scene.now += SLOT_S
        for origin in range(1, ORIGINS_MAX + 10):
            scene.repair(origin, every_s=0.0)
    assert "'north', 'so\\x1buth', 0000000000000003 and 253 more arrive" in scene.text
