"""Files in deploy/ are valid for the programs that read them. Docker is not run."""

import configparser
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from tests.agent.live import Client
from tests.identity.certified import certify, make_authority

from hansa.agent.broker.settings import PROXY_PORT
from hansa.agent.settings import default_state_directory, load_settings
from hansa.cli import agent, manager
from hansa.errors import UsageError
from hansa.manager.settings import make_settings, settings_from_environment
from hansa.testbed.mosquitto import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCS = DEPLOY.parent / "docs"
UNITS = sorted(DEPLOY.glob("*.service"))
VARIABLE = re.compile(r"\$\{(\w+)(?::?[-?]([^}]*))?\}")


def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def filled_in(environment: dict[str, str]) -> dict[str, str]:
    """The environment as it is with nothing set but the token."""
    return {
        name: VARIABLE.sub(lambda m: "token" if "TOKEN" in m[1] else m[2] or "", str(text))
        for name, text in environment.items()
    }


def parsed(command: str, arguments: list[str]) -> None:
    """Let a command read its arguments, and nothing more."""
    program = {"agent": agent, "manager": manager}[command]
    with pytest.raises(UsageError, match="^unrecognized arguments: --and-no-more;"):
        program.run([*arguments, "--and-no-more"])


def test_compose_file_has_valid_commands_and_settings(capsys, tmp_path):
    services = compose()["services"]
    assert set(services) == {"manager", "broker", "agent"}
    for name in ("manager", "agent"):
        command, *arguments = services[name]["command"]
        parsed(command, arguments)
    environment = filled_in(services["agent"]["environment"]) | {"HANSA_STATE": str(tmp_path)}
    with pytest.raises(UsageError, match="this node has no certificate"):
        load_settings(None, environment)
    certify(make_authority(tmp_path / "ca"), tmp_path)
    settings = load_settings(None, environment)
    assert settings.topology.manager == "http://manager:8080"
    assert settings.topology.advertised_broker == "tcp://broker:1883"
    assert settings.topology.advertised_link == "agent:10500"
    shared = make_settings(settings_from_environment(filled_in(services["manager"]["environment"])))
    assert (shared.redundancy, shared.degree_max) == (2, 5)
    used = {volume.split(":")[0] for each in services.values() for volume in each["volumes"]}
    assert used - {"./mosquitto.conf"} == set(compose()["volumes"])


def installed_to(document: str) -> str:
    """The virtual environment that the install commands of a document create and use."""
    text = (DOCS / document).read_text()
    made = re.findall(r"^python3 -m venv (\S+)$", text, re.M)
    assert len(made) == 1
    assert re.search(rf"^{made[0]}/bin/pip install '?\.", text, re.M)
    assert re.search(rf"^ln -s {made[0]}/bin/hansa /usr/local/bin/", text, re.M)
    return str(made[0])


def test_containers_of_hansa_are_sandboxed():
    services = compose()["services"]
    for name in ("manager", "agent"):
        assert services[name]["cap_drop"] == ["ALL"]
        assert services[name]["read_only"] is True


def test_documents_install_to_the_path_in_the_units():
    assert installed_to("how-to/install.md") == installed_to("manager.md")
    units = {unit.name: unit.read_text() for unit in UNITS}
    assert "/usr/bin/env" not in "".join(units.values())


@pytest.mark.parametrize("name", ["agent", "manager"])
def test_unit_is_not_restarted_after_wrong_settings(name):
    assert "\nRestartPreventExitStatus=2\n" in (DEPLOY / f"hansa-{name}.service").read_text()


def test_agent_is_restarted_after_a_reload_that_came_too_early():
    unit = (DEPLOY / "hansa-agent.service").read_text()
    assert "\nRestartForceExitStatus=SIGHUP\n" in unit


def test_socket_unit_is_for_the_default_port_of_the_proxy_and_the_agent():
    unit = (DEPLOY / "hansa-proxy.socket").read_text()
    assert re.findall(r"^ListenStream=.*:(\d+)$", unit, re.M) == [str(PROXY_PORT)]
    assert re.findall(r"^Service=(.*)$", unit, re.M) == ["hansa-agent.service"]


def test_agent_unit_uses_the_default_state_directory(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    unit = (DEPLOY / "hansa-agent.service").read_text()
    assert f"Environment=HANSA_STATE={default_state_directory()}\n" in unit
    assert f"/var/lib/{re.findall('^StateDirectory=(.*)', unit, re.M)[0]}" == str(
        default_state_directory()
    )


def test_no_text_installs_hansa_from_an_index():
    root = DOCS.parent
    places = [*root.glob("src/**/*.py"), *root.glob("docs/**/*.md")]
    places += [
        place
        for place in DEPLOY.rglob("*")
        if place.is_file() and place.parent.name != "__pycache__"
    ]
    instruction = re.compile(r"pip install [^\n`]*\bhansa(\[|['\"\s`]|$)")
    wrong = [str(place) for place in places if instruction.search(place.read_text())]
    assert wrong == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_are_valid_and_start_existing_commands(unit, capsys):
    text = configparser.RawConfigParser(strict=False)
    text.optionxform = str  # type: ignore[assignment]
    text.read(unit)
    words = shlex.split(text["Service"]["ExecStart"])
    if Path(words[0]).name == "hansa":
        assert words[0] == f"{installed_to('manager.md')}/bin/hansa"
        parsed(words[1], words[2:])
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60
    )
    complaints = [line for line in done.stderr.splitlines() if unit.name in line]
    assert complaints == [line for line in complaints if "is not executable" in line]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_are_sandboxed(unit):
    """`systemd-analyze` rates the exposure from 0 to 10; the threshold is in tenths."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=30", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze is older than 250")
    assert done.returncode == 0, done.stdout.splitlines()[-1]


def test_mosquitto_accepts_the_configuration(mosquitto, tmp_path):
    port = free_port()
    text = (DEPLOY / "mosquitto.conf").read_text()
    text = text.replace("listener 1883", f"listener {port} 127.0.0.1")
    text = text.replace("/var/log/mosquitto/", f"{tmp_path}/")
    config = tmp_path / "deploy.conf"
    config.write_text(text + "\nuser root\n")
    broker = subprocess.Popen([mosquitto, "-c", str(config)], stderr=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, cwd=tmp_path)  # fmt: skip
    try:
        while True:
            try:
                client = Client(port)
                break
            except ConnectionRefusedError:
                assert broker.poll() is None
        client.subscribe("$SYS/broker/log/M/subscribe").close()
    finally:
        broker.terminate()
        broker.wait(20)
    assert (tmp_path / "mosquitto.db").exists()  # where it was started, as unit and Compose say
