"""The demo's page: its numbers are the clients', or it says exactly why not."""

import importlib.util
import re
import subprocess
import sys

import pytest

from hansa.cli.demo_report import Account, difference
from hansa.telemetry.reader import rows


@pytest.mark.parametrize(
    ("counted", "said", "done", "reason"),
    [
        (5, 5, "", "the same"),
        (5, 4, "kill agent 1", "the 1 missing were its last before kill -9, not written down yet"),
        (5, 7, "kill broker 2", "the 2 more were handed to the broker as it was killed"),
        (5, 4, "", None),
        (1_002, 1, "kill agent 1", None),
        (5, 7, "kill agent 1", None),
        (5, 4, "kill broker 2", None),
    ],
)
def test_a_difference_is_explained_by_what_was_done_or_by_nothing(counted, said, done, reason):
    assert difference(counted, said, done) == reason


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("mosquitto")
@pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="Spark is not installed")
def test_the_demo_ends_with_a_report_that_agrees_with_its_clients(tmp_path):
    page = tmp_path / "report.html"
    command = [sys.executable, "-m", "hansa.cli", "demo", "--report", str(page)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^ *(\d) +([\d,]+) +([\d,]+) +(the .*?) *$", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == ["0", "1", "2"], done.stdout
    assert "the same" in [row[3] for row in rows]  # to one of the three nothing was done
    assert "How long does" in page.read_text()


def test_every_fault_stands_in_the_records_for_itself(tmp_path):
    account = Account(tmp_path)
    for what in ("kill agent", "kill broker"):  # both at the broker whose agent is the core
        account.disturb("2", what, "0" * 15 + "2")
    told = [row.columns() for row in rows(tmp_path / "faults")]
    assert [(row["what"], row["incarnation"]) for row in told] == [
        ("kill agent", 1),
        ("kill broker", 2),
    ]
