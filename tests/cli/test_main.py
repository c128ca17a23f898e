"""The `hansa` command: help, version, exit codes, errors in one line."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hansa import __version__, compiled_core
from hansa.cli import main as main_module
from hansa.cli.main import COMMANDS, HELP, main

HANSA = [sys.executable, "-m", "hansa.cli"]


@pytest.mark.parametrize("given", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_every_command(given, capsys):
    assert main(given) == 0
    assert capsys.readouterr().out == HELP
    for name, purpose in COMMANDS.items():
        assert f"  {name}" in HELP
        assert purpose in HELP


def test_version(capsys):
    assert main(["--version"]) == 0
    core = "compiled" if compiled_core.is_enabled() else "pure"
    assert capsys.readouterr().out == f"hansa {__version__} ({core})\n"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("simulat", "there is no command 'simulat'; did you mean 'simulate'? See `hansa --help`"),
        ("xyz", f"there is no command 'xyz'; there are {', '.join(COMMANDS)}."
         " See `hansa --help`"),
        ("--verbose", f"there is no command '--verbose'; there are {', '.join(COMMANDS)}."
         " See `hansa --help`"),
    ],
)  # fmt: skip
def test_unknown_command_is_one_line_and_exit_code_2(name, problem, capsys):
    assert main([name]) == 2
    assert capsys.readouterr() == ("", f"hansa: {problem}\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_with_examples(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: hansa {name}")
    assert f"examples:\n  hansa {name}" in out


def test_ctrl_c_ends_quietly(monkeypatch, capsys):
    def interrupted(given):
        raise KeyboardInterrupt

    monkeypatch.setattr(main_module, "_command", interrupted)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "hansa: stopped\n"


def test_internal_error_differs_from_bad_input(monkeypatch, capsys):
    def faulty(given):
        raise KeyError("core")

    monkeypatch.setattr(main_module, "_command", faulty)
    monkeypatch.delenv("HANSA_TRACEBACK", raising=False)
    assert main(["demo"]) == 70
    said = capsys.readouterr().err
    assert said.splitlines() == [
        "hansa: internal error: KeyError: 'core'",
        "hansa: please report it, with the output of the same command after HANSA_TRACEBACK=1",
    ]
    monkeypatch.setenv("HANSA_TRACEBACK", "1")
    assert main(["demo"]) == 70
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback (most recent call last):")
    assert shown.endswith(said)


# ---------------------------------------------------------------- as a process


def run(*given, **more):
    return subprocess.run([*HANSA, *given], capture_output=True, text=True, timeout=60, **more)


def test_exit_codes_of_a_process():
    good = run("simulate", "--topology", "ring:3")
    assert (good.returncode, good.stderr) == (0, "")
    bad = run("simulate", "--topology", "ring:2")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "hansa: topology 'ring:2': a ring needs at least 3 nodes, as in ring:3\n"


def test_help_is_fast():
    """Help must import neither the simulator nor rich."""
    code = "import sys, hansa.cli.main as m; m.main(['--help']); print(sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    loaded = out.stdout.rpartition("\n[")[2]
    assert "'argparse'" not in loaded
    assert "'rich'" not in loaded
    assert "'msgspec'" not in loaded


def test_help_of_a_command_is_fast():
    code = (
        "import sys, hansa.cli.simulate as s; s.make_parser().format_help();"
        " print(sorted(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "'argparse'" in out.stdout
    assert "'rich'" not in out.stdout
    assert "'msgspec'" not in out.stdout


def test_closed_stdout_is_not_an_error():
    reading, writing = os.pipe()
    os.close(reading)
    end = subprocess.run(
        [*HANSA, "simulate", "--list"], stdout=writing, stderr=subprocess.PIPE, timeout=60
    )
    os.close(writing)
    assert (end.returncode, end.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full disk to try")
@pytest.mark.parametrize("more", [[], ["--transcript", "/dev/full"]])
def test_full_disk_is_not_an_internal_error(more):
    with Path("/dev/full").open("w") as full:
        command = [*HANSA, "simulate", *more]
        end = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (end.returncode, end.stderr) == (74, "hansa: cannot write: no space left on device\n")


def test_terminal_without_unicode_is_not_an_error():
    end = run("demo", "--simulated", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (end.returncode, end.stderr) == (0, "")


@pytest.mark.parametrize("more", [[], ["--runs", "100"]])
def test_ctrl_c_stops_a_run_without_a_traceback(more, tmp_path):
    """The topology is a named pipe without data, so the run blocks until it is interrupted."""
    path = tmp_path / "links"
    os.mkfifo(path)
    process = subprocess.Popen(
        [*HANSA, "simulate", "--topology", f"file:{path}", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in a background
    )
    with path.open("w"):  # blocks until the run has opened it for reading
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"hansa: stopped\n")
