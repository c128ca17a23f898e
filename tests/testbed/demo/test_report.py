"""The report of the demo: tables and page agree with the printed results."""

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hansa.console.terminal import console
from hansa.errors import UsageError
from hansa.telemetry.reader import read_rows
from hansa.testbed.demo import readings, report
from hansa.testbed.demo.healing import OutageMeasurement
from hansa.testbed.demo.output import DemoOutput
from hansa.testbed.demo.report import DemoDirectory, DemoRecord, Event, explain_difference

DEMO = [sys.executable, "-m", "hansa.cli", "demo"]
NODES = ("0" * 15 + "1", "0" * 15 + "2")

needs_spark = pytest.mark.skipif(
    importlib.util.find_spec("pyspark") is None, reason="Spark is not installed"
)


@pytest.mark.parametrize(
    ("counted", "said", "done", "reason"),
    [
        (5, 5, "", "equal"),
        (5, 4, "kill agent 1", "the last 1 before kill -9 were not written yet"),
        (5, 7, "kill broker 2", "2 were published to the broker as it was killed"),
        (5, 4, "", None),
        (1_002, 1, "kill agent 1", None),
        (5, 7, "kill agent 1", None),
        (5, 4, "kill broker 2", None),
    ],
)
def test_difference_is_explained_only_by_a_fault(counted, said, done, reason):
    assert explain_difference(counted, said, done) == reason


# ---------------------------------------------------------------- what the demo writes down


def test_every_fault_is_recorded(tmp_path):
    account = DemoRecord(tmp_path)
    for what in ("kill agent", "kill broker"):  # both at the broker whose agent is the core
        account.record_fault("2", Event(what, 0.0), NODES[1])
    recorded = [row.columns() for row in read_rows(tmp_path / "demo")]
    assert [(row["disturbance"], row["incarnation"]) for row in recorded] == [
        ("kill agent", 1),
        ("kill broker", 2),
    ]


def test_observation_is_recorded_as_it_was_counted(tmp_path):
    account = DemoRecord(tmp_path)
    event = Event("kill agent 0", 0.0, time_ns=7)
    account.observe(
        "2", event, NODES, OutageMeasurement(resumed_s=0.058, published=241, lost=2, duplicates=1)
    )
    (row,) = read_rows(tmp_path / "demo")
    recorded = row.columns()
    assert {
        name: recorded[name] for name in ("time_ns", "disturbance", "origin_id", "target_id")
    } == {
        "time_ns": 7,
        "disturbance": "kill agent 0",
        "origin_id": NODES[0],
        "target_id": NODES[1],
    }
    counts = [recorded[name] for name in ("published", "arrived", "duplicates", "interruption_s")]
    assert counts == [241, 239, 1, 0.058]
    assert (account.expected, account.received_counts) == ({"2": 241}, {"2": 240})


def test_reading_names_its_site_and_number():
    assert readings.source_of(readings.temperature(2)(17)) == (2, 17)


# ---------------------------------------------------------------- the directory


def test_directory_of_an_earlier_demo_is_replaced(tmp_path):
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    for name in ("0", "1"):
        (recorded / name).mkdir()
        DemoDirectory(tmp_path / "out").fill(recorded)
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == [
        *("0", "1", "agents", "payloads.toml")
    ]


def test_directory_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UsageError) as error:
        DemoDirectory(tmp_path)
    assert str(error.value) == (
        f"{tmp_path} contains 'thesis.tex', which is not from a demo; name another directory: --out"
    )


