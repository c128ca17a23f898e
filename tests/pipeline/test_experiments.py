"""`hansa experiment run` on Spark: every case once, with the result of `hansa simulate`."""

import json
from dataclasses import replace
from functools import partial

import pytest

from hansa.cli.main import main
from hansa.cli.simulate import parse_request
from hansa.errors import UsageError
from hansa.experiments.fan_out import run_on_executors
from hansa.experiments.run_table import RunTable
from hansa.experiments.runner import run_case
from hansa.experiments.runs import case_key
from hansa.experiments.sweep import make_sweep
from hansa.simulator.request import run_request

VALUES = {"topology": ["ring:3", "line:3"], "faults": ["", "crashes=1"], "seeds": 3, "duration": 2}
SWEEP = make_sweep({**VALUES, "name": "small"}, list(VALUES))
KEYS = {case_key(case) for case in SWEEP.cases}


def table_in(spark, path):
    from hansa.pipeline.lake import Lake

    return RunTable(Lake.open_or_create(spark, str(path)))


@pytest.fixture
def sweep_file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in VALUES.items()))
    return path


def test_every_case_is_one_row_and_a_second_run_does_nothing(spark, capsys, tmp_path, sweep_file):
    given = ["experiment", "run", str(sweep_file), "--lake", str(tmp_path / "lake")]
    assert main([*given, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err.endswith("hansa: small: 12 simulations, 12 to run\n")
    summary = json.loads(out)
    assert [(row["topology"], row["faults"], row["cases"]) for row in summary] == [
        ("line:3", "", 3),
        ("line:3", "crashes=1", 3),
        ("ring:3", "", 3),
        ("ring:3", "crashes=1", 3),
    ]
    assert main(given) == 0
    out, err = capsys.readouterr()
    assert err.endswith("hansa: small: 12 simulations, 0 to run\n")
    assert "line:3" in out and "crashes=1" in out

    sql = "select count(distinct fingerprint) as n, max(nodes) as nodes from experiments"
    assert main(["pipeline", "query", "--lake", str(tmp_path / "lake"), sql, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"n": 12, "nodes": 3}
    assert main(["pipeline", "tables", "--lake", str(tmp_path / "lake")]) == 0
    assert "One row per simulation of a sweep." in capsys.readouterr().out

    page = tmp_path / "report.html"
    assert main(["report", "--lake", str(tmp_path / "lake"), "--out", str(page)]) == 0
    assert "Sweep small: 12 simulations" in page.read_text()
    assert "line crashes=1" in page.read_text()
    capsys.readouterr()

    rows = {row["case"]: row for row in table_in(spark, tmp_path / "lake").read_all().collect()}
    assert set(rows) == KEYS
    for case in SWEEP.cases[::5]:
        result = run_request(parse_request(case.arguments), case.seed).result
        row = rows[case_key(case)]
        assert (row["fingerprint"], row["delivered"], row["nodes"]) == (
            result.fingerprint,
            result.delivered,
            result.nodes,
        )


@pytest.mark.long
def test_cases_completed_before_an_interruption_are_not_repeated(spark, tmp_path, sweep_file):
    lake = str(tmp_path / "lake")
    run_small = partial(run_case, parse_request, "small")
    some = run_on_executors(spark.sparkContext, SWEEP.cases, run_small)
    rows = next(some)
    some.close()
    table_in(spark, lake).append(rows)
    known = table_in(spark, lake).completed_cases()
    assert 0 < len(known) < len(SWEEP.cases)
    assert main(["experiment", "run", str(sweep_file), "--lake", lake]) == 0
    assert table_in(spark, lake).read_all().count() == len(SWEEP.cases)


def test_case_run_by_two_drivers_counts_once(spark, tmp_path):
    runs = table_in(spark, tmp_path)
    row = run_case(parse_request, "small", SWEEP.cases[0])
    runs.append([row])
    runs.append([row])
    (summed,) = runs.summary(replace(SWEEP, swept=()), KEYS)
    assert (runs.read_all().count(), summed["cases"]) == (1, 1)


def test_violations_of_this_code_are_listed_by_case(spark, tmp_path):
    runs = table_in(spark, tmp_path)
    row = run_case(parse_request, "small", SWEEP.cases[0])
    others = [{**row, "case": case, "violations": ["no loop"]} for case in ("one", "two")]
    runs.append([row, *others, {**row, "case": "old", "code": "1234", "violations": ["no loop"]}])
    assert runs.failed_cases([row["case"], "two", "old"]) == {"two": ["no loop"]}
    assert runs.completed_cases() == {row["case"], "one", "two"}


def test_failed_case_is_reported_with_its_command(spark):
    broken = replace(SWEEP.cases[0], parameters=(("topology", "file:/nowhere"),))
    with pytest.raises(UsageError, match="nowhere"):
        run_case(parse_request, "small", broken)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('topology = "ring:2"\n', "ring:2"),
        ('topolgy = "ring:3"\n', "there is no option 'topolgy'; did you mean 'topology'?"),
        ('topology = "ring:3"\nfaults = "crahes=1"\n', "crahes"),
        ('topology = "ring:3"\nscenario = "random"\n', "not allowed with argument"),
        ('qos = 1\nscenario = "random"\n', "a scenario sets --qos itself"),
        ('scenario = "randon"\n', "there is no scenario 'randon'; did you mean random?"),
    ],
)
def test_wrong_sweep_file_is_reported_before_spark_starts(capsys, tmp_path, text, problem):
    (tmp_path / "bad.toml").write_text(text)
    assert main(["experiment", "run", str(tmp_path / "bad.toml"), "--lake", "unused"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert problem in err
    assert len(err.splitlines()) == 1
