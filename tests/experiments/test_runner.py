"""One case of a sweep: its row."""

from hansa import __version__
from hansa.cli.simulate import parse_request
from hansa.experiments.runner import check_cases, run_case
from hansa.experiments.runs import RUN_COLUMNS, simulator_code
from hansa.experiments.sweep import make_sweep
from hansa.simulator.run import simulate
from hansa.simulator.scenarios.sampling import random_options
from hansa.source_digest import source_commit


def test_case_of_a_campaign_has_the_result_of_its_seed_and_its_code():
    values = {"name": "many", "scenario": "random", "strategy": "paths", "seeds": "580-580"}
    sweep = make_sweep(values, ["scenario", "strategy"])
    check_cases(sweep, parse_request)
    row = run_case(parse_request, sweep.name, sweep.cases[0])
    assert row.keys() == RUN_COLUMNS.keys()
    names = ("case", "sweep", "hansa", "strategy", "commit", "code", "violations", "fingerprint")
    assert [row[name] for name in names] == [
        "--scenario random --strategy paths --seed 580",
        "many",
        __version__,
        "paths",
        source_commit(),
        simulator_code(),
        [],
        simulate(random_options(580, "paths")).fingerprint,
    ]
