"""`./run` and the lock files it installs from."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from hansa import __version__

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = {path.stem: path.read_text(encoding="utf-8") for path in ROOT.glob("requirements/*.lock")}
COMMANDS = ["demo", "hansa", "test", "check", "bench", "package", "lock"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / "run", *arguments], capture_output=True, text=True, check=False)


def locked(lock: str) -> dict[str, str]:
    """Each requirement of a lock file, by name, with all that belongs to it on one line."""
    joined = LOCKS[lock].replace("\\\n", " ")
    requirements = [line for line in joined.splitlines() if line and not line.startswith("#")]
    return {line.partition("==")[0]: line for line in requirements}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in requirements}


def test_help_names_every_command_and_only_those():
    shown = run("--help")
    lines = re.findall(r"^  ([a-z]+) ", shown.stdout, flags=re.MULTILINE)
    assert (shown.returncode, list(dict.fromkeys(lines)), shown.stderr) == (0, COMMANDS, "")


def test_help_is_shown_without_a_command():
    assert run().stdout == run("--help").stdout


def test_unknown_command_is_one_line_and_exit_code_2():
    answer = run("tset")
    expected = "hansa: there is no command 'tset'; ./run --help lists them\n"
    assert (answer.returncode, answer.stdout, answer.stderr) == (2, "", expected)


def test_supported_python_versions_agree_everywhere():
    launcher = (ROOT / "run").read_text(encoding="utf-8")
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    (supported,) = re.findall(r"^supported='([\d. ]+)'", launcher, flags=re.MULTILINE)
    *others, newest = sorted(supported.split())
    prefix = "Programming Language :: Python :: "
    declared = [word.removeprefix(prefix) for word in PROJECT["project"]["classifiers"]]
    assert set(supported.split()) <= set(declared)
    assert f"Python {', '.join(others)} or {newest};" in readme


@pytest.mark.parametrize("lock", sorted(LOCKS))
def test_locked_requirements_have_one_version_and_hashes(lock):
    pinned = re.compile(r"[a-z0-9.-]+==[\w.]+( ; [^\\]+?)?( +--hash=sha256:[0-9a-f]{64})+")
    assert [line for line in locked(lock).values() if not pinned.fullmatch(line)] == []


@pytest.mark.parametrize("lock", sorted(LOCKS))
def test_lock_files_name_no_index(lock):
    assert re.findall(r"https?:|--index|--find-links|file:|[ =]/", LOCKS[lock]) == []


@pytest.mark.parametrize(
    ("lock", "declared"),
    [
        ("runtime", PROJECT["project"]["dependencies"]),
        ("dev", PROJECT["project"]["dependencies"]),
        ("dev", PROJECT["project"]["optional-dependencies"]["dev"]),
        ("embedded", PROJECT["project"]["optional-dependencies"]["embedded"]),
        ("spark", PROJECT["project"]["optional-dependencies"]["spark"]),
        ("build", PROJECT["build-system"]["requires"]),
        ("build", PROJECT["dependency-groups"]["build"]),
        ("tools", PROJECT["dependency-groups"]["tools"]),
    ],
)
def test_declared_requirements_are_locked(lock, declared):
    assert names(declared) - set(locked(lock)) == set()


@pytest.mark.parametrize("lock", ["build", "runtime", "embedded", "spark"])
def test_developer_lock_has_the_same_versions(lock):
    ours, theirs = _files(lock), _files("dev")
    both = ours.keys() & theirs.keys()
    assert {name: ours[name] for name in both} == {name: theirs[name] for name in both}


def _files(lock: str) -> dict[str, str]:
    """What is installed, by version and hashes; on which platforms may differ."""
    return {name: re.sub(r" ;.*?(?= +--hash)", "", text) for name, text in locked(lock).items()}


@pytest.mark.parametrize(
    ("command", "installed"),
    [
        ("simulate --campaign --seeds 0-9", "compiled"),
        ("simulate --topology ring:3 --runs 5", "compiled"),
        ("simulate --runs 5 --help", ""),
        ("simulate --scenario random", ""),
        ("experiment run sweep.toml", "spark compiled"),
        ("up --manager ring:3", "manager compiled_later"),
        ("up ring:3", "compiled_later"),
        ("up --help", ""),
        ("demo", "compiled_later"),
        ("agent node.toml", "compiled_later"),
        ("pipeline run --lake lake", "spark"),
    ],
)
def test_command_installs_the_parts_that_it_needs(tmp_path, command, installed):
    """`run_hansa` itself, with stand-ins for the installations."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "hansa").symlink_to("/bin/true")
    body = (ROOT / "run").read_text().partition("\nrun_hansa() {\n")[2].partition("\n}\n")[0]
    parts = ("spark", "manager", "compiled", "compiled_later")
    stubs = "".join(f"want_{part}() {{ echo {part}; }}\n" for part in parts)
    functions = f"need() {{ :; }}\n{stubs}run_hansa() {{\n{body}\n}}\n"
    script = f"{functions}venv='{tmp_path}'\nrun_hansa {command}"
    done = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == installed.split()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_fresh_checkout_is_set_up_once_by_concurrent_commands_and_repaired(tmp_path):
    checkout = tmp_path / "a checkout"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".git", ".venv*", "*cache*"))

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [checkout / "run", "hansa", "--version"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def answer(started: subprocess.Popen[str]) -> tuple[str, int]:
        out, err = started.communicate()
        assert (started.returncode, __version__ in out) == (0, True), out + err
        return err, err.count("setting up .venv")

    together = [start(), start()]
    assert sum(setups for _, setups in map(answer, together)) == 1
    assert answer(start()) == ("", 0)
    (checkout / ".venv" / "stamp-runtime").unlink()  # as a set-up that was cut short leaves it
    assert answer(start())[1] == 1


@pytest.mark.long
def test_python_newer_than_the_locks_causes_a_warning(tmp_path):
    """A launcher that covers only versions of the past, and has no lock files to install from."""
    text = (ROOT / "run").read_text(encoding="utf-8")
    launcher = tmp_path / "run"
    launcher.write_text(re.sub(r"(?m)^supported=.*$", "supported='3.10 3.9'", text))
    launcher.chmod(0o755)
    answer = subprocess.run([launcher, "hansa"], capture_output=True, text=True, check=False)
    first = answer.stderr.splitlines()[0]
    assert answer.returncode == 1
    assert re.fullmatch(
        r"hansa: Python 3\.\d+\.\d+ is newer than the versions of requirements/\*\.lock"
        r" \(3\.10 3\.9\); if the set-up fails, install one of those: \./run prefers it",
        first,
    )


@pytest.mark.long
@pytest.mark.timeout(600)
def test_python_without_the_module_venv_works(tmp_path):
    """As distributions have it that split Python: all modules but two, and pip."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    version = stdlib.name
    pips = [path for path in (stdlib / "site-packages").glob("pip*") if path.is_dir()]
    if not pips:
        pytest.skip(f"{stdlib} has no pip")
    python = tmp_path / "python" / "bin" / version
    library = tmp_path / "python" / "lib" / version
    (library / "site-packages").mkdir(parents=True)
    python.parent.mkdir()
    shutil.copy(Path(sys.executable).resolve(), python)
    for path in stdlib.iterdir():
        if path.name not in ("venv", "ensurepip", "site-packages"):
            (library / path.name).symlink_to(path)
    for path in pips:
        (library / "site-packages" / path.name).symlink_to(path)
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".git", ".venv*", "*cache*"))
    answer = subprocess.run(
        [checkout / "run", "hansa", "--version"],
        env={**os.environ, "PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.returncode, __version__ in answer.stdout) == (0, True), answer.stderr
    assert f"home = {python.parent}" in (checkout / ".venv" / "pyvenv.cfg").read_text()
