"""Connections of the manager that send or read nothing keep no others out."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.manager.serving import Served

from hansa.manager import connections, middleware

HEAD = b"POST /api/v1/join HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(f"sqlite:///{tmp_path / 'm.db'}")
    yield made
    made.stop()


def send(served: Served, data: bytes) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", served.port), 30)
    made.sendall(data)
    return made


@pytest.mark.parametrize("data", [b"", b"GET", HEAD])
def test_connection_without_a_request_is_closed(served, monkeypatch, data):
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", 0.05)
    with send(served, data) as silent:
        assert silent.recv(100) == b""


def test_body_that_does_not_come_is_refused(served, monkeypatch):
    monkeypatch.setattr(middleware, "REQUEST_TIMEOUT_S", 0.05)
    with send(served, HEAD + b"\r\n{") as slow:
        assert slow.recv(100).startswith(b"HTTP/1.1 408")


def test_connection_without_a_second_request_is_closed(served, monkeypatch):
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", 0.2)
    with send(served, b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\n\r\nGET") as silent:
        answer = b""
        while piece := silent.recv(4096):
            answer += piece
        assert answer.startswith(b"HTTP/1.1 200")


def test_silent_connections_are_closed_for_new_ones(served, monkeypatch):
    monkeypatch.setattr(connections, "WAITING_MAX", 2)
    with send(served, b"") as oldest, send(served, b""), send(served, b""):
        assert oldest.recv(100) == b""
        assert served.ask("GET", "/api/v1/health")[0] == 200


def test_stream_is_no_silent_connection(served, monkeypatch):
    monkeypatch.setattr(connections, "WAITING_MAX", 1)
    with send(served, b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n") as stream:
        assert stream.recv(100).startswith(b"HTTP/1.1 200")
        with send(served, b"") as oldest, send(served, b""):
            assert oldest.recv(100) == b""
        served.stop()  # which ends the stream in order
        answer = b""
        while piece := stream.recv(4096):
            answer += piece
        assert answer.endswith(b"0\r\n\r\n")
