"""Digest of the sources of a result: what changes it and what does not."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hansa import source_digest as module
from hansa.source_digest import source_commit, source_digest

SOURCES = {
    "__init__.py": "",
    "main.py": "import sys\nfrom hansa.parts import wheel\n",
    "parts/__init__.py": "",
    "parts/wheel.py": "def turn():\n    from hansa.bolts import SIZE\n    return SIZE\n",
    "bolts.py": "SIZE = 8\n",
    "other.py": "import hansa.main\n",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in SOURCES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    monkeypatch.setattr(module, "__file__", str(tmp_path / "main.py"))
    source_digest.cache_clear()
    source_commit.cache_clear()
    yield tmp_path
    source_digest.cache_clear()
    source_commit.cache_clear()


@pytest.mark.parametrize("name", [name for name in SOURCES if name != "other.py"])
def test_change_of_an_imported_module_changes_the_digest(package: Path, name: str) -> None:
    before = source_digest("hansa.main")
    (package / name).write_text(SOURCES[name] + "CHANGED = 1\n")
    source_digest.cache_clear()
    assert source_digest("hansa.main") != before


def test_text_for_readers_keeps_the_digest(package: Path) -> None:
    before = source_digest("hansa.main")
    commented = SOURCES["bolts.py"].replace("8", "8  # as always") + '"""Of a bolt."""\n'
    (package / "bolts.py").write_text('"""Bolts."""\n' + commented)
    source_digest.cache_clear()
    assert source_digest("hansa.main") == before


def test_change_of_another_module_keeps_the_digest(package: Path) -> None:
    before = source_digest("hansa.main")
    (package / "other.py").write_text("")
    source_digest.cache_clear()
    assert source_digest("hansa.main") == before


def test_commit_is_that_of_the_checkout(package: Path) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(package), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert source_commit() is None
    git("init", "-q")
    source_commit.cache_clear()
    assert source_commit() is None  # a checkout of something else
    git("add", ".")
    git("commit", "-qm", "first")
    source_commit.cache_clear()
    commit = git("rev-parse", "--short=10", "HEAD")
    assert source_commit() == commit
    (package / "other.py").write_text("")
    source_commit.cache_clear()
    assert source_commit() == f"{commit}-dirty"
