"""The simulated demo."""

import io

import pytest
from rich.console import Console

from hansa.cli.main import main
from hansa.simulator.run import Simulation
from hansa.testbed.demo import output
from hansa.testbed.demo.drawing import draw_grid


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_simulated_demo_succeeds_with_any_seed(seed, capsys):
    assert main(["demo", "--simulated", "--seed", seed]) == 0
    out = capsys.readouterr().out
    assert f"seed {seed}." in out
    assert "the protocol code of the live agent in virtual time" in out
    assert "each broker got it once" in out
    assert "2 to 5 min (Machado 2023" in out
    assert " ms " in out
    assert "0 twice" in out
    assert "broken" not in out


def test_broken_promise_is_printed(monkeypatch, capsys):
    run = Simulation.run

    def broken(self):
        self.violations.append("no loop: something")
        return run(self)

    monkeypatch.setattr(Simulation, "run", broken)
    assert main(["demo", "--simulated"]) == 1
    assert "broken promise: no loop: something" in capsys.readouterr().out


def test_output_pauses_on_a_terminal(monkeypatch):
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    output.DemoOutput(Console(force_terminal=True, file=io.StringIO())).say("text")
    output.DemoOutput(Console(force_terminal=False, file=io.StringIO())).say("text")
    assert waited == [output.PARAGRAPH_PAUSE_S]


def test_grid_is_drawn_with_its_mesh():
    drawn = draw_grid(2, 3, lambda node: "◆" if node == 4 else "○", {(0, 1), (1, 4)})
    assert drawn == [
        "○ 0  ━━━ ○ 1  ─── ○ 2",
        "│        ┃        │",
        "○ 3  ─── ◆ 4  ─── ○ 5",
    ]


def test_bad_seed_is_refused(capsys):
    assert main(["demo", "--seed", "x"]) == 2
    assert capsys.readouterr().err == (
        "hansa: argument --seed: 'x' is not a whole number; see `hansa demo --help`\n"
    )