@pytest.mark.parametrize("name", ["file", "no/such"])
def test_unwritable_directory_is_refused_before_the_demo(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write to"):
        DemoDirectory(tmp_path / name)


# ---------------------------------------------------------------- with and without Spark


def test_demo_without_spark_prints_the_command_for_the_report(tmp_path, monkeypatch, capsys):
    failing = [sys.executable, "-c", "raise SystemExit(2)"]
    monkeypatch.setattr(report, "command_prefix", lambda: failing)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    place = DemoDirectory(tmp_path / "out")
    assert report.write_report(DemoOutput(console()), DemoRecord(tmp_path), place)
    *said, again = capsys.readouterr().out.strip().splitlines()
    text = " ".join(line.strip() for line in said)
    assert "No table of readings and no report, because Spark is not installed" in text
    words = shlex.split(again)
    assert words[:4] == ["hansa", "report", "--lake", str(place.lake)]
    assert words[-1] == str(place.agents)


def test_failing_report_with_spark_fails_the_demo(tmp_path, monkeypatch, capsys):
    failing = [sys.executable, "-c", "raise SystemExit(1)"]
    monkeypatch.setattr(report, "command_prefix", lambda: failing)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert not report.write_report(
        DemoOutput(console()), DemoRecord(tmp_path), DemoDirectory(tmp_path / "out")
    )
    assert "that failed, see above" in capsys.readouterr().out


@needs_spark
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("mosquitto")
def test_demo_stopped_during_the_report_cleans_up(tmp_path):
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen(
        DEMO,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONUNBUFFERED": "1"},
    )
    assert process.stderr is not None
    said = next(line for line in process.stderr if "bronze" in line or "hansa:" in line)
    assert "bronze" in said
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert (process.returncode, rest.splitlines()[-1]) == (130, "hansa: stopped")
    found = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True)
    assert found.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]


@needs_spark
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("mosquitto")
def test_tables_and_report_agree_with_what_the_demo_printed(tmp_path):
    done = subprocess.run(
        DEMO,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "160"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["hansa-demo"]
    page = (tmp_path / "hansa-demo" / "report.html").read_text()
    assert observations_printed(done.stdout) == observations_on(page)
    delivered = re.findall(
        r"^ *(\d) +([\d,]+) +([\d,]+) +([\d,]+) +(equal|the last .*?|[\d,]+ were .*?) *$",
        done.stdout,
        re.MULTILINE,
    )
    assert [row[0] for row in delivered] == ["0", "1", "2"], done.stdout
    assert "equal" in [row[4] for row in delivered]  # one of the three had no fault
    published, got = (sum(number(row[column]) for row in delivered) for column in (1, 2))
    assert f"<b>{got:,} of {published:,}</b><span>arrived at clients of other brokers" in page
    by_site = re.findall(
        r"^ plant/line1/temp +(\d) +(\d+) +([\d.]+) +([\d.]+) +([\d.]+) *$",
        done.stdout,
        re.MULTILINE,
    )
    assert [row[0] for row in by_site] == ["0", "1", "2"], done.stdout
    assert all(float(low) <= float(mean) <= float(high) for *_, mean, low, high in by_site)
    total = sum(int(row[1]) for row in by_site)
    assert f"All {total:,} readings that the sensors published are in the table" in done.stdout
    assert_query_shows_the_table_again(done.stdout, tmp_path, [row[1] for row in by_site])


def assert_query_shows_the_table_again(printed: str, cwd: Path, counts: list[str]) -> None:
    (line,) = re.findall(r"^ *(hansa pipeline query .*)$", printed, re.MULTILINE)
    words = [sys.executable, "-m", "hansa.cli", *shlex.split(line)[1:]]
    again = subprocess.run(words, cwd=cwd, capture_output=True, text=True)
    assert re.findall(r"^ plant/line1/temp +\d +(\d+) ", again.stdout, re.MULTILINE) == counts


def number(text: str) -> int:
    return int(text.replace(",", ""))


def observations_printed(text: str) -> set[tuple[str, ...]]:
    """Return event, pair, interruption, losses, publications and duplicates of the summary."""
    found = re.findall(
        r"^ ((?:kill|start) \w+ \d), (\d) to (\d) +interruption (.+); (\d+) of (\d+) lost,"
        r" (\d+) twice *$",
        text.partition("measured result")[2],
        re.MULTILINE,
    )
    assert len(found) == 6, text
    return set(found)


def observations_on(page: str) -> set[tuple[str, ...]]:
    cells = "".join(rf"<td>({cell})</td>" for cell in ("(?:kill|start)[^<]*", *["[^<]*"] * 6))
    found = set()
    for row in re.findall(f"<tr>{cells}</tr>", page):
        what, pair, published, _, lost, twice, lasted = row
        one, other = pair.split(" → ")
        counts = (str(number(each)) for each in (lost, published, twice))
        found.add((what, one, other, lasted, *counts))
    return found
