"""A run depends only on its options: the same bytes in every process, for any hash seed."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from hansa.simulator.actions import ClientPublish, ClientSubscribe, RestartAgent, ScheduledAction
from hansa.simulator.options import Phases, SimulationOptions
from hansa.simulator.run import Simulation, simulate
from hansa.simulator.scenarios.sampling import random_options
from hansa.simulator.topologies import parse_topology

SCRIPT = """
import sys
from hansa.simulator.run import simulate
from hansa.simulator.scenarios.sampling import random_options
print(simulate(random_options(int(sys.argv[1]))).to_json())
"""


def small_options(seed: int) -> SimulationOptions:
    script = (
        ScheduledAction(0.0, ClientSubscribe(2, "a")),
        ScheduledAction(1.0, ClientPublish(0, "a")),
    )
    return SimulationOptions(
        parse_topology("ring:4", 0), seed=seed, schedule=script, phases=Phases(warm_up_s=2.0)
    )


def json_in_a_process(seed: int, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", SCRIPT, str(seed)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("seed", [0, 5, 14])
def test_run_does_not_depend_on_process_and_hash_seed(seed):
    here = simulate(random_options(seed)).to_json()
    assert json_in_a_process(seed, "1").strip() == here
    assert json_in_a_process(seed, "2").strip() == here


def test_other_seed_gives_other_run():
    assert simulate(random_options(1)).fingerprint != simulate(random_options(3)).fingerprint


def test_encoded_frames_give_the_same_run():
    objects = simulate(small_options(0))
    octets = simulate(replace(small_options(0), encode_frames=True))
    assert replace(objects, fingerprint="") == replace(octets, fingerprint="")


def test_listener_and_checkers_do_not_change_the_run():
    lines = []
    watched = simulate(small_options(0), lambda *what: lines.append(what))
    assert lines
    assert watched == simulate(small_options(0))
    assert (
        watched.fingerprint
        == simulate(replace(small_options(0), check_invariants=False)).fingerprint
    )


def test_late_place_starts_when_scheduled():
    start = ScheduledAction(5.0, RestartAgent(1))
    late = replace(
        small_options(0), schedule=(start,), late_places=(1, 2), phases=Phases(warm_up_s=9.0)
    )
    simulation = Simulation(late)
    simulation.run_until(4.9)
    assert [view is None for view in simulation.statuses()] == [False, True, True, False]
    simulation.run_until(9.0)
    assert [view is None for view in simulation.statuses()] == [False, False, True, False]
    assert simulation.world.sites[1].state.incarnation == 5_000


def test_result_of_a_small_run():
    result = simulate(small_options(5))
    assert (result.seed, result.nodes, result.links) == (5, 4, 4)
    assert (result.publications, result.expected, result.delivered, result.lost) == (1, 1, 1, 0)
    assert result.delay_ms_by_node[2].mean == pytest.approx(2.2)
    assert result.copies_per_publication >= 2
    assert result.violations == ()
    assert [record.after for record in result.converged_s] == ["start"]
    assert result.control_frames["Hello"] == 8
    assert result.virtual_s == 2.0


def test_run_can_be_inspected_and_continued():
    simulation = Simulation(small_options(0))
    simulation.run_until(1.0)
    views = simulation.statuses()
    assert [sorted(view.neighbours) for view in views if view] == [[1, 3], [0, 2], [1, 3], [0, 2]]
    assert simulation.run() == simulate(small_options(0))
