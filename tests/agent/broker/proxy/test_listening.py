"""Ports that a service manager has opened."""

import asyncio
import os
import socket
from collections.abc import Iterator

import pytest

from hansa.agent.broker.proxy import listening as module
from hansa.agent.broker.proxy.listening import ListeningSockets


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket that is the first descriptor after the standard ones."""
    made = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(module, "FIRST_DESCRIPTOR", os.dup(made.fileno()))
    yield made
    made.close()


def close(found: list[socket.socket]) -> None:
    for each in found:
        each.close()


def test_passed_socket_is_used_for_its_port_whatever_the_host(passed):
    environment = {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "x"}
    taken = ListeningSockets.from_service_manager(environment)
    found = asyncio.run(taken.open("192.0.2.1", passed.getsockname()[1]))
    assert [each.getsockname() for each in found] == [passed.getsockname()]
    assert [each.getblocking() for each in found] == [False]
    assert environment == {}
    close(found)


def test_passed_socket_on_another_port_is_reported(passed, caplog):
    environment = {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
    taken = ListeningSockets.from_service_manager(environment)
    opened = asyncio.run(taken.open("127.0.0.1", 0))
    taken.report_unused()
    port = passed.getsockname()[1]
    assert f"listens on port {port}, which is not [proxy] port" in caplog.text
    taken.close()
    assert [each.fileno() for each in opened] == [-1]
    close(asyncio.run(taken.open("", port)))


@pytest.mark.parametrize(
    "environment",
    [{}, {"LISTEN_FDS": "1", "LISTEN_PID": "1"}, {"LISTEN_FDS": "x", "LISTEN_PID": "0"}],
)
def test_sockets_for_other_processes_are_left_alone(environment):
    assert not ListeningSockets.from_service_manager(environment)._passed  # noqa: SLF001


def test_socket_that_is_not_tcp_is_not_used(caplog):
    taken = ListeningSockets()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        taken.add_passed(datagrams)
    assert "it is not TCP" in caplog.text
