"""Scripts of `--at` and `--faults`: parsing, and checks for impossible steps."""

import pytest

from hansa.errors import UsageError
from hansa.simulator import actions
from hansa.simulator.actions import (
    AddLink,
    BackUpState,
    ClientPublish,
    ClientSubscribe,
    ClientUnsubscribe,
    CloneNode,
    CrashAgent,
    CutLink,
    CutOneWay,
    CutSilently,
    FailDisk,
    FillDisk,
    FlapLink,
    FreezeAgent,
    HealAll,
    Partition,
    PlayAttack,
    PowerOff,
    RefuseAgent,
    RemoveLink,
    RestartAgent,
    RestartBroker,
    RestoreLink,
    RollBackState,
    ScheduledAction,
    SetClock,
    SimulatedAction,
    StallDisk,
    describe_action,
)
from hansa.simulator.options import FaultCounts
from hansa.simulator.script import ACTION_EXAMPLES, parse_faults, parse_script
from hansa.simulator.topologies import parse_topology

GRID = parse_topology("grid:2x2", 0)
LINE = parse_topology("line:4", 0)

SCRIPT: dict[str, SimulatedAction] = {
    "crash 3": CrashAgent(3),
    "power-off 3": PowerOff(3),
    "freeze 3 2.5 s": FreezeAgent(3, 2.5),
    "stall 3 2.5 s": StallDisk(3, 2.5),
    "fill-disk 3 2.5 s": FillDisk(3, 2.5),
    "fail-disk 3": FailDisk(3),
    "back-up 3": BackUpState(3),
    "roll-back 3": RollBackState(3),
    "set-clock 3 -3600 s": SetClock(3, -3600.0),
    "set-clock 3 5 s": SetClock(3, 5.0),
    "refuse 3 2.5 s": RefuseAgent(3, 2.5),
    "restart 3": RestartAgent(3),
    "restart 3 without state": RestartAgent(3, with_state=False),
    "restart-broker 3": RestartBroker(3),
    "restart-broker 3 2 s": RestartBroker(3, 2.0),
    "clone 3 near 0": CloneNode(3, 0),
    "byzantine 3 forge-receipts": PlayAttack(3, "forge-receipts"),
    "cut 0-1": CutLink(0, 1),
    "silence 0-1": CutSilently(0, 1),
    "silence 1>0": CutOneWay(1, 0),
    "flap 0-1 5 Hz 2 s": FlapLink(0, 1, 5.0, 2.0),
    "restore 0-1": RestoreLink(0, 1),
    "partition 0,1|2,3": Partition(((0, 1), (2, 3))),
    "heal": HealAll(),
    "link 0-3": AddLink(0, 3),
    "unlink 0-1": RemoveLink(0, 1),
    "subscribe 3 plant/#": ClientSubscribe(3, "plant/#"),
    "unsubscribe 3 plant/#": ClientUnsubscribe(3, "plant/#"),
    "publish 3 plant/temp": ClientPublish(3, "plant/temp"),
}


def test_unknown_attack_is_refused_with_a_suggestion():
    with pytest.raises(UsageError, match="no 'forge-receipt'; did you mean 'forge-receipts'"):
        parse_script(["1 byzantine 3 forge-receipt"], GRID, 0.0, 5.0)


def test_roll_back_requires_a_backup():
    steps = parse_script(["1 back-up 3", "2 crash 3", "3 roll-back 3", "4 crash 3"], GRID, 0.0, 5.0)
    assert steps[2] == ScheduledAction(3.0, RollBackState(3))
    with pytest.raises(UsageError, match="nothing of node 3 is backed up then; 'back-up 3' first"):
        parse_script(["1 roll-back 3", "2 back-up 3"], GRID, 0.0, 5.0)


