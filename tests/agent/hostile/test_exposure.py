"""Agents and managers refuse other machines and other web origins."""

import http.client
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agent.live import Live, eventually
from tests.agent.process import Scene
from tests.manager.serving import Served

from hansa.agent.settings import load_settings


def get(port: int, path: str, **headers: str) -> int:
    """Return the HTTP status; a browser sends the host name of the page as Host."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("section", ["link", "admin"])
def test_agent_exposed_without_consent_exits_with_code_2(tmp_path: Path, section: str):
    config = tmp_path / "node.toml"
    config.write_text(f'state = "{tmp_path}/state"\n[{section}]\nhost = "0.0.0.0"\n')
    done = subprocess.run(
        [sys.executable, "-m", "hansa.cli", "agent", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"[{section}] host '0.0.0.0' is reachable from other machines" in done.stderr
    assert f"set [{section}] insecure = true" in done.stderr
    assert "Traceback" not in done.stderr
    config.write_text(config.read_text() + "insecure = true\n")
    assert load_settings(config, {}).exposure_text


def test_insecure_agent_runs_with_permanent_alarm(scene: Scene):
    # "127.1" is loopback for the kernel, which the settings cannot know: no port of the test is
    # open to other machines.
    agent = scene.agent(broker_port=scene.broker().port, link_host="127.1", link_insecure="true")
    eventually(lambda: agent.page("/status")[0] == 200, "the agent is up")
    alarms = json.loads(agent.page("/status")[1])["alarms"]
    assert "links on 127.1: reachable from other machines" in alarms["insecure"]
    metrics = agent.page("/metrics")[1].splitlines()
    assert [line for line in metrics if 'alarm="insecure"' in line and line.endswith(" 1")]
    agent.says("alarm insecure: links on 127.1: reachable from other machines")


def test_status_refuses_other_web_origins(live: Live):
    port = live.nodes[0].admin_port
    for path in ("/status", "/metrics", "/healthz", "/readyz", "/logs"):
        assert get(port, path, Host="attacker.example") == 403
    assert get(port, "/status", Host=f"localhost:{port}") == 200
    assert get(port, "/status") == 200


def test_open_manager_refuses_other_web_origins(tmp_path: Path):
    served = Served(f"sqlite:///{tmp_path / 'm.db'}")
    try:
        assert get(served.port, "/api/v1/nodes") == 200
        assert get(served.port, "/api/v1/nodes", Host="attacker.example") == 403
        for origin in ("https://attacker.example", "null", "http://localhost:3000"):
            assert get(served.port, "/api/v1/nodes", Origin=origin) == 403
        own = {"Host": f"localhost:{served.port}", "Origin": f"http://localhost:{served.port}"}
        assert get(served.port, "/api/v1/nodes", **own) == 200
    finally:
        served.stop()


def test_manager_with_a_token_may_have_any_name(tmp_path: Path):
    served = Served(f"sqlite:///{tmp_path / 'm.db'}", {"HANSA_MANAGER_TOKEN": "secret"})
    try:
        named = {"Host": "manager.example", "Authorization": "Bearer secret"}
        assert get(served.port, "/api/v1/nodes", **named) == 200
        assert get(served.port, "/api/v1/nodes", Host="manager.example") == 401
    finally:
        served.stop()
