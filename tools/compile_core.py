"""Compiles the core with mypyc and the C compiler of this machine; see `hansa.compiled_core`.

    .venv/bin/python -m tools.compile_core [--limit SECONDS | --is-needed]

A build is made in a work directory and renamed when it is complete. The build is optional: without
a C compiler or Python's headers, on a read-only disk, or if it fails or takes too long, one line on
stderr says so and the exit code is 0. If the compiler refuses the sources, that is remembered until
the sources or the tools change. Object files of a build that was stopped are used by the next one.
"""

import argparse
import contextlib
import fcntl
import hashlib
import importlib.metadata
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import IO

from hansa import compiled_core
from hansa.compiled_core import LIBRARY, PACKAGE, SUFFIX

ROOT = PACKAGE.parent.parent
BUILDS = ROOT / ".build"

LIMIT_S = 120.0
"""Longest time of a build, unless `--limit` says otherwise."""

FLAGS = (
    *("-O1", "-g0", "-w", "-fPIC", "-fwrapv", "-fno-strict-aliasing", "-DNDEBUG"),
    *("-fvisibility=hidden", "-fno-plt"),  # calls within the library are direct
)

BUILDS_KEPT = 4
"""Builds that are not deleted, the newest: running processes may still import modules of them."""

INTERPRETED = (
    "protocol/forwarding/trace.py",  # msgspec checks answers by the annotations of its classes
    "protocol/settings.py",  # refusals show numbers as they were given
    "simulator/world/hooks.py",  # has subclasses in interpreted modules
    "simulator/world/ledger.py",  # has a subclass of `bytes`
)
"""Sources that cannot be compiled."""

PASSING = re.compile(
    "No space left|Disk quota|Read-only file system|annot allocate|out of memory|MemoryError"
    "|signal terminated program"
)
"""Errors of the machine, not of the sources: the next build may succeed."""

LOCK_POLL_S = 0.2

STRUCT = re.compile(r"^class .*\bStruct\b", re.MULTILINE)
"""mypyc does not support msgspec's Structs: their modules stay interpreted."""


class BuildProblem(Exception):
    """The core cannot be compiled here. The next build tries again."""


