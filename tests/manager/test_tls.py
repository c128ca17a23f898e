"""The manager over HTTPS."""

import http.client
import socket
import ssl
from contextlib import ExitStack, suppress

import pytest
from tests.identity.certified import write_https_certificate
from tests.manager.serving import Served

from hansa.cli.main import main
from hansa.errors import UsageError
from hansa.manager.service import ManagerOptions, ManagerService


def test_manager_answers_over_https(tmp_path):
    certificate = write_https_certificate(tmp_path / "https.pem")
    database = f"sqlite:///{tmp_path}/m.db"
    served = Served(database, {"HANSA_MANAGER_TOKEN": "secret"}, tls_certificate=str(certificate))
    try:
        context = ssl.create_default_context(cafile=certificate)
        connection = http.client.HTTPSConnection(
            "127.0.0.1", served.port, timeout=20, context=context
        )
        found = []
        for headers in ({}, {"Authorization": "Bearer secret"}):
            connection.request("GET", "/api/v1/nodes", headers=headers)
            answer = connection.getresponse()
            answer.read()
            found.append(answer.status)
        connection.close()
    finally:
        served.stop()
    assert found == [401, 200]


def test_request_is_served_beside_hundreds_of_half_handshakes(tmp_path):
    certificate = write_https_certificate(tmp_path / "https.pem")
    served = Served(f"sqlite:///{tmp_path}/m.db", {}, tls_certificate=str(certificate))
    try:
        with ExitStack() as idle:
            made = [
                idle.enter_context(socket.create_connection(("127.0.0.1", served.port), 20))
                for _ in range(300)
            ]
            for raw in made:
                with suppress(ConnectionError):  # the oldest are closed already
                    raw.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
            context = ssl.create_default_context(cafile=certificate)
            connection = http.client.HTTPSConnection(
                "127.0.0.1", served.port, timeout=20, context=context
            )
            connection.request("GET", "/api/v1/health")
            assert connection.getresponse().status == 200
            connection.close()
            with suppress(ConnectionError):
                assert made[0].recv(1) == b""
    finally:
        served.stop()


def test_unusable_certificate_is_refused(tmp_path):
    (tmp_path / "bad.pem").write_text("nonsense")
    options = ManagerOptions(
        database=f"sqlite:///{tmp_path}/m.db", tls_certificate=str(tmp_path / "bad.pem")
    )
    with pytest.raises(UsageError, match="--tls-certificate: cannot use "):
        ManagerService(options, {})


def test_key_without_certificate_is_refused(capsys):
    assert main(["manager", "--tls-key", "x"]) == 2
    assert "--tls-key needs --tls-certificate" in capsys.readouterr().err
