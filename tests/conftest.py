"""Shared by all tests: the compiled core, settings of hypothesis, coverage, a real broker."""

import itertools
import os
import pkgutil
import random
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from hansa import compiled_core

# Coverage and mutants need the sources. Processes that tests start run the compiled core, if there
# is one; `./run test --compiled` also runs the tests with it. This precedes imports of the core.
if not os.environ.get("TEST_COMPILED_CORE"):
    compiled_core.disable()
# Coverage looks for the sources before this file is imported, so a whole run sets HANSA_PURE. The
# processes of xdist get it from the main one.
if os.environ.get("TEST_COMPILED_AGENTS") and "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.pop(compiled_core.PURE, None)

from hansa.errors import UsageError
from hansa.testbed import mosquitto as local_mosquitto
from hansa.testbed.mosquitto import CANDIDATE_PORTS, find_mosquitto, free_port

# Two busy cores make any deadline a lottery; pytest's timeout catches what hangs.
# The same examples on every run, so that no change fails by chance; `--long` tries new ones.
settings.register_profile(
    "hansa", deadline=None, print_blob=True, derandomize=not os.environ.get("TEST_NEW_EXAMPLES")
)
settings.load_profile("hansa")

HERE = Path(__file__).parent
PURE_TESTS = (HERE / "delivery", HERE / "protocol")
"""They cover every branch of the packages of the same names."""

LONGEST_FIRST = ("pipeline", "testbed", "agent", "manager", "cli", "simulator")
"""Directories with the slowest tests. They start first, so that no process waits at the end."""

SHARING = ("tests/agent/as_one/", "tests/pipeline/")


def pytest_configure() -> None:
    """Give each process of a run ports of its own: one that is free stays so until it is used."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = CANDIDATE_PORTS[number :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    chosen = itertools.cycle(random.sample(ports, len(ports)))
    local_mosquitto._next_ports = chosen  # noqa: SLF001  as in its own tests


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Measure coverage only in the own tests of delivery and protocol; it also keeps simulations
    fast."""
    for item in items:
        if not any(map(item.path.is_relative_to, PURE_TESTS)):
            item.add_marker("no_cover")
        if compiled_core.is_enabled() and item.get_closest_marker("pure"):
            item.add_marker(pytest.mark.skip(reason="the core is compiled"))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    folder = item.path.relative_to(HERE).parts[0]
    return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)


class ByFile(LoadScopeScheduling):
    """Keeps tests that share something in one process, so that it is made once: those of a file a
    federation, those of some folders a broker to compare with, or a JVM."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::")[0]
        return next((folder for folder in SHARING if path.startswith(folder)), path)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    """Distribute tests like this."""
    return ByFile(config, log)


@pytest.fixture
def monkeypatch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Skips tests that replace a class, function or method of the compiled core, which has no
    effect. They run with the pure core; constants of modules can be replaced in both."""
    if compiled_core.is_enabled():
        replace: Callable[..., None] = monkeypatch.setattr

        def replace_or_skip(target: object, *arguments: object, **options: object) -> None:
            if _is_fixed(target, arguments):
                pytest.skip("it replaces compiled code")
            replace(target, *arguments, **options)

        monkeypatch.__dict__["setattr"] = replace_or_skip
    return monkeypatch


def _is_fixed(target: object, arguments: Sequence[object]) -> bool:
    """Whether the arguments of `setattr` name something that compiled code does not look up."""
    if isinstance(target, str):
        place, _, name = target.rpartition(".")
        target, arguments = pkgutil.resolve_name(place), (name, *arguments)
    if isinstance(target, ModuleType):
        return compiled_core.is_compiled(target.__name__) and callable(
            getattr(target, str(arguments[0]), None)
        )
    kind = target if isinstance(target, type) else type(target)
    return compiled_core.is_compiled(kind.__module__)


@pytest.fixture(scope="session")
def mosquitto() -> str:
    """Where the broker is; tests that need one are skipped if there is none."""
    try:
        return find_mosquitto()
    except UsageError as error:
        pytest.skip(str(error))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 256 KiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small disk")
    yield path
    subprocess.run(["umount", str(path)], check=True)


class Brokers:
    """Mosquittos with some lines of configuration; `broker(*lines)` starts one."""

    def __init__(self, mosquitto: str, directory: Path) -> None:
        self._mosquitto = mosquitto
        self._directory = directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __call__(self, *lines: str) -> str:
        """Start one; return its address."""
        port = free_port()
        config = self._directory / f"{port}.conf"
        # The doctor waits for the next sample of the counters.
        text = (f"listener {port} 127.0.0.1", "user root", "sys_interval 1", *lines)
        config.write_text("\n".join(text) + "\n")
        process = subprocess.Popen(
            [self._mosquitto, "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        address = f"127.0.0.1:{port}"
        self._running[address] = process
        self._wait(port)
        return address

    def _wait(self, port: int) -> None:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return
            except ConnectionRefusedError:
                process = self._running[f"127.0.0.1:{port}"]
                assert process.poll() is None, "mosquitto does not start"

    def reload(self, address: str, *lines: str) -> None:
        """Add lines to the configuration of one, and have it read them."""
        config = self._directory / f"{address.rpartition(':')[2]}.conf"
        config.write_text(config.read_text() + "\n".join(lines) + "\n")
        self._running[address].send_signal(signal.SIGHUP)

    def restart(self, address: str) -> None:
        """Stop one in order, and start it again."""
        process = self._running[address]
        process.terminate()
        process.wait()
        port = int(address.rpartition(":")[2])
        config = self._directory / f"{port}.conf"
        self._running[address] = subprocess.Popen([self._mosquitto, "-c", config])
        self._wait(port)

    def stop(self, address: str) -> None:
        process = self._running.pop(address)
        process.kill()
        process.wait()

    def stop_all(self) -> None:
        for address in tuple(self._running):
            self.stop(address)


@pytest.fixture
def broker(mosquitto, tmp_path):
    """What starts brokers; they stop with the test."""
    brokers = Brokers(mosquitto, tmp_path)
    yield brokers
    brokers.stop_all()