class BuildFailure(BuildProblem):
    """The compiler refuses the sources."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools.compile_core")
    parser.add_argument("--limit", type=float, metavar="SECONDS", default=LIMIT_S)
    parser.add_argument(
        "--is-needed",
        action="store_true",
        help="only say, with the exit code 0, that a build is missing and can be tried",
    )
    given = parser.parse_args()
    if given.is_needed:
        return 0 if is_needed() else 1
    if os.environ.get(compiled_core.PURE):
        return 0
    try:
        compile_core(given.limit)
    except (BuildProblem, OSError) as problem:
        say(f"the core is not compiled, so Python interprets it: {problem}")
    return 0


def say(text: str) -> None:
    print(f"hansa: {text}", file=sys.stderr)


def is_needed() -> bool:
    """Whether the present sources have no build, and none has failed, where there is a compiler."""
    try:
        find_compiler()
    except BuildProblem:
        return False
    return not any(BUILDS.glob(f"*{compiled_core.core_digest()}-*"))


def compile_core(limit_s: float = LIMIT_S) -> Path:
    """Return the build of the present sources; make it if it is missing."""
    compiler = find_compiler()
    scripts = [Path(__file__), Path(__file__).with_name("generate_c.py")]
    tools = hashlib.sha256(
        json.dumps([*describe_tools(compiler), *(path.read_text() for path in scripts)]).encode()
    ).hexdigest()
    build = BUILDS / f"{compiled_core.core_digest()}-{tools[:8]}"
    if build.is_dir():
        return build
    deadline = time.monotonic() + limit_s
    BUILDS.mkdir(exist_ok=True)
    with lock(BUILDS / "lock", deadline):
        if not build.is_dir():
            make_build(build, compiler, deadline)
    return build


def find_compiler() -> str:
    """Return the C compiler."""
    configured = shlex.split(sysconfig.get_config_var("CC") or "")[:1]
    for name in (*configured, "cc", "gcc", "clang"):
        if found := shutil.which(name):
            break
    else:
        raise BuildProblem("there is no C compiler (Debian: apt-get install gcc)")
    headers = sysconfig.get_path("include")
    if not Path(headers, "Python.h").is_file():
        raise BuildProblem(f"{headers} has no Python.h (Debian: apt-get install python3-dev)")
    return found


def describe_tools(compiler: str) -> list[str]:
    try:
        mypy = importlib.metadata.version("mypy")
        importlib.metadata.version("setuptools")  # mypyc imports it
    except importlib.metadata.PackageNotFoundError as missing:
        raise BuildProblem(f"{missing.name} is not installed") from None
    run = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return [mypy, compiler, run.stdout]


@contextlib.contextmanager
def lock(path: Path, deadline: float) -> Iterator[None]:
    """A kernel lock, which ends with the process that holds it."""
    with path.open("w") as file:
        is_waiting = False
        while not try_lock(file):
            if time.monotonic() > deadline:
                raise BuildProblem("another ./run still compiles it")
            if not is_waiting:
                say("waiting for another ./run that compiles the core")
            is_waiting = True
            time.sleep(LOCK_POLL_S)
        yield


def try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def make_build(build: Path, compiler: str, deadline: float) -> None:
    failed = BUILDS / f"failed-{build.name}"
    if failed.exists():
        raise BuildFailure(failed.read_text())
    began = time.monotonic()
    say("compiling the core, once for these sources; HANSA_PURE=1 does without")
    work = BUILDS / "work"
    try:
        Build(work, compiler, deadline).make(build)
    except BuildFailure as failure:
        failed.write_text(str(failure))
        raise
    say(f"compiled after {time.monotonic() - began:.0f} s")
    by_age = sorted(BUILDS.glob("*-*"), key=lambda path: path.stat().st_mtime)
    for old in by_age[:-BUILDS_KEPT]:
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink()


def compiled_sources() -> list[Path]:
    """Return the sources to compile."""
    skipped = {PACKAGE / name for name in (*compiled_core.IMPORTED, *INTERPRETED)}
    return [
        path
        for path in compiled_core.source_files()
        if path not in skipped
        and path.name != "__init__.py"
        and not STRUCT.search(path.read_text())
    ]


class Build:
    """Makes one build. Object files are named by a digest of their source, headers and flags, so
    that the next build uses those that are still right."""

    def __init__(self, work: Path, compiler: str, deadline: float) -> None:
        self._deadline = deadline
        self._c, self._objects, self._part = work / "c", work / "objects", work / "part"
        self._compile = [compiler, *FLAGS, f"-I{sysconfig.get_path('include')}"]
        # The first words of the linker's command are the compiler that built Python.
        linker = shlex.split(sysconfig.get_config_var("LDSHARED"))
        self._link = [compiler, *itertools.dropwhile(lambda word: word[0] != "-", linker)]

    def make(self, build: Path) -> None:
        self._objects.mkdir(parents=True, exist_ok=True)
        for directory in (self._c, self._part):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
        libraries = self._generate_c()
        pool = ThreadPoolExecutor(os.cpu_count())
        try:
            objects = self._make_objects(pool, libraries)
            for run in [pool.submit(self._make_library, *each) for each in objects.items()]:
                run.result()
        finally:
            pool.shutdown(cancel_futures=True)
        modules = sorted(module_name(path) for path in compiled_sources())
        (self._part / "modules").write_text("\n".join(modules) + "\n")
        if not build.name.startswith(compiled_core.core_digest()):
            raise BuildProblem("the sources changed while it was compiled")
        for made in self._part.iterdir():  # a power failure must not leave a build without contents
            with made.open("rb") as file:
                os.fsync(file.fileno())
        self._part.rename(build)
        shutil.rmtree(self._c)
        for old in {*self._objects.iterdir()} - {*itertools.chain(*objects.values())}:
            old.unlink()

    def _generate_c(self) -> dict[str, list[Path]]:
        """Return the C files of each library."""
        paths = [str(path.relative_to(PACKAGE.parent)) for path in compiled_sources()]
        described = self._run([sys.executable, "-m", "tools.generate_c", str(self._c), *paths])
        libraries: dict[str, list[Path]] = {}
        for name, sources, headers in json.loads(described.splitlines()[-1]):
            library = name if name == LIBRARY else name.rpartition(".")[0]
            libraries.setdefault(library, []).extend(map(Path, sources))
            self._compile += [f"-I{each}" for each in headers]
        return libraries

    def _make_objects(
        self, pool: ThreadPoolExecutor, libraries: dict[str, list[Path]]
    ) -> dict[str, list[Path]]:
        common = hashlib.sha256(" ".join(self._compile).encode())
        for header in sorted(self._c.rglob("*.h")):
            common.update(header.read_bytes())
        runs = {
            pool.submit(self._make_object, source, common.copy()): library
            for library, sources in libraries.items()
            for source in sources
        }
        objects: dict[str, list[Path]] = {library: [] for library in libraries}
        for number, run in enumerate(as_completed(runs), 1):
            objects[runs[run]].append(run.result())
            show_progress(number, len(runs))
        return objects

    def _make_object(self, source: Path, digest: "hashlib._Hash") -> Path:
        # Each entry point defines this name, and several are linked into one library.
        unique = f"-DPyInit___init__=PyInit___init___{source.stem}"
        digest.update(unique.encode() + source.read_bytes())
        made = self._objects / f"{digest.hexdigest()}.o"
        if not made.exists():
            part = made.with_suffix(".part")
            self._run([*self._compile, unique, "-c", str(source), "-o", str(part)])
            part.rename(made)
        return made

    def _make_library(self, name: str, objects: list[Path]) -> None:
        self._run([*self._link, "-o", str(self._part / f"{name}{SUFFIX}"), *map(str, objects)])

    def _run(self, words: list[str]) -> str:
        """Run a program in `src`; return its output."""
        left = max(self._deadline - time.monotonic(), 0.0)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), compiled_core.PURE: "1"}
        try:
            done = subprocess.run(
                words,
                cwd=PACKAGE.parent,
                env=environment,
                capture_output=True,
                text=True,
                timeout=left,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BuildProblem("it takes too long; the next ./run continues") from None
        if done.returncode:
            raise problem_of(words[0], done.returncode, done.stdout + done.stderr)
        return done.stdout


def problem_of(program: str, code: int, output: str) -> BuildProblem:
    """Return the problem of a program that failed."""
    lines = [line for line in output.splitlines() if "error" in line]
    text = lines[0] if lines else f"{program} exited with {code}"
    is_passing = code < 0 or PASSING.search(output)  # a signal ended it, perhaps for lack of memory
    return BuildProblem(text) if is_passing else BuildFailure(text)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


def show_progress(number: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if number == total else ""
        print(f"\rhansa: compiled {number} of {total} files", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    sys.exit(main())
