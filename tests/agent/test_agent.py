"""One agent as a process: reports of wrong settings and faults, and its exit."""

import json
import re
import signal
import socket
import subprocess
from typing import Any

import pytest
from tests.agent.live import eventually

from hansa.cli.main import main
from hansa.testbed.mosquitto import free_port


def test_agent_waits_for_broker_that_is_down_at_start(scene):
    port = free_port()
    agent = scene.agent(broker_port=port)
    agent.says(f"broker lost, still trying address=127.0.0.1:{port} reason='Connection refused'")
    status, page = agent.page("/readyz")
    assert status == 503
    assert json.loads(page) == {"problem": "Connection refused", "ready": False}
    assert agent.page("/healthz")[0] == 200
    scene.broker(port=port)
    agent.says(f"broker connected address=127.0.0.1:{port}")
    eventually(lambda: agent.page("/readyz")[0] == 200, "ready")


def test_port_without_broker_is_reported(scene):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        agent = scene.agent(broker_port=listener.getsockname()[1])
        with listener.accept()[0] as connection:
            connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
            agent.says("broker lost, still trying")
        assert agent.page("/readyz")[0] == 503
        assert agent.process.poll() is None


def test_wrong_password_is_reported_until_corrected(scene, tmp_path, capsys):
    passwords = tmp_path / "passwords"

    def hashed(password: str) -> None:
        passwords.write_text(f"agent:{password}\n")
        subprocess.run(["mosquitto_passwd", "-U", str(passwords)], check=True)
        passwords.chmod(0o644)

    hashed("right")
    broker = scene.broker("allow_anonymous false", f"password_file {passwords}")
    agent = scene.agent(broker_port=broker.port, broker_username="agent", broker_password="wrong")
    reason = (
        "login refused by the broker (0x87 not authorized), tried with the user name 'agent': "
        "check username and password in [broker]"
    )
    address = f"127.0.0.1:{broker.port}"
    agent.says(f"broker refuses the login, still trying address={address} reason={reason!r}")
    agent.says(f"alarm broker login refused: {reason}")
    assert "broker lost" not in agent.log
    assert agent.page("/readyz")[0] == 503
    status = json.loads(agent.page("/status")[1])
    assert status["broker"]["problem"] == status["alarms"]["broker login refused"] == reason
    assert main(["status", f"127.0.0.1:{agent.admin_port}"]) == 0
    assert "login refused by the broker" in " ".join(capsys.readouterr().out.split())
    right = scene.agent(broker_port=broker.port, broker_username="agent", broker_password="right")
    right.says("broker connected")
    assert "right" not in right.log.replace("passwords", "")
    hashed("wrong")
    broker.process.send_signal(signal.SIGHUP)
    agent.says("alarm cleared broker login refused")
    agent.says("broker connected")


def test_second_agent_with_same_state_directory_is_refused(scene, tmp_path):
    broker = scene.broker()
    first = scene.agent(broker_port=broker.port, state=tmp_path / "shared")
    first.says("agent up")
    second = scene.agent(broker_port=broker.port, state=tmp_path / "shared")
    assert second.wait() == 2
    assert second.log == (
        f"hansa: another agent runs with the state directory {tmp_path}/shared;"
        " give this one its own\n"
    )
    assert first.process.poll() is None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"protocol_federation": "other"}, "federation 'hansa' of one meets 'other' of two"),
        ({"protocol_redundancy": 3}, "redundancy=2"),
    ],
    ids=["another federation", "other settings"],
)
def test_incompatible_nodes_refuse_link_with_reason_on_both_sides(scene, settings, reason):
    broker = scene.broker()
    port = free_port()
    one = scene.agent(broker_port=broker.port, link_port=port, name="one")
    neighbours = f"127.0.0.1:{port}"
    two = scene.agent(broker_port=broker.port, link_neighbours=neighbours, name="two", **settings)
    two.says(reason)
    one.says(next(iter(settings)).removeprefix("protocol_"))
    assert "neighbour up" not in one.log + two.log


def test_occupied_admin_port_is_reported(scene):
    first = scene.agent(broker_port=free_port())
    first.says("agent up")
    second = scene.agent(broker_port=free_port(), admin_port=first.admin_port)
    assert second.wait() == 2
    assert second.log == (
        f"hansa: cannot listen on 127.0.0.1:{first.admin_port}: Address already in use; another"
        " port is chosen with [admin] port in the settings, or HANSA_ADMIN_PORT (0 takes a free"
        " one)\n"
    )


