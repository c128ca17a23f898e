"""Databases for the tests of the manager: SQLite files, and a PostgreSQL server."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hansa.manager.store import ManagerStore, open_store
from hansa.testbed.mosquitto import free_port

START_TIMEOUT_S = 60.0


def find_postgresql() -> Path | None:
    """Return the directory of PostgreSQL's programs, which Debian keeps off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if found:
        return found[-1].parent
    place = shutil.which("postgres")
    return Path(place).parent if place else None


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """A PostgreSQL server on a free port, run by a user other than root."""
    programs = find_postgresql()
    if programs is None:
        pytest.skip("there is no PostgreSQL here; Debian: apt-get install postgresql")
    owner = "postgres" if os.getuid() == 0 else None  # PostgreSQL does not run as root
    with tempfile.TemporaryDirectory(prefix="hansa-pg-") as folder:
        home = Path(folder)
        if owner:
            entry = pwd.getpwnam(owner)
            os.chown(home, entry.pw_uid, entry.pw_gid)
        data, port = home / "data", free_port()
        initdb: list[str | Path] = [
            programs / "initdb",
            "-D",
            data,
            "-U",
            "hansa",
            "-A",
            "trust",
            "-N",
        ]
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, user=owner, cwd=home)
        options = ["-p", str(port), "-k", folder, "-h", "127.0.0.1", "-F"]
        with (home / "log").open("wb") as log:
            server = subprocess.Popen(
                [programs / "postgres", "-D", data, *options],
                stdout=log, stderr=log, user=owner, cwd=home,
            )  # fmt: skip
        try:
            wait_for_port(port, server, home / "log")
            yield f"postgresql://hansa@127.0.0.1:{port}"
        finally:
            server.send_signal(signal.SIGINT)  # fast shutdown: does not wait for clients
            server.wait(30)


def wait_for_port(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'manager.db'}"
        return
    import psycopg

    server = request.getfixturevalue("postgresql_server")
    name = f"test_{os.getpid()}_{time.monotonic_ns()}"
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            admin = psycopg.connect(f"{server}/postgres", autocommit=True)
            break
        except psycopg.OperationalError:  # it listens before it accepts clients
            assert time.monotonic() < deadline
            time.sleep(0.05)
    with admin:
        admin.execute(f'create database "{name}"')
    admin.close()
    yield f"{server}/{name}"


@pytest.fixture
def store(database: str) -> Iterator[ManagerStore]:
    """An open store of each kind."""
    opened = open_store(database)
    yield opened
    opened.close()
