"""The archive of Spark's classes: written by the second command, used by later ones, optional."""

import os
from pathlib import Path

import pytest

from hansa.pipeline.class_archive import (
    ABANDONED_S,
    LOG_TO_STDERR,
    CommandKind,
    archive_options,
)

pytest.importorskip("pyspark")

HEAD = b"\xa8\xba\x0b\xf0"


@pytest.fixture
def java_home(tmp_path: Path) -> Path:
    own = tmp_path / "java" / "lib" / "server" / "classes.jsa"
    own.parent.mkdir(parents=True)
    own.write_bytes(HEAD)
    return tmp_path / "java"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "jars").mkdir()
    return tmp_path / "jars"


def written_by(options: list[str]) -> Path:
    assert options[:-1] == [*LOG_TO_STDERR]
    return Path(options[-1].removeprefix("-XX:ArchiveClassesAtExit="))


def options_of(
    directory: Path,
    java_home: Path,
    jars: tuple[str, ...] = ("a.jar",),
    kind: CommandKind = CommandKind.QUERY,
) -> list[str]:
    return archive_options(directory, java_home, [Path(jar) for jar in jars], kind, may_create=True)


def test_second_command_writes_the_archive_and_the_third_uses_it(directory, java_home):
    assert options_of(directory, java_home) == []
    written = written_by(options_of(directory, java_home))
    written.write_bytes(HEAD)
    used = directory / written.with_suffix("").name
    assert options_of(directory, java_home) == [*LOG_TO_STDERR, f"-XX:SharedArchiveFile={used}"]
    assert [path.name for path in directory.iterdir()] == [used.name]


def test_incomplete_archive_is_neither_used_nor_written_twice(directory, java_home):
    options_of(directory, java_home)
    written = written_by(options_of(directory, java_home))
    written.write_bytes(bytes(4))
    assert options_of(directory, java_home) == []


def test_archive_of_a_killed_jvm_is_removed_and_written_again(directory, java_home):
    options_of(directory, java_home)
    written = written_by(options_of(directory, java_home))
    written.write_bytes(bytes(4))
    long_ago = written.stat().st_mtime - 2 * ABANDONED_S
    os.utime(written, (long_ago, long_ago))
    assert written_by(options_of(directory, java_home)) == written
    assert not written.exists()


def test_other_jars_get_an_archive_of_their_own_that_replaces_the_first(directory, java_home):
    archives = []
    for jars in (("a.jar",), ("b.jar",)):
        options_of(directory, java_home, jars)
        written_by(options_of(directory, java_home, jars)).write_bytes(HEAD)
        archives.append(options_of(directory, java_home, jars)[-1])
    assert archives[0] != archives[1]
    assert [f"-XX:SharedArchiveFile={path}" for path in directory.iterdir()] == archives[1:]


def test_queries_and_updates_have_an_archive_each(directory, java_home):
    archives = []
    for kind in CommandKind:
        assert options_of(directory, java_home, kind=kind) == []
        written_by(options_of(directory, java_home, kind=kind)).write_bytes(HEAD)
        archives.append(options_of(directory, java_home, kind=kind)[-1])
    assert {f"-XX:SharedArchiveFile={path}" for path in directory.iterdir()} == {*archives}


def test_long_run_uses_an_archive_but_writes_none(directory, java_home):
    for _ in range(3):
        options = archive_options(directory, java_home, [], CommandKind.UPDATE, may_create=False)
        assert options == []
    assert [*directory.iterdir()] == []


def test_java_without_its_own_archive_and_missing_directory_do_without(directory, tmp_path):
    assert options_of(directory, tmp_path) == []
    (tmp_path / "lib" / "server").mkdir(parents=True)
    (tmp_path / "lib" / "server" / "classes.jsa").write_bytes(HEAD)
    assert options_of(tmp_path / "none", tmp_path) == []
    assert options_of(tmp_path / "none", tmp_path) == []
