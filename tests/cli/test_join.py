"""`hansa invite` and `hansa join`: one line on each side."""

import io
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from hansa.cli.main import main
from hansa.identity.credentials import load_credentials
from hansa.identity.keys import KEY_FILE

HANSA = [sys.executable, "-m", "hansa.cli"]


@pytest.mark.parametrize("source", ["TOKEN", "-"])
def test_node_joins_with_the_token_of_an_invitation(source, tmp_path, capsys, monkeypatch):
    ca, state = str(tmp_path / "ca"), tmp_path / "node"
    assert main(["ca", "init", "plant", "--ca", ca]) == 0
    command = [*HANSA, "invite", "--name", "line-2", "--address", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1", "--port", "0", "--ca", ca],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as issuer:
        assert issuer.stdout and issuer.stderr
        token = issuer.stdout.readline().strip()
        began = time.monotonic()
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{token}\n"))
        assert main(["join", source.replace("TOKEN", token), "--state", str(state)]) == 0
        assert time.monotonic() - began < 2.0
        assert issuer.wait(30) == 0
        assert "joined federation 'plant'" in issuer.stderr.read()
    made = load_credentials(state, state / KEY_FILE, datetime.now(UTC))
    assert (made.federation, made.certificate.claims.name) == ("plant", "line-2")
    assert "is a member of federation 'plant' until " in capsys.readouterr().err


def test_node_joins_with_a_signed_file(tmp_path, capsys):
    ca, state, request, signed = (str(tmp_path / name) for name in ("ca", "node", "csr", "a.pem"))
    for given in (
        ["ca", "init", "plant", "--ca", ca],
        ["ca", "request", "--state", state, "--out", request],
        ["ca", "sign", request, "--ca", ca, "--out", signed],
        ["join", signed, "--state", state],
    ):
        assert main(given) == 0
    assert "is a member of federation 'plant'" in capsys.readouterr().err


def test_certificate_of_another_key_is_refused(tmp_path, capsys):
    ca, request, signed = (str(tmp_path / name) for name in ("ca", "csr", "a.pem"))
    main(["ca", "init", "plant", "--ca", ca])
    main(["ca", "request", "--state", str(tmp_path / "a"), "--out", request])
    main(["ca", "sign", request, "--ca", ca, "--out", signed])
    main(["ca", "request", "--state", str(tmp_path / "b"), "--out", request])
    capsys.readouterr()
    assert main(["join", signed, "--state", str(tmp_path / "b")]) == 2
    assert "it belongs to another key than" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["join", "nonsense"], "neither a file nor a token of hansa invite"),
        (["join", "missing.pem"], "cannot read missing.pem: No such file or directory"),
        (["invite", "--address", "a:b:c"], "'a:b:c' is no HOST or HOST:PORT"),
        (["invite", "--ttl", "5"], "'5' is no time such as 90s, 10m, 1h or 2d"),
        (["invite", "--ttl", "0s"], "'0s' is no time such as"),
        (["invite", "--ca", "/nonexistent"], "holds no authority: make one with hansa ca init"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(given, problem, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HANSA_STATE", str(tmp_path))
    assert main(given) == 2
    out, said = capsys.readouterr()
    assert (out, said.count("\n")) == ("", 1)
    assert problem in said


def test_invitation_without_taker_ends_with_code_1(tmp_path, capsys):
    ca = str(tmp_path / "ca")
    main(["ca", "init", "--ca", ca])
    given = ["invite", "--ca", ca, "--ttl", "1s", "--listen", "127.0.0.1", "--port", "0"]
    assert main(given) == 1
    assert "no node joined in time: the token is void" in capsys.readouterr().err
