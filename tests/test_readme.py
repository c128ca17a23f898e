"""What the README promises can be done: its commands run as they stand there."""

import re
import shlex
from pathlib import Path

import pytest

from hansa.cli.main import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [
    [shlex.split(line, comments=True) for line in block.splitlines() if line] for block in BLOCKS
]
SIMULATE = ["./run", "hansa", "simulate"]
SIMULATIONS = [command[2:] for block in COMMANDS for command in block if command[:3] == SIMULATE]


def test_two_commands_come_first_one_to_see_it_and_one_to_check_it():
    assert COMMANDS[0] == [["./run", "demo"], ["./run", "test"]]


def test_every_command_is_one_of_the_launcher():
    launcher = (ROOT / "run").read_text(encoding="utf-8")
    for block in COMMANDS:
        for program, command, *_ in block:
            assert program == "./run"
            assert re.search(rf"^run_{command}\(\)", launcher, flags=re.MULTILINE), command


@pytest.mark.parametrize("given", SIMULATIONS, ids=shlex.join)
def test_the_simulations_run_and_keep_all_promises(given, capsys):
    assert main(given) == 0
    assert "all promises kept" in capsys.readouterr().out


def test_the_demo_runs_to_its_end(capsys):
    assert main(["demo", "--no-report"]) == 0
    assert "broken" not in capsys.readouterr().out