@pytest.mark.parametrize("text", SCRIPT)
def test_step_is_parsed(text):
    before = ["1 back-up 3"] if text.startswith("roll-back") else []
    steps = parse_script([*before, f"2.5 {text}"], GRID, start_s=10.0, length_s=5.0)
    first, *more = steps[len(before) :]
    assert first == ScheduledAction(12.5, SCRIPT[text])
    assert more == ([ScheduledAction(14.5, RestoreLink(0, 1))] if text.startswith("flap") else [])


@pytest.mark.parametrize("text", SCRIPT)
def test_action_is_described_as_it_is_written(text):
    assert describe_action(SCRIPT[text]) == text


def test_every_action_has_a_syntax():
    kinds = {
        kind
        for kind in vars(actions).values()
        if isinstance(kind, type) and issubclass(kind, SimulatedAction)
    }
    assert {type(action) for action in SCRIPT.values()} == kinds - {SimulatedAction}
    assert set(ACTION_EXAMPLES.values()) <= set(SCRIPT)
    assert set(ACTION_EXAMPLES) == {text.split()[0] for text in SCRIPT}


def test_unit_of_seconds_is_optional():
    (step,) = parse_script(["0 freeze 3 2.5"], GRID, start_s=0.0, length_s=5.0)
    assert step.action == FreezeAgent(3, 2.5)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "step '': write seconds and an action, as in '2 crash 3'"),
        ("2", "step '2': write seconds and an action, as in '2 crash 3'"),
        ("soon crash 3", "step 'soon crash 3': write seconds and an action, as in '2 crash 3'"),
        ("-1 crash 3", "step '-1 crash 3': write seconds and an action, as in '2 crash 3'"),
        ("nan crash 3", "step 'nan crash 3': write seconds and an action, as in '2 crash 3'"),
        ("2 crash", "step '2 crash': write it as in '2 crash 3'"),
        ("2 freeze 3 long", "step '2 freeze 3 long': write it as in '2 freeze 3 2.5 s'"),
        ("2 freeze 3 0", "step '2 freeze 3 0': write it as in '2 freeze 3 2.5 s'"),
        ("2 cut 3", "step '2 cut 3': write it as in '2 cut 0-1'"),
        ("2 cut 0>1", "step '2 cut 0>1': write it as in '2 cut 0-1'"),
        ("2 flap 0-1 9 Hz", "step '2 flap 0-1 9 Hz': write it as in '2 flap 0-1 5 Hz 2 s'"),
        ("2 flap 0-1 0.1 Hz 1 s",
         "step '2 flap 0-1 0.1 Hz 1 s': write it as in '2 flap 0-1 5 Hz 2 s'"),
        ("2 crush 3", "step '2 crush 3': there is no 'crush'; did you mean 'crash'?"),
        ("2 crash 4", "there is no node '4' in grid:2x2; its nodes are 0 to 3"),
        ("2 partition 0,x|1", "there is no node 'x' in grid:2x2; its nodes are 0 to 3"),
        ("2 subscribe 1 a/#/b", "topic filter 'a/#/b': '#' must be the last level"),
    ],
)  # fmt: skip
def test_invalid_step_is_refused(text, problem):
    with pytest.raises(UsageError) as refusal:
        parse_script([text], GRID, start_s=0.0, length_s=5.0)
    assert str(refusal.value) == problem


def test_faults_are_parsed():
    assert parse_faults("crashes=2,silent-cuts=3,flaps") == FaultCounts(
        crashes=2, silent_cuts=3, flaps=1
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("cuts=", "'' is not a count; write cuts=2"),
        ("cuts=1,cuts=2", "cuts is given twice"),
        ("cuts=-1", "'-1' is not a count; write cuts=2"),
        ("partition=1", "there is no 'partition'; did you mean 'partitions'?"),
        ("outage-s=1", "there is no 'outage-s'; there are cuts, silent-cuts, one-way-cuts,"
         " partitions, flaps, crashes, power-offs, freezes, stalls, disk-failures,"
         " clock-jumps, refusals, lossy-restarts, broker-restarts,"
         " link-changes, clones, roll-backs, byzantine"),
    ],
)  # fmt: skip
def test_invalid_faults_are_refused(text, problem):
    with pytest.raises(UsageError) as refusal:
        parse_faults(text)
    assert str(refusal.value) == f"faults {text!r}: {problem}"


