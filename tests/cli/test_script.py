"""The words of `--at` and `--faults`."""

import pytest

from hansa.cli.script import EXAMPLES, parse_faults, parse_step
from hansa.errors import UsageError
from hansa.simulator.actions import (
    AddLink,
    Crash,
    Cut,
    CutSilently,
    Freeze,
    Heal,
    Mend,
    Partition,
    Publish,
    RemoveLink,
    Restart,
    Step,
    Subscribe,
    Unsubscribe,
    Vanish,
)
from hansa.simulator.options import Faults
from hansa.simulator.topologies import parse

GRID = parse("grid:2x2", 0)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("crash 3", Crash(3)),
        ("vanish 3", Vanish(3)),
        ("restart 3", Restart(3)),
        ("freeze 3 2.5", Freeze(3, 2.5)),
        ("cut 0-1", Cut(0, 1)),
        ("silence 0-1", CutSilently(0, 1)),
        ("mend 0-1", Mend(0, 1)),
        ("link 0-2", AddLink(0, 2)),
        ("unlink 0-1", RemoveLink(0, 1)),
        ("partition 0,1|2,3", Partition(((0, 1), (2, 3)))),
        ("heal", Heal()),
        ("subscribe 3 plant/#", Subscribe(3, "plant/#")),
        ("unsubscribe 3 plant/#", Unsubscribe(3, "plant/#")),
        ("publish 3 plant/temp", Publish(3, "plant/temp")),
    ],
)
def test_a_step_is_seconds_and_an_action(text, action):
    assert text in EXAMPLES.values()
    assert parse_step(f"2.5 {text}", GRID, start_s=10.0, length_s=5.0) == Step(12.5, action)


def test_every_example_is_tested():
    assert len(EXAMPLES) == 14


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "step '': write seconds and an action, as in '2 crash 3'"),
        ("2", "step '2': write seconds and an action, as in '2 crash 3'"),
        ("soon crash 3", "step 'soon crash 3': write seconds and an action, as in '2 crash 3'"),
        ("-1 crash 3", "step '-1 crash 3': write seconds and an action, as in '2 crash 3'"),
        ("nan crash 3", "step 'nan crash 3': write seconds and an action, as in '2 crash 3'"),
        ("2 crash", "step '2 crash': write it as in '2 crash 3'"),
        ("2 freeze 3 long", "step '2 freeze 3 long': write it as in '2 freeze 3 2.5'"),
        ("2 cut 3", "step '2 cut 3': write it as in '2 cut 0-1'"),
        ("2 crush 3", "step '2 crush 3': there is no 'crush'; did you mean 'crash'?"),
        ("2 crash 4", "there is no node '4' in grid:2x2; its nodes are 0 to 3"),
        ("2 partition 0,x|1", "there is no node 'x' in grid:2x2; its nodes are 0 to 3"),
        ("2 subscribe 1 a/#/b", "topic filter 'a/#/b': '#' must be the last level"),
    ],
)
def test_a_step_that_cannot_be_is_refused(text, problem):
    with pytest.raises(UsageError) as refusal:
        parse_step(text, GRID, start_s=0.0, length_s=5.0)
    assert str(refusal.value) == problem


def test_faults_are_kinds_with_counts():
    assert parse_faults("crashes=2,silent-cuts=3,flaps") == Faults(
        crashes=2, silent_cuts=3, flaps=1
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("cuts=", "'' is not a count; write cuts=2"),
        ("cuts=-1", "'-1' is not a count; write cuts=2"),
        ("partition=1", "there is no 'partition'; did you mean 'partitions'?"),
        ("outage-s=1", "there is no 'outage-s'; there are cuts, silent-cuts, one-way-cuts,"
         " partitions, flaps, crashes, vanishings, freezes, lossy-restarts, broker-restarts,"
         " link-changes, clones, collisions"),
    ],
)  # fmt: skip
def test_faults_that_cannot_be_are_refused(text, problem):
    with pytest.raises(UsageError) as refusal:
        parse_faults(text)
    assert str(refusal.value) == f"faults {text!r}: {problem}"
