"""Ports for brokers and agents on this machine."""

import socket

import pytest

from hansa.errors import UsageError
from hansa.testbed import mosquitto
from hansa.testbed.mosquitto import CANDIDATE_PORTS, free_port, require_free_port


def test_free_ports_are_distinct_and_not_ephemeral():
    ports = [free_port() for _ in range(500)]
    assert set(ports) <= set(CANDIDATE_PORTS)
    assert CANDIDATE_PORTS[-1] < 32_768
    assert len(set(ports)) == len(ports)


def test_port_in_use_is_skipped(monkeypatch):
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        other = free_port()
        monkeypatch.setattr(mosquitto, "_next_ports", iter([port, other]))
        assert free_port() == other


def test_no_free_port_is_one_line(monkeypatch):
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(mosquitto, "_next_ports", iter([port]))
        with pytest.raises(UsageError, match=r"^no port from 10000 to 32767 of 127\.0\.0\.1"):
            free_port()


def test_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"^port {port} of 127.0.0.1 cannot be used: "):
            require_free_port(port)
