"""Idle connections to an agent, and the order of events beside them.

An agent closes a connection without a hello after 5 s, by its own clock. So a test that promises
something "soon" opens an idle connection first, and checks that this one is still open when the
promised event has happened. A busy machine delays both, and no time is compared."""

import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.agent.live import PATIENCE


def connect_idle(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE)


def is_open(connection: socket.socket) -> bool:
    """Whether the agent has not closed a connection. Bytes that the agent has sent are ignored."""
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    return False


@contextmanager
def idle_connections(port: int, count: int) -> Iterator[None]:
    """Hold idle connections. The agent closes them, the oldest first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 500
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"{needed} open files needed, {hard} allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    idle: list[socket.socket] = []
    try:
        while len(idle) < count:
            idle.append(connect_idle(port))
        yield
    finally:
        for each in idle:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
