"""The shape of the source tree: who may import whom, what nobody may import, how long is long."""

import ast
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "hansa"
MODULES = sorted(PACKAGE.rglob("*.py"))

LINES_MAX = 600  # docs/style.md, rule 16
RUNS_CODE_WHEN_READ = {"dill", "marshal", "pickle", "shelve"}
NAMES_NOTHING = {"common.py", "helpers.py", "misc.py", "util.py", "utils.py"}


def name(module: Path) -> str:
    return str(module.relative_to(PACKAGE))


def imported(module: Path) -> set[str]:
    """The top-level packages that a module imports, wherever in it the import stands."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


@pytest.fixture
def loggers() -> Iterator[None]:
    """Enable the loggers again that the linter disables when it configures logging for itself."""
    enabled = [each for each in _all_loggers() if not each.disabled]
    yield
    for each in enabled:
        each.disabled = False


def _all_loggers() -> list[logging.Logger]:
    known = logging.root.manager.loggerDict.values()
    return [each for each in known if isinstance(each, logging.Logger)]


@pytest.mark.usefixtures("loggers")
def test_imports_only_go_down(capsys):
    status = lint_imports(str(ROOT / "pyproject.toml"), no_cache=True, no_logo=True)
    assert status == 0, capsys.readouterr().out


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_no_module_reads_formats_that_can_run_code(module):
    assert imported(module) & RUNS_CODE_WHEN_READ == set()


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_a_module_is_one_idea_of_readable_length(module):
    lines = len(module.read_text(encoding="utf-8").splitlines())
    assert lines <= LINES_MAX, f"{name(module)} has {lines} lines; split it by idea (rule 16)"
    assert module.name not in NAMES_NOTHING, f"{name(module)} is not named after an idea (rule 16)"
