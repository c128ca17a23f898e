"""docs/how-to/cluster-and-object-store.md works as it is written: a real S3 server, a Spark cluster
of three processes, and a machine without Java."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.pipeline.recordings import captured, journal, telemetry
from tests.pipeline.test_readme_example import path_without

from hansa.telemetry import schema
from hansa.testbed.mosquitto import free_port

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "cluster-and-object-store.md").read_text(encoding="utf-8")
TOOLS = ROOT / ".brokers" / "s3"
"""Where the S3 server is kept between runs."""
TIMEOUT_S = 1_500
SWEEP = """
topology = ["ring:3", "line:3"]
seeds = 4
duration = 2
"""
BLOCKS = re.findall(r"^```(\w+) ([^\n]+)\n(.*?)^```", PAGE, flags=re.M | re.S)


def blocks(section: str) -> tuple[list[str], str]:
    """Return the commands of a section, and the output of the last ones."""
    names = [name for _, name, _ in BLOCKS]
    last = max(number for number, name in enumerate(names) if name == section)
    assert names[last + 1] == "output"
    return [text for _, name, text in BLOCKS if name == section], BLOCKS[last + 1][2]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory as the page expects it: a checkout with recordings."""
    for node in (1, 2, 3):
        messages = [captured(number, "plant/1/temp") for number in range(1, 101)]
        journal(tmp_path / "run-1" / str(node), node, messages)
        records: list[schema.AnyRecord] = [schema.NodeStarted(1, f"n{node}", "1")]
        telemetry(tmp_path / "run-1" / f"t{node}", node, [*records, schema.LinkUp(2, node % 3 + 1)])
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for path, program in (("run", f'shift\nexec "{sys.executable}" -m hansa.cli "$@"'),
                          (".venv/bin/python", f'exec "{sys.executable}" "$@"')):  # fmt: skip
        (tmp_path / path).write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / path).chmod(0o755)
    return tmp_path


class Shell:
    """Runs commands of the page; programs that they leave running end with it."""

    def __init__(self, place: Path, environment: Mapping[str, str]) -> None:
        self.place = place
        self.environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **environment}
        self._groups: list[int] = []

    def run(self, *commands: str) -> tuple[int, str, str]:
        """Return exit code, output and errors."""
        out, errors = self.place / "out", self.place / "errors"
        with out.open("wb") as first, errors.open("wb") as second:
            process = subprocess.Popen(
                ["/bin/bash", "-e", "-c", "".join(commands)],
                cwd=self.place,
                env=self.environment,
                stdout=first,
                stderr=second,
                start_new_session=True,
            )
        self._groups.append(process.pid)
        code = process.wait(TIMEOUT_S)
        return code, out.read_text(), errors.read_text()

    def end(self) -> None:
        for group in self._groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.fixture
def shell(place: Path) -> Iterator[Shell]:
    started = Shell(place, {})
    yield started
    started.end()


# ---------------------------------------------------------------- object store


@pytest.fixture
def store(shell: Shell) -> list[str]:
    """The commands of the section, on a free port, with the server of an earlier run."""
    commands, _ = blocks("object-store")
    build, *_ = commands[0].splitlines(keepends=True)
    if shutil.which("go") is None:
        pytest.skip("Go is not installed, so the S3 server cannot be built")
    if not (TOOLS / "versitygw").exists():
        code, _, errors = shell.run(build)
        if code:
            pytest.skip(f"the S3 server cannot be built: {errors.strip().splitlines()[-1]}")
        TOOLS.mkdir(parents=True, exist_ok=True)
        (shell.place / "s3" / "versitygw").rename(TOOLS / "versitygw")
    (shell.place / "s3").mkdir(exist_ok=True)
    (shell.place / "s3" / "versitygw").symlink_to(TOOLS / "versitygw")
    # There is no metadata service of a cloud to ask for credentials.
    shell.environment["AWS_EC2_METADATA_DISABLED"] = "true"
    port = str(free_port())
    return [text.replace(build, "").replace("7070", port) for text in commands]


