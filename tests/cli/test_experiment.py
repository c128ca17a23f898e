"""`hansa experiment`: tables, JSON, errors in one line."""

import json

import pytest

from hansa.cli.main import main
from hansa.protocol.links.neighbours import Neighbours
from hansa.protocol.routing import STRATEGIES

TRIAL = ("--trial", "antonielli-tree-0")


def run(capsys, *given):
    code = main(["experiment", *given])
    out, err = capsys.readouterr()
    return code, out, err


def test_every_strategy_has_a_row(capsys):
    code, out, err = run(capsys, "compare", *TRIAL)
    assert (code, err) == (0, "")
    assert out.startswith("antonielli-tree-0: Antonielli 2020, tree, locality 0 %: from A to E\n")
    assert [word for word in out.split() if word in STRATEGIES] == [*STRATEGIES]
    assert out.endswith("redundancy 2, seed 1\n")


def test_json_has_the_requested_strategies(capsys):
    given = ("--strategy", "paths", "--strategy", "mesh", "--redundancy", "1", "--json")
    code, out, _ = run(capsys, "compare", *TRIAL, *given)
    values = json.loads(out)
    assert code == 0
    assert [each["strategy"] for each in values] == ["paths", "mesh"]
    assert {(each["copies"], each["lost"], each["redundancy"]) for each in values} == {(3.0, 0, 1)}


def test_plots_are_drawn_with_a_bar_for_every_strategy(capsys, tmp_path):
    place = tmp_path / "new" / "pictures"
    code, _, err = run(capsys, "compare", *TRIAL, "--plots", str(place))
    assert (code, err) == (0, "")
    assert sorted(path.name for path in place.iterdir()) == [
        "busiest.svg",
        "control-frames.svg",
        "copies.svg",
        "delay.svg",
    ]
    picture = (place / "copies.svg").read_text()
    assert all(f">{name}</text>" in picture for name in STRATEGIES)


def test_broken_promise_is_printed_with_exit_code_1(capsys, monkeypatch):
    monkeypatch.setattr(Neighbours, "link_cost", lambda self, link: 2)  # counted twice per hop
    given = ("--trial", "spohn-2021", "--strategy", "mesh")
    code, out, err = run(capsys, "compare", *given)
    assert (code, err) == (1, "")
    assert "mesh: true distances: " in out


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("compete", "argument experiment: there is no 'compete'; there are compare, run;"),
        ("compare --trial x", "there is no trial 'x'; there are antonielli-tree-100,"),
        ("compare --strategy x", "argument --strategy: there is no 'x'; there are mesh,"),
        ("compare --plots /dev/null/x", "--plots /dev/null/x: "),
        ("compare --redundancy 0", "argument --redundancy: 0 must be from 1 to 16 parents;"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(given, problem, capsys):
    code, out, err = run(capsys, *given.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"hansa: {problem}")
