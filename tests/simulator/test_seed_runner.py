"""Many seeds: results in order, stop at the first failure."""

import multiprocessing
from dataclasses import replace

import pytest

from hansa.errors import UsageError
from hansa.simulator.options import SimulationOptions
from hansa.simulator.run import simulate
from hansa.simulator.scenarios.catalogue import ScenarioResult
from hansa.simulator.seed_runner import find_first_failure
from hansa.simulator.topologies import parse_topology


def _all_well(seed: int) -> ScenarioResult:
    return ScenarioResult(
        simulate(SimulationOptions(parse_topology("line:1", seed), seed=seed)), ()
    )


def _from_seven_on_broken(seed: int) -> ScenarioResult:
    played = _all_well(seed)
    broken = ("a promise",) if seed >= 7 else ()
    return ScenarioResult(replace(played.result, violations=broken), ())


def _refused(seed: int) -> ScenarioResult:
    raise UsageError(f"seed {seed} is not for us")


def _faulty(seed: int) -> ScenarioResult:
    1 / (seed - 3)
    return _all_well(seed)


def test_all_seeds_are_run():
    tally = find_first_failure(_all_well, range(3, 6))
    assert (tally.passed, tally.failed) == (3, None)
    assert tally.last is not None
    assert tally.last.result.seed == 5


def test_first_failing_seed_stops_the_run():
    tally = find_first_failure(_from_seven_on_broken, range(4, 1_000_000))
    assert tally.passed == 3
    assert tally.failed is not None
    assert tally.failed.result.seed == 7
    assert multiprocessing.active_children() == []


def test_usage_error_of_a_worker_is_raised():
    with pytest.raises(UsageError, match="^seed 1 is not for us$"):
        find_first_failure(_refused, range(1, 100))


def test_exception_of_a_worker_names_its_seed():
    with pytest.raises(ZeroDivisionError) as fault:
        find_first_failure(_faulty, range(2, 100))
    assert fault.value.__notes__[-1] == "while running seed 3"
