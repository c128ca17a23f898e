"""Plays mutants of `hansa.delivery` against its tests and prints the mutation score.

Each mutant runs in a forked process, with the tests that reach its line, fastest first, up to the
first failure. The tests are collected once: a mutant of a function replaces the code of that
function. Only a mutant of a module or class imports the package and the tests anew.

Results are kept in a file, so an interrupted run continues: a killed mutant counts until its module
changes, a survivor until the module or the tests change. Mutants that cannot be noticed are listed
in `equivalent.toml`, each with its reason.
"""

import argparse
import gc
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import resource
import signal
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import coverage
import pytest

from tests.mutation.mutants import Mutant, make_mutants

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/hansa/delivery"
TESTS = ROOT / "tests/delivery"
EQUIVALENT = Path(__file__).with_name("equivalent.toml")

TEST_LIMIT_S = 5.0
"""Seconds of CPU of one test after which a mutant counts as killed: it loops. The slowest test
needs about one."""

MEMORY_MAX = 4 << 30
"""Bytes of memory that a mutant that loops may take."""

PRELOADED = (
    "hypothesis",
    "pytest_cov.plugin",
    "pytest_timeout",
    "xdist.plugin",
    "hansa.testbed.mosquitto",
    "hansa.protocol.node",
    "hansa.journal.records",
)
"""Modules that every test run needs, imported before the fork. None may import the package."""

