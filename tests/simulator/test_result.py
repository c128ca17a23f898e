"""Results: statistics, and JSON that is the same on every machine."""

import json
from dataclasses import replace

from hansa.simulator.options import Phases, SimulationOptions
from hansa.simulator.result import DelayStatistics, delay_statistics
from hansa.simulator.run import simulate
from hansa.simulator.topologies import parse_topology


def test_delay_statistics_are_in_milliseconds():
    samples = [0.001 * n for n in range(1, 101)]
    assert delay_statistics(samples) == DelayStatistics(count=100, mean=50.5, p50=51.0, p99=99.0)
    assert delay_statistics([]) is None
    assert delay_statistics([0.5]) == DelayStatistics(count=1, mean=500.0, p50=500.0, p99=500.0)


def test_wall_time_is_not_in_equality_or_json():
    result = simulate(SimulationOptions(parse_topology("ring:3", 0), phases=Phases(warm_up_s=0.5)))
    slower = replace(result, wall_s=result.wall_s + 1)
    assert slower == result
    assert slower.to_json() == result.to_json()
    assert json.loads(result.to_json())["fingerprint"] == result.fingerprint
    assert result.ok
    assert not replace(result, violations=("broken",)).ok
