"""Random faults: all kinds, within the traffic phase, healed, with independent streams."""

from collections import Counter
from dataclasses import fields, replace

import pytest

from hansa.simulator.actions import (
    BackUpState,
    CrashAgent,
    HealAll,
    Partition,
    PowerOff,
    RestartAgent,
    RollBackState,
)
from hansa.simulator.options import FaultCounts, Phases, SimulationOptions
from hansa.simulator.random_faults import random_faults
from hansa.simulator.topologies import parse_topology

KINDS = [field.name for field in fields(FaultCounts) if field.name != "outage_s"]
PHASES = Phases(warm_up_s=2.0, traffic_s=8.0)


def steps(seed=0, word="ring:6", **counts):
    topology = parse_topology(word, 0)
    return random_faults(
        SimulationOptions(topology, seed=seed, phases=PHASES, faults=FaultCounts(**counts))
    )


def test_no_faults_make_no_actions():
    assert steps() == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_starts_and_ends_in_the_traffic_phase(kind):
    made = steps(**{kind: 5})
    assert len(made) >= 6
    assert all(2.0 <= s.at_s <= 10.0 for s in made if not isinstance(s.action, BackUpState))
    assert made[-1].at_s == 10.0
    assert made[-1].action == HealAll()


@pytest.mark.parametrize("kind", KINDS)
def test_seed_determines_the_faults(kind):
    assert steps(seed=1, **{kind: 5}) == steps(seed=1, **{kind: 5})
    assert steps(seed=1, **{kind: 5}) != steps(seed=2, **{kind: 5})


def test_kinds_have_independent_streams():
    alone = steps(crashes=3)[:-1]
    assert steps(crashes=3, partitions=2, freezes=4)[-1 - 4 - len(alone) :][: len(alone)] == alone


def test_every_stopped_agent_is_restarted():
    made = [step.action for step in steps(crashes=4, power_offs=4, lossy_restarts=4)]
    dead = Counter(action.node for action in made if isinstance(action, CrashAgent | PowerOff))
    back = Counter(action.node for action in made if isinstance(action, RestartAgent))
    assert dead == back


def test_roll_back_follows_a_backup():
    made = steps(roll_backs=20)[:-1]
    assert {type(step.action) for step in made[::2]} == {BackUpState}
    assert {type(step.action) for step in made[1::2]} == {RollBackState}
    for copied, put_back in zip(made[::2], made[1::2], strict=True):
        assert 0.0 <= copied.at_s <= put_back.at_s
        assert copied.action.node == put_back.action.node
    assert 5 < sum(step.at_s < PHASES.warm_up_s for step in made) < 18


def test_partition_has_two_sides_that_cover_all_nodes():
    for step in steps(partitions=20):
        if isinstance(step.action, Partition):
            one, other = step.action.sides
            assert one and other
            assert sorted((*one, *other)) == list(range(6))


@pytest.mark.parametrize("kind", KINDS)
def test_smallest_federation_accepts_all_faults(kind):
    steps(word="line:1", **{kind: 3})


def test_faults_shift_with_the_phases():
    options = SimulationOptions(
        parse_topology("ring:6", 0), phases=PHASES, faults=FaultCounts(crashes=3)
    )
    later = replace(options, phases=replace(PHASES, warm_up_s=102.0))
    moved = [step.at_s - 100 for step in random_faults(later)]
    assert moved == pytest.approx([step.at_s for step in random_faults(options)])