PYTEST_OPTIONS = (
    *("-x", "-q", "-p", "no:cacheprovider", "--no-cov"),
    *("-p", "xdist.plugin", "-p", "pytest_cov.plugin", "-p", "pytest_timeout"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # plugins are imported before the fork
)


_NOT_PLAYED = (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED)
_FAILED_CALL = 70
"""Exit code of a forked process whose function raised an exception."""


@dataclass(frozen=True, slots=True)
class PlacedMutant:
    """A mutant, its module, and the file of the module."""

    module: str
    path: Path
    mutant: Mutant

    @property
    def name(self) -> str:
        return f"{self.module}: {self.mutant.name}"

    @property
    def function(self) -> str:
        """The qualified name of the changed function, empty for code of a module or class."""
        return self.mutant.function


def all_mutants() -> list[PlacedMutant]:
    """Return the mutants of every module of the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parents[1]).with_suffix("").parts
        module = ".".join(parts).removesuffix(".__init__")
        found += [PlacedMutant(module, path, each) for each in make_mutants(path.read_text())]
    return found


# ---------------------------------------------------------------- which tests reach which line


class _ContextPlugin:
    """Tells coverage which test runs, and measures the tests."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._measured.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration


class TestSelection:
    """The tests of the package, and the lines that they reach."""

    def __init__(self, seconds: dict[str, float], tests_by_line: dict[str, dict[str, list[str]]]):
        """`tests_by_line` has the tests of every line of every file."""
        self._seconds = seconds
        self._tests_by_line = tests_by_line

    @classmethod
    def load(cls, cache: Path) -> "TestSelection":
        """Return the selection of an earlier run with the same sources and tests, or measure."""
        digest = _digest((PACKAGE, TESTS))
        if cache.exists():
            saved = json.loads(cache.read_text())
            if saved["digest"] == digest:
                return cls(saved["seconds"], saved["tests_by_line"])
        sys.stdout.write("measuring which tests reach which lines\n")
        sys.stdout.flush()
        if _run_in_fork(lambda: _measure_tests(cache, digest)) != 0:
            sys.exit("hansa: the tests fail without a mutant: run ./run test tests/delivery")
        return cls.load(cache)

    def tests_for(self, path: Path, line: int) -> list[str]:
        """Return the tests that reach a line, fastest first. A line of the module itself runs when
        it is imported, so that all tests may depend on it."""
        tests = self._tests_by_line.get(str(path), {}).get(str(line), [])
        chosen = [test for test in tests if test] or list(self._seconds)
        return sorted(chosen, key=lambda test: (self._seconds[test], test))


def _measure_tests(cache: Path, digest: str) -> int:
    measured = coverage.Coverage(data_file=None, source_pkgs=["hansa.delivery"], branch=False)
    plugin = _ContextPlugin(measured)
    measured.start()
    code = pytest.main([*PYTEST_OPTIONS, str(TESTS)], plugins=[plugin])
    measured.stop()
    data = measured.get_data()
    tests_by_line = {
        path: {
            str(line): [name for name in names if name]
            for line, names in data.contexts_by_lineno(path).items()
        }
        for path in data.measured_files()
    }
    text = {"digest": digest, "seconds": plugin.seconds, "tests_by_line": tests_by_line}
    cache.write_text(json.dumps(text))
    return int(code)


def _digest(places: Sequence[Path]) -> str:
    state = hashlib.blake2b(digest_size=8)
    for place in places:
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            state.update(path.name.encode() + path.read_bytes())
    return state.hexdigest()


# ---------------------------------------------------------------- play one mutant


class _MutantFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module with other code."""

    def __init__(self, name: str, path: Path, code: CodeType) -> None:
        self._name, self._path, self._code = name, path, code

    def find_spec(
        self, fullname: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin=str(self._path))

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)  # noqa: S102  the mutated module


class _LimitPlugin:
    """Ends the process if a test takes too long."""

    def pytest_runtest_logstart(self) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, TEST_LIMIT_S)


def is_killed(each: PlacedMutant, tests: Sequence[str]) -> bool:
    """Whether a test fails with this mutant, with the package and the tests imported anew."""

    def play() -> int:
        code = compile(each.mutant.make_tree(), str(each.path), "exec")
        sys.meta_path.insert(0, _MutantFinder(each.module, each.path, code))
        return int(pytest.main([*PYTEST_OPTIONS, *tests], plugins=[_LimitPlugin()]))

    code = _run_in_fork(play)
    if code in _NOT_PLAYED:
        sys.exit(f"hansa: pytest ends with {pytest.ExitCode(code)!r} for {each.name}")
    return code != 0


class FunctionPlayer:
    """Plays mutants of functions in a session of pytest that has collected the tests."""

    def __init__(self, mutants: Sequence[PlacedMutant], results: "Results", tests: TestSelection):
        self._mutants, self._results, self._tests = mutants, results, tests

    def play(self) -> int:
        """Play the mutants and keep their results; return the exit code of pytest."""
        return int(pytest.main([*PYTEST_OPTIONS, "-s", str(TESTS)], plugins=[self, _LimitPlugin()]))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        functions = find_functions()
        gc.collect()
        gc.freeze()
        for each in self._mutants:
            found = functions[str(each.path), each.function]
            chosen = [items[name] for name in self._tests.tests_for(each.path, each.mutant.line)]
            code = _run_in_fork(lambda: self._play(each, found, session, chosen))  # noqa: B023
            if code == _FAILED_CALL:
                raise RuntimeError(f"could not play {each.name}")
            self._results.add(each, code != 0)
        return True

    @staticmethod
    def _play(
        each: PlacedMutant,
        found: FunctionType,
        session: pytest.Session,
        items: Sequence[pytest.Item],
    ) -> int:
        found.__code__ = code_of(each)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                return 1
        return 0


def find_functions() -> dict[tuple[str, str], FunctionType]:
    """Return the functions of the package by file and qualified name, without those inside of
    functions: mutants name the outermost one."""
    files = {str(path) for path in PACKAGE.rglob("*.py")}
    found: dict[tuple[str, str], FunctionType] = {}
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename in files:
            key = each.__code__.co_filename, each.__code__.co_qualname
            if "<locals>" in key[1]:
                continue
            assert found.get(key, each) is each, f"two functions {key}"
            found[key] = each
    return found


def code_of(each: PlacedMutant) -> CodeType:
    """Return the code of the changed function."""
    pending = [compile(each.mutant.make_tree(), str(each.path), "exec")]
    while pending:
        code = pending.pop()
        if code.co_qualname == each.function:
            return code
        pending += [part for part in code.co_consts if isinstance(part, CodeType)]
    raise AssertionError(each.name)


def _run_in_fork(call: Callable[[], int]) -> int:
    """Return the exit code of a function in another process; negative if a signal ends it."""
    child = os.fork()
    if child == 0:
        code = _FAILED_CALL
        try:
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX, MEMORY_MAX))
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            code = call()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


# ---------------------------------------------------------------- results


class Results:
    """Results of earlier and of this run, one line of JSON each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tests_digest = _digest((TESTS,))
        self._modules: dict[Path, str] = {}
        lines = path.read_text().splitlines() if path.exists() else []
        self._known = {
            (each["name"], each["digest"]): each["is_killed"] for each in map(json.loads, lines)
        }

    def find(self, each: PlacedMutant) -> bool | None:
        """Return whether the mutant was killed, None if it has to be played."""
        if self._known.get((each.name, self._digest(each, is_killed=True))):
            return True
        return self._known.get((each.name, self._digest(each, is_killed=False)))

    def add(self, each: PlacedMutant, is_killed: bool) -> None:
        digest = self._digest(each, is_killed)
        self._known[each.name, digest] = is_killed
        with self._path.open("a") as file:
            file.write(
                json.dumps({"name": each.name, "digest": digest, "is_killed": is_killed}) + "\n"
            )

    def _digest(self, each: PlacedMutant, is_killed: bool) -> str:
        if each.path not in self._modules:
            self._modules[each.path] = _digest((each.path,))
        return self._modules[each.path] + ("" if is_killed else self._tests_digest)


def load_equivalent(names: Iterable[str]) -> dict[str, str]:
    """Return those of the names that are listed as mutants that cannot be noticed, with reasons. A
    line that ends with `*` stands for all names that begin like it. Raises ValueError for a line
    without a mutant."""
    known = list(names)
    found: dict[str, str] = {}
    for each in tomllib.loads(EQUIVALENT.read_text())["equivalent"]:
        listed, reason = each["mutant"], each["reason"]
        if listed.endswith("*"):
            matching = [name for name in known if name.startswith(listed[:-1])]
        else:
            matching = [name for name in known if name == listed]
        if not matching or not reason:
            raise ValueError(f"{EQUIVALENT.name}: no mutant or no reason: {listed}")
        found.update(dict.fromkeys(matching, reason))
    return found


def main() -> int:
    """Play a sample of the mutants; return 1 if one survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--sample", type=int, metavar="N", help="play N random mutants (all)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (0)")
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose name has this")
    parser.add_argument(
        "--shard",
        type=lambda text: tuple(map(int, text.split("/"))),
        default=(1, 1),
        metavar="I/N",
        help="play only part I of N: run one process per part, then once without",
    )
    parser.add_argument(
        "--state",
        type=Path,
        default=ROOT / ".mutation",
        help="directory of the results (.mutation)",
    )
    arguments = parser.parse_args()
    arguments.state.mkdir(exist_ok=True)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # most of the time of a short run
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # collections of forked processes are short
    assert not any(name.startswith("hansa.delivery") for name in sys.modules)
    mutants = all_mutants()
    equivalent = load_equivalent(each.name for each in mutants)
    chosen = list(mutants)
    random.Random(arguments.seed).shuffle(chosen)
    chosen = [each for each in chosen[: arguments.sample] if arguments.only in each.name]
    number, count = arguments.shard
    chosen = chosen[number - 1 :: count]
    played = [each for each in chosen if each.name not in equivalent]
    survivors = _play(played, arguments.state)
    for each in survivors:
        sys.stdout.write(
            f"survived: {each.path.relative_to(ROOT)}:{each.mutant.line}\n  {each.name}\n"
        )
    killed = len(played) - len(survivors)
    sys.stdout.write(
        f"{len(mutants)} mutants, {len(chosen)} chosen, {len(chosen) - len(played)} equivalent, "
        f"{killed} killed, {len(survivors)} survived: {100 * killed / max(1, len(played)):.1f} %\n"
    )
    return bool(survivors)


def _play(mutants: Sequence[PlacedMutant], state: Path) -> list[PlacedMutant]:
    """Play the mutants without a result; return the survivors of all."""
    path = state / "results.jsonl"
    results = Results(path)
    tests = TestSelection.load(state / "tests.json")
    pending = [each for each in mutants if results.find(each) is None]
    of_functions = [each for each in pending if each.function]
    if of_functions and _run_in_fork(FunctionPlayer(of_functions, results, tests).play) != 0:
        sys.exit("hansa: pytest could not play the mutants")
    for each in pending:
        if not each.function:
            results.add(each, is_killed(each, tests.tests_for(each.path, each.mutant.line)))
    results = Results(path)
    return [each for each in mutants if not results.find(each)]


if __name__ == "__main__":
    sys.exit(main())