@pytest.mark.parametrize("why", ["not configured", "forbidden"])
def test_missing_log_is_reported(scene, tmp_path, why):
    if why == "forbidden":
        rules = tmp_path / "acl"
        rules.write_text("topic readwrite open/#\n")
        rules.chmod(0o644)
        broker = scene.broker(f"acl_file {rules}")
    else:
        broker = scene.broker("log_type none")
    agent = scene.agent(broker_port=broker.port)
    agent.says("the broker sends no log: it needs log_dest topic and log_type subscribe")
    assert json.loads(agent.page("/status")[1])["broker"]["observer_complete"] is False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_agent_stops_cleanly_on_signal(scene, number):
    broker = scene.broker()
    agent = scene.agent(broker_port=broker.port)
    agent.says("broker connected")
    agent.process.send_signal(number)
    assert agent.wait() == 0
    assert agent.log.rstrip().endswith("INFO agent stops")


def test_all_endpoints_answer(scene):
    broker = scene.broker()
    agent = scene.agent(broker_port=broker.port, name="n", broker_observer="static",
                        broker_filters="a/#")  # fmt: skip
    agent.says("broker connected")
    status = json.loads(agent.page("/status")[1])
    assert status["name"] == "n"
    assert status["reachable_nodes"] == [status["node"]]
    assert f"agent up node={status['node']} " in agent.log
    assert status["interest"]["local"] == ["a/#"]
    assert status["broker"] == {
        "address": f"127.0.0.1:{broker.port}",
        "connected": True,
        "observer_complete": True,
        "problem": "",
        "observer_problem": "",
        "limits": {"qos_max": 2, "receive_maximum": 100, "session_expiry": 86_400},
    }
    assert re.search(r"^hansa_broker_connected\{.*\} 1$", agent.page("/metrics")[1], re.M)
    assert [agent.page(path)[0] for path in ("/healthz", "/readyz", "/x")] == [200, 200, 404]


FAULTY = """
from hansa.agent.broker.connection import Connection
from hansa.cli.main import main
async def fault(self):
    raise ZeroDivisionError("a fault to be found")
Connection._connect = fault
raise SystemExit(main(["agent"]))
"""


def test_unexpected_exception_ends_agent_with_traceback(scene):
    agent = scene.agent(broker_port=free_port(), program=("-c", FAULTY))
    assert agent.wait() == 70
    assert "ERROR agent ends with an internal error\nTraceback" in agent.log
    assert "internal error: ZeroDivisionError: a fault to be found" in agent.log


FAULTY_ONCE = """
from hansa.agent.driver import Driver
from hansa.cli.main import main
feed = Driver.feed
def feed_or_fail(self, *events):
    if any("unlucky" in getattr(event, "added", ()) for event in events):
        raise ZeroDivisionError("a fault to be found")
    feed(self, *events)
Driver.feed = feed_or_fail
raise SystemExit(main(["agent"]))
"""


def test_background_exception_raises_alarm_and_interest_is_still_announced(scene):
    broker = scene.broker()
    settings = {"broker_port": broker.port, "broker_log_file": broker.log_file}
    agent = scene.agent(program=("-c", FAULTY_ONCE), **settings)
    agent.says("observer complete")
    client = scene.client(broker.port).subscribe("unlucky")
    agent.says("alarm internal error: a fault of Hansa: ZeroDivisionError: a fault to be found")
    assert "Traceback" in agent.log
    client.subscribe("lucky")

    def status() -> Any:
        return json.loads(agent.page("/status")[1])

    eventually(lambda: "lucky" in status()["interest"]["local"], "seen")
    eventually(lambda: status()["interest"]["installed"], "announced")
    assert list(status()["alarms"]) == ["internal error"]
    assert re.search(
        r"^hansa_alarm_active\{.*alarm=\"internal error\"\} 1$", agent.page("/metrics")[1], re.M
    )


def test_agent_that_cannot_save_its_state_raises_an_alarm_and_continues(scene, tmp_path):
    broker = scene.broker()
    agent = scene.agent(
        broker_port=broker.port, broker_log_file=broker.log_file, state=tmp_path / "state"
    )
    agent.says("observer complete")
    (tmp_path / "state").rename(tmp_path / "elsewhere")
    scene.client(broker.port).subscribe("a/#")
    where = f"{tmp_path}/state/interest.json"
    agent.says(
        f"alarm state not saved: a restart will lose recent state: cannot write {where}: No such"
    )
    assert json.loads(agent.page("/status")[1])["interest"]["local"] == ["a/#"]
    (tmp_path / "elsewhere").rename(tmp_path / "state")
    agent.says("alarm cleared state not saved")
    assert "a/#" in (tmp_path / "state" / "interest.json").read_text()
    agent.process.terminate()
    assert agent.wait() == 0
    assert "Traceback" not in agent.log