@pytest.mark.long
@pytest.mark.timeout(TIMEOUT_S)
def test_tables_are_in_an_object_store(shell, store):
    code, out, errors = shell.run(*store)
    assert code == 0, errors
    assert out == blocks("object-store")[1]
    assert (shell.place / "buckets/federation/lake/silver/messages/_delta_log").is_dir()

    *prepare, commands = store
    update, ask = commands.splitlines(keepends=True)
    journal(shell.place / "run-1" / "1", 1, [captured(n, "plant/2/temp") for n in range(101, 151)])
    code, out, errors = shell.run(prepare[1], update, ask)
    assert code == 0, errors
    assert sorted(out.splitlines()) == ["plant/1/temp,300", "plant/2/temp,50", "topic,messages"]

    present = sorted((shell.place / "buckets").rglob("*"))
    mistakes = {
        "s3a://federation/none": "s3a://federation/none is not a lake; ",
        "s3a://nowhere/lake": "cannot access s3a://nowhere/lake: ",
    }
    for lake, message in mistakes.items():
        wrong = ask.replace("s3a://federation/lake", lake)
        assert_one_sentence(shell.run(prepare[1], wrong), message)
    for change in ("AWS_SECRET_ACCESS_KEY=wrong", "-n AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY"):
        answer = shell.run(prepare[1], f"export {change}\n", ask)
        assert_one_sentence(answer, "cannot access s3a://federation/lake: ")
    assert sorted((shell.place / "buckets").rglob("*")) == present


def assert_one_sentence(answer: tuple[int, str, str], beginning: str) -> None:
    code, out, errors = answer
    assert (code, out) == (2, ""), errors
    messages = [line for line in errors.splitlines() if line.startswith("hansa: ")]
    assert len(messages) == 1, errors
    assert messages[0].startswith(f"hansa: {beginning}")
    assert "Traceback" not in errors


# ---------------------------------------------------------------- cluster, no Java


@pytest.mark.long
@pytest.mark.timeout(TIMEOUT_S)
def test_pipeline_runs_on_two_workers_with_directories_of_their_own(shell):
    commands, expected = blocks("cluster")
    port = str(free_port())
    code, out, errors = shell.run(*(text.replace("7077", port) for text in commands))
    assert code == 0, errors
    assert out == expected

    # Other tables, and simulations, on the same cluster.
    (shell.place / "sweep.toml").write_text(SWEEP)
    master = f"--master spark://127.0.0.1:{port}"
    sql = "select (select count(*) from nodes) nodes, (select count(*) from links) links"
    code, out, errors = shell.run(
        f"./run hansa pipeline query --lake lake --json '{sql}'\n",
        f"./run hansa experiment run sweep.toml --lake lake {master} --json\n",
    )
    assert code == 0, errors
    counts, summary = out.split("\n", 1)
    assert json.loads(counts) == {"nodes": 3, "links": 3}
    cases = [(row["topology"], row["cases"]) for row in json.loads(summary)]
    assert cases == [("line:3", 4), ("ring:3", 4)]
    for number in (1, 2):  # both workers ran executors
        assert list((shell.place / f"work-{number}").glob("app-*"))
        assert (shell.place / f"local-{number}").is_dir()


@pytest.mark.long
@pytest.mark.timeout(TIMEOUT_S)
def test_pipeline_runs_without_java(shell):
    shell.environment["PATH"] = path_without(shell.place / "programs", "java")
    shell.environment["XDG_CACHE_HOME"] = str(shell.place / "cache")
    shell.environment.pop("JAVA_HOME", None)
    commands, expected = blocks("no-java")
    code, out, errors = shell.run(*commands)
    assert code == 0, errors
    assert out == expected
    assert list((shell.place / "cache").glob("hansa-java-*"))  # the Java of the Python package