def refusal(*texts: str) -> str | None:
    try:
        parse_script(texts, LINE, start_s=3.0, length_s=10.0)
    except UsageError as problem:
        return str(problem)
    return None


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (["2 cut 0-2"], "step '2 cut 0-2': 0 and 2 are not linked then; 0 is linked to 1"),
        (["2 silence 1>3"], "step '2 silence 1>3': 1 and 3 are not linked then;"
         " 1 is linked to 0, 2"),
        (["2 flap 0-3 5 Hz 1 s"], "step '2 flap 0-3 5 Hz 1 s': 0 and 3 are not linked then;"
         " 0 is linked to 1"),
        (["5 restore 1-0", "2 unlink 0-1"], "step '5 restore 1-0': 1 and 0 are not linked then;"
         " 1 is linked to 2"),
        (["2 unlink 0-1", "3 unlink 0-1"], "step '3 unlink 0-1': 0 and 1 are not linked then;"
         " 0 is linked to no node"),
        (["2 link 0-1"], "step '2 link 0-1': 0 and 1 are linked already"),
        (["2 link 1-1"], "step '2 link 1-1': a node cannot be linked to itself"),
        (["2 partition 0,1,2,3"], "step '2 partition 0,1,2,3': name two sides or more, as in"
         " 'partition 0,1|2,3'"),
        (["2 partition 0,1|1,2"], "step '2 partition 0,1|1,2': node 1 is named twice"),
        (["2 partition 0|2,3"], "step '2 partition 0|2,3': no link connects these sides"),
        (["1 crash 2", "2 power-off 2"], "step '2 power-off 2': node 2 is not running then;"
         " restart it first"),
        (["2 freeze 2 1 s", "1 crash 2"], "step '2 freeze 2 1 s': node 2 is not running then;"
         " restart it first"),
        (["1 freeze 2 4 s", "2 freeze 2 1 s"], "step '2 freeze 2 1 s': node 2 is frozen already"),
        (["20 heal"], "step '20 heal' comes after the run; give --duration 20 or more"),
        (["8 freeze 2 4 s"], "step '8 freeze 2 4 s' ends after the run; give --duration 12 or"
         " more"),
        (["8 stall 2 4 s"], "step '8 stall 2 4 s' ends after the run; give --duration 12 or"
         " more"),
        (["8 restart-broker 2 4 s"], "step '8 restart-broker 2 4 s' ends after the run; give"
         " --duration 12 or more"),
    ],
)  # fmt: skip
def test_impossible_step_is_refused(script, problem):
    assert refusal(*script) == problem


@pytest.mark.parametrize(
    "script",
    [
        ["2 link 0-2", "3 cut 2-0", "4 restore 0-2", "5 unlink 0-2", "6 link 0-2"],
        ["5 cut 0-2", "2 link 0-2"],
        ["1 crash 2", "2 restart 2", "3 power-off 2", "4 restart 2 without state", "5 crash 2"],
        ["1 freeze 2 4 s", "2 heal", "3 freeze 2 1 s", "3.5 restart 2", "3.6 freeze 2 1 s"],
        ["1 partition 0,1|2", "2 partition 0|1|2|3"],
        ["10 heal"],
    ],
)
def test_step_that_an_earlier_step_makes_possible_is_accepted(script):
    assert refusal(*script) is None


def test_refusal_uses_node_names_of_the_topology_file(tmp_path):
    path = tmp_path / "links"
    path.write_text("paris london\nlondon oslo\n")
    topology = parse_topology(f"file:{path}", 0)
    with pytest.raises(UsageError, match="paris and oslo are not linked then; paris is linked to"):
        parse_script(["1 cut paris-oslo"], topology, start_s=0.0, length_s=5.0)
