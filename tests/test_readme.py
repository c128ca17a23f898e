"""The commands of the README run as they are written."""

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


def test_readme_starts_with_demo_and_test():
    assert COMMANDS[0] == [["./run", "demo"], ["./run", "test"]]


def test_launcher_knows_every_command():
    launcher = (ROOT / "run").read_text(encoding="utf-8")
    for block in COMMANDS:
        for program, command, *_ in block:
            assert program == "./run"
            assert re.search(rf"^run_{command}\(\)", launcher, flags=re.MULTILINE), command


@pytest.mark.parametrize("given", SIMULATIONS, ids=shlex.join)
def test_simulations_of_the_readme_keep_all_promises(given, capsys):
    assert main(given) == 0
    assert "all promises kept" in capsys.readouterr().out


def test_demo_completes(capsys):
    assert main(["demo", "--no-report"]) == 0
    assert "broken" not in capsys.readouterr().out
