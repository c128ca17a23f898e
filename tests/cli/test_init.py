"""`hansa init`: settings that work, and one line for everything that cannot. All steps of two
sites are in docs/tutorial.md (tests/test_tutorial.py)."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hansa.agent.settings import load_settings
from hansa.cli.main import main
from hansa.setup import site
from hansa.testbed.mosquitto import free_port
from hansa.testbed.probes import examination

LOGS = (
    *("log_dest topic", "connection_messages true"),
    *(f"log_type {kind}" for kind in ("subscribe", "unsubscribe", "notice", "error")),
)


class Host:
    """Directories of one host, and `hansa init` there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "etc" / "agent.toml"
        self.options = [
            *("--config", str(self.config), "--state", str(directory / "state")),
            *("--ca", str(directory / "ca"), "--mosquitto-conf", str(directory / "mosquitto.conf")),
            "--no-start",
        ]

    def init(self, *given: str) -> int:
        return main(["init", *given, *self.options])

    def settings(self) -> Any:
        return load_settings(self.config, {})


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.delenv("HANSA_BROKER_PASSWORD", raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    return Host(tmp_path)


def test_first_site_beside_a_good_broker(broker, host, capsys):
    address = broker("allow_anonymous true", *LOGS)
    given = ("--name", "north", "--address", "127.0.0.1:10999", "--federation", "plant")
    assert host.init("--broker", address, *given) == 0
    out, said = capsys.readouterr()
    assert out.startswith(f"✓ {address}: mosquitto version ")
    assert "of federation 'plant'\n" in said
    assert f"start it: hansa agent --config {host.config}\n" in said
    settings = host.settings()
    assert (settings.name, settings.topology.advertised_link) == ("north", "127.0.0.1:10999")
    assert f"{settings.broker.host}:{settings.broker.port}" == address
    assert (settings.link.host, settings.link.port) == ("127.0.0.1", 10999)


def test_broker_that_does_not_log_gets_advice_and_no_settings(broker, host, capsys, monkeypatch):
    monkeypatch.setattr(examination, "LINE_TIMEOUT_S", 0.5)
    assert host.init("--broker", broker("allow_anonymous true"), "--name", "north") == 1
    out, said = capsys.readouterr()
    assert "Add to mosquitto.conf:\n  log_dest topic\n" in out
    assert said.endswith(
        "no settings were written: change the broker as shown, and repeat this command\n"
    )
    assert not host.config.exists()
    assert not (host.directory / "state" / "certificate.pem").exists()


def test_second_site_joins_and_links_as_the_token_says(host, capsys):
    assert host.init("--no-check", "--name", "north", "--address", "127.0.0.1:10998") == 0
    command = [sys.executable, "-m", "hansa.cli", "invite", "--name", "south"]
    places = ["--ca", str(host.directory / "ca"), "--config", str(host.config)]
    with subprocess.Popen(
        [*command, *places, "--listen", "127.0.0.1", "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as issuer:  # fmt: skip
        assert issuer.stdout
        token = issuer.stdout.readline().strip()
        second = Host(host.directory / "south")
        assert second.init("--no-check", "--join", token, "--name", "south") == 0
        assert issuer.wait(30) == 0
    settings = second.settings()
    assert settings.link.neighbours == ("127.0.0.1:10998",)
    assert settings.link.host == "127.0.0.1"  # it opens links and accepts none
    assert second.init("--no-check", "--join", token) == 2
    second.config.rename(second.config.with_suffix(".old"))
    assert second.init("--no-check", "--join", token) == 2
    assert "has a certificate of federation 'hansa': leave out --join" in capsys.readouterr().err


def test_site_is_set_up_again_with_its_identity(host):
    assert host.init("--no-check", "--name", "north") == 0
    before = (host.directory / "state" / "certificate.pem").read_bytes()
    host.config.unlink()
    assert host.init("--no-check", "--name", "north") == 0
    assert (host.directory / "state" / "certificate.pem").read_bytes() == before


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["--federation", "a b"], "must have no blanks, slashes or control characters"),
        (["--join", "nonsense"], "neither a file nor a token of hansa invite"),
        (["--join", "x", "--federation", "y"], "--join joins one: give one of both"),
        (["--topic", "plant/#"], "--topic needs --prepare-broker"),
        (["--prepare-broker", "--topic", "a/#/b"], "a/#/b"),
        (["--broker", "localhost"], "'localhost' must be HOST:PORT, as in localhost:1883"),
        (["--address", "north:x"], "the port must be a number"),
        (["--neighbour", ":1"], "the host is missing"),
        (["--admin-port", "0"], "must be from 1 to 65535"),
        (["--broker", "10.0.0.1:1883", "--prepare-broker"], "and 10.0.0.1 is another one"),
        (["--prepare-broker"], "mosquitto.conf: No such file or directory"),
        (["--config", "/proc/x/agent.toml"], "cannot make /proc/x: "),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(host, given, problem, capsys):
    assert main(["init", *host.options, *given]) == 2
    out, said = capsys.readouterr()
    assert (out, said.count("\n")) == ("", 1)
    assert problem in said


def test_broker_that_is_down_is_named(host, capsys):
    port = free_port()
    assert host.init("--broker", f"localhost:{port}") == 2
    assert f"localhost:{port}" in capsys.readouterr().err
    assert not host.config.exists()


def test_prepared_broker_must_be_restarted_where_systemd_does_not_run(host, capsys, monkeypatch):
    monkeypatch.setattr(site, "runs_systemd", lambda: False)
    (host.directory / "mosquitto.conf").write_text(f"log_dest file {host.directory}/log\n")
    assert host.init("--prepare-broker") == 2
    assert "the broker is prepared. Restart it" in capsys.readouterr().err
    assert "log_dest topic\n" in (host.directory / "mosquitto.conf").read_text()


def test_user_that_exists_needs_its_password(host, capsys):
    passwd = host.directory / "passwd"
    passwd.write_text("hansa:$7$x\n")
    (host.directory / "mosquitto.conf").write_text(f"listener 1\npassword_file {passwd}\n")
    assert host.init("--prepare-broker") == 2
    assert "has a user 'hansa' already: give its password" in capsys.readouterr().err


def test_it_asks_at_a_terminal(broker, host, monkeypatch, capsys):
    address = broker("allow_anonymous true", *LOGS)
    answers: dict[str, str] = {"name of this node": "west", "address of the broker": address}
    asked = []

    def answer(question: str) -> str:
        asked.append(question)
        return answers.get(question.partition(" [")[0], "")

    monkeypatch.setattr("builtins.input", answer)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert host.init() == 0
    assert len(asked) == 4
    assert (host.settings().name, host.settings().broker.username) == ("west", "")
