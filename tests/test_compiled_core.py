"""The compiled core: when a build is loaded, and what the compiler depends on."""

import ast
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from tools import compile_core

from hansa import compiled_core
from hansa.compiled_core import PURE, core_digest, find_build, source_files

SOURCE = Path("protocol/node.py")


@pytest.fixture(params=["src/hansa/_compiled", ".build"], ids=["installed", "checkout"])
def package(tmp_path, monkeypatch, request):
    """A small package with a build of its sources."""
    package = tmp_path / "src" / "hansa"
    single = [name for name in compiled_core.COMPILED if name.endswith(".py")]
    for name in (*compiled_core.IMPORTED, *single, SOURCE):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("value = 1\n")
    builds = tmp_path / request.param
    monkeypatch.setattr(compiled_core, "PACKAGE", package)
    monkeypatch.setattr(compiled_core, "PLACES", (package / "_compiled", tmp_path / ".build"))
    build = builds / f"{core_digest()}-tools"
    build.mkdir(parents=True)
    (build / "modules").write_text("hansa.protocol.node\n")
    return package


def test_build_of_the_sources_is_found(package):
    build = find_build()
    assert build is not None and build.name == f"{core_digest()}-tools"


def test_newest_of_several_builds_is_found(package):
    build = find_build()
    assert build is not None
    newer = build.with_name(f"{core_digest()}-a-newer-one")
    newer.mkdir()
    os.utime(build, (1, 1))
    assert find_build() == newer


@pytest.mark.parametrize("content", [None, b"\x7fELF"], ids=["missing", "torn"])
def test_damaged_build_is_named_and_not_used(package, monkeypatch, capsys, content):
    monkeypatch.delenv(PURE, raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, compiled_core.LIBRARY, raising=False)
    build = find_build()
    assert build is not None
    if content is not None:
        (build / f"{compiled_core.LIBRARY}{compiled_core.SUFFIX}").write_bytes(content)
    compiled_core.enable()
    assert not compiled_core.is_enabled()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("hansa: the compiled core cannot be loaded, so Python interprets it (")
    assert line.endswith(f"to build it again, remove {build}")


@pytest.mark.parametrize("name", [SOURCE, Path("errors.py")])
def test_build_of_other_sources_is_not_found(package, name):
    (package / name).write_text("value = 2\n")
    assert find_build() is None


def test_build_of_fewer_sources_is_not_found(package):
    (package / "protocol" / "new.py").write_text("")
    assert find_build() is None


def test_modules_of_a_build_are_extension_modules(package):
    build = find_build()
    assert build is not None
    finder = compiled_core.CompiledFinder(build)
    spec = finder.find_spec("hansa.protocol.node")
    assert spec is not None and spec.origin == str(build / f"hansa.protocol{compiled_core.SUFFIX}")
    assert finder.find_spec("hansa.protocol.model") is None


def test_variable_switches_it_off(package, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.setenv(PURE, "1")
    compiled_core.enable()
    assert not compiled_core.is_enabled()
    monkeypatch.delenv(PURE)
    monkeypatch.setitem(sys.modules, compiled_core.LIBRARY, ModuleType("loaded"))
    compiled_core.enable()
    assert compiled_core.is_enabled()
    compiled_core.disable()
    assert sys.meta_path == []


@pytest.mark.parametrize(("value", "core"), [("1", "pure"), ("", "compiled")])
def test_version_says_which_core_runs(value, core):
    if core == "compiled" and find_build() is None:
        pytest.skip("there is no build of these sources")
    command = [sys.executable, "-m", "hansa.cli", "--version"]
    shown = subprocess.check_output(command, env={**os.environ, PURE: value}, text=True)
    assert shown.endswith(f" ({core})\n")


def test_both_cores_produce_the_same_transcript(tmp_path):
    if find_build() is None:
        pytest.skip("there is no build of these sources")
    transcripts = {}
    for core, value in (("pure", "1"), ("compiled", "")):
        file = tmp_path / core
        options = ("--topology", "grid:3x3", "--faults", "crashes=2,cuts=2", "--seed", "7")
        command = [sys.executable, "-m", "hansa.cli", "simulate", *options, "--transcript", file]
        subprocess.run(command, env={**os.environ, PURE: value}, check=True, capture_output=True)
        transcripts[core] = file.read_text()
    assert transcripts["compiled"] == transcripts["pure"] != ""


def test_digest_includes_everything_that_compiled_modules_import():
    known = set(source_files())
    waiting, found = list(known), set(known)
    while waiting:
        new = _imported_files(waiting.pop()) - found
        waiting += new
        found |= new
    assert found - known == set()


def _imported_files(path: Path) -> set[Path]:
    names = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    ours = [name.split(".") for name in names if name.startswith("hansa.")]
    files = [compiled_core.PACKAGE.parent.joinpath(*words).with_suffix(".py") for words in ours]
    return {file for file in files if file.is_file()}


def test_missing_compiler_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv(PURE, raising=False)
    monkeypatch.setattr(sys, "argv", ["compile_core"])
    assert compile_core.main() == 0
    assert capsys.readouterr().err == (
        "hansa: the core is not compiled, so Python interprets it:"
        " there is no C compiler (Debian: apt-get install gcc)\n"
    )


def test_disk_that_cannot_be_written_is_one_line(monkeypatch, capsys, tmp_path):
    (tmp_path / "builds").write_text("a file, which cannot hold builds")
    monkeypatch.setattr(compile_core, "BUILDS", tmp_path / "builds")
    monkeypatch.setattr(compile_core, "find_compiler", lambda: "cc")
    monkeypatch.setattr(compile_core, "describe_tools", lambda compiler: [])
    monkeypatch.delenv(PURE, raising=False)
    monkeypatch.setattr(sys, "argv", ["compile_core"])
    assert compile_core.main() == 0
    assert re.fullmatch(
        "hansa: the core is not compiled, so Python interprets it: .*File exists.*\n",
        capsys.readouterr().err,
    )


def test_build_does_not_wait_for_another_longer_than_its_limit(tmp_path):
    with compile_core.lock(tmp_path / "lock", time.monotonic()):
        with pytest.raises(compile_core.BuildProblem, match="another ./run still compiles it"):
            with compile_core.lock(tmp_path / "lock", time.monotonic()):
                pass


@pytest.mark.parametrize(
    ("code", "output", "kind"),
    [
        (1, "driver.c:1:1: error: expected expression", compile_core.BuildFailure),
        (1, "error: x.s: No space left on device", compile_core.BuildProblem),
        (1, "fatal error: Killed signal terminated program cc1", compile_core.BuildProblem),
        (-9, "", compile_core.BuildProblem),
    ],
    ids=["sources", "disk", "killed compiler", "killed"],
)
def test_only_errors_of_the_sources_are_remembered(code, output, kind):
    assert type(compile_core.problem_of("cc", code, output)) is kind


def test_compiler_accepts_the_sources():
    """`./run test` compiles first. A build that was stopped by its time limit is no failure."""
    failures = compile_core.BUILDS.glob(f"failed-{core_digest()}-*")
    assert [failure.read_text() for failure in failures] == []
