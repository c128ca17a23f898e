"""Endpoints with TLS and tokens: a real agent, read by `hansa status` and by strangers."""

import http.client
import json
import socket
import ssl
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.agent.live import eventually
from tests.agent.process import Process, Scene
from tests.identity.certified import write_https_certificate

from hansa.agent.handshakes import EVICTED, HANDSHAKES_MAX
from hansa.agent.settings import load_settings
from hansa.cli.main import main
from hansa.errors import UsageError

READ, ALL = "read-token", "all-token"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return write_https_certificate(tmp_path / "https.pem")


@pytest.fixture
def agent(scene: Scene, certificate: Path) -> Process:
    return scene.agent(
        broker_port=scene.broker().port,
        admin_tls_certificate=certificate,
        admin_read_token=READ,
        admin_token=ALL,
    )


def ask(agent: Process, certificate: Path, path: str, token: str = "") -> int:
    return read(agent, certificate, path, token)[0]


def read(agent: Process, certificate: Path, path: str, token: str) -> tuple[int, bytes]:
    context = ssl.create_default_context(cafile=certificate)
    connection = http.client.HTTPSConnection(
        "127.0.0.1", agent.admin_port, timeout=20, context=context
    )
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_pages_are_read_with_a_token_only(agent, certificate, monkeypatch, capsys):
    agent.says("endpoints=https://127.0.0.1:")
    for path, token, status in (
        ("/healthz", "", 200),
        ("/status", "", 401),
        ("/metrics", "guess", 401),
        ("/status", READ, 200),
        ("/status", ALL, 200),
        ("/logs", READ, 403),
        ("/logs", ALL, 200),
    ):
        assert (path, token, ask(agent, certificate, path, token)) == (path, token, status)
    url = f"https://127.0.0.1:{agent.admin_port}"
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert main(["status", url]) == 2
    assert "the token is missing or wrong: set HANSA_ADMIN_TOKEN" in capsys.readouterr().err
    monkeypatch.setenv("HANSA_ADMIN_TOKEN", READ)
    assert eventually(lambda: main(["status", url, "--json"]) == 0, "the status")
    assert json.loads(capsys.readouterr().out)["nodes"][0]["summary"]["security"] is None


def test_host_beyond_loopback_needs_certificate_and_token(certificate):
    given = {"HANSA_ADMIN_HOST": "0.0.0.0"}
    tls = {"HANSA_ADMIN_TLS_CERTIFICATE": str(certificate)}
    token = {"HANSA_ADMIN_READ_TOKEN": READ}
    for incomplete in (given, {**given, **tls}, {**given, **token}):
        with pytest.raises(UsageError, match=r"Set \[admin\] tls_certificate and read_token"):
            load_settings(None, incomplete)
    assert load_settings(None, {**given, **tls, **token}).exposure_text == ""
    with pytest.raises(UsageError, match=r"\[admin\] tls_key needs tls_certificate"):
        load_settings(None, {"HANSA_ADMIN_TLS_KEY": "x"})


def test_unusable_certificate_is_one_line_and_exit_code_2(scene: Scene, tmp_path: Path):
    (tmp_path / "bad.pem").write_text("nonsense")
    agent = scene.agent(broker_port=scene.broker().port, admin_tls_certificate=tmp_path / "bad.pem")
    assert agent.wait() == 2
    assert "[admin] tls_certificate: cannot use " in agent.log
    assert "Traceback" not in agent.log


IDLE = 400
HALF_HELLO = b"\x16\x03\x01\x02\x00\x01\x00"
"""The beginning of a ClientHello."""


def test_request_is_served_beside_hundreds_of_half_handshakes(agent, certificate):
    agent.says("endpoints=https://127.0.0.1:")
    with ExitStack() as idle:
        for _ in range(IDLE):
            raw = idle.enter_context(socket.create_connection(("127.0.0.1", agent.admin_port), 20))
            raw.sendall(HALF_HELLO)
        assert ask(agent, certificate, "/status", READ) == 200
        assert len(list(Path(f"/proc/{agent.process.pid}/fd").iterdir())) < IDLE / 2
        counters = json.loads(read(agent, certificate, "/status", READ)[1])["counters"]
    assert counters[EVICTED] >= IDLE - HANDSHAKES_MAX
