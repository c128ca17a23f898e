"""`hansa doctor` with good and bad configurations of brokers, and without a broker."""

import asyncio
import json
import re
import socket
from pathlib import Path

import pytest
from tests.agent.live import Client as Subscriber

from hansa.agent.broker.connection import BrokerAddress
from hansa.cli.main import main
from hansa.testbed.clients import RecordingClient, wait_until
from hansa.testbed.probes import examination

LOGS = (
    "log_dest topic",
    "log_type subscribe",
    "log_type unsubscribe",
    "log_type notice",
    "log_type error",
)
LONG_S = 20.0
SHORT_S = 0.5
ROOM = ("max_inflight_messages 100", "max_queued_messages 100000")


@pytest.fixture(autouse=True)
def wait_for_lines(monkeypatch):
    """Sets the timeout for log lines; long where a line must arrive."""

    def wait(seconds: float) -> None:
        monkeypatch.setattr(examination, "LINE_TIMEOUT_S", seconds)

    wait(LONG_S)
    return wait


def test_well_configured_broker_passes(broker, capsys):
    address = broker("allow_anonymous true", *ROOM, *LOGS)
    assert main(["doctor", address, "--queue"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"✓ {address}: mosquitto version ")
    assert "✓ MQTT 5, receive maximum 100\n" in out
    assert "✓ log lines received: subscribe, unsubscribe, connect, takeover\n" in out
    assert "✓ guaranteed delivery: exactly-once: it resumes sessions" in out
    assert "✓ all of 1200 publications for a disconnected client were kept\n" in out
    assert "Add to mosquitto.conf" not in out
    assert out.endswith("An agent can work here.\n")


def test_doctor_leaves_no_interest_behind(broker, tmp_path, capsys):
    """The log does not contain the session expiry of MQTT 5, so the doctor must unsubscribe."""
    log_file = tmp_path / "log"
    assert main(["doctor", broker("allow_anonymous true", *LOGS, f"log_dest file {log_file}")]) == 0
    lines = [line.split()[1:] for line in log_file.read_text().splitlines()]
    lines = [words for words in lines if words[-1].startswith("hansa/doctor/")]
    subscribed = {(words[0], words[-1]) for words in lines if len(words) == 3}
    unsubscribed = {(words[0], words[-1]) for words in lines if len(words) == 2}
    assert len(subscribed) == 4
    assert subscribed <= unsubscribed


def test_report_as_json(broker, capsys, wait_for_lines):
    wait_for_lines(SHORT_S)
    address = broker("allow_anonymous true")
    assert main(["doctor", address, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    shown = (report["broker"], report["usable"], report["observer"], report["delivery_class"])
    assert shown == (address, False, "mosquitto", "exactly-once")
    worst = report["findings"][0]
    assert (worst["severity"], worst["problem"][:12]) == ("error", "no log lines")
    assert "log_type subscribe" in worst["lines"]


def test_configuration_as_json(tmp_path, capsys):
    file = tmp_path / "mosquitto.conf"
    file.write_text("")
    assert main(["doctor", "--config", str(file), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["severity"] == "error"
    assert main(["doctor", "--config", str(file), "--json", "--fix"]) == 2
    assert "leave out --json" in capsys.readouterr().err


def test_broker_without_log_topics_gets_the_missing_lines(broker, capsys, wait_for_lines):
    wait_for_lines(SHORT_S)
    assert main(["doctor", broker("allow_anonymous true")]) == 1
    out = capsys.readouterr().out
    assert "✗ log lines received: none\n" in out
    printed = out.partition("Add to mosquitto.conf:\n")[2].partition("\n\n")[0].splitlines()
    assert {line.strip() for line in printed} >= {*LOGS, "connection_messages true"}


@pytest.mark.parametrize(
    "logs",
    [
        (),
        ("log_dest topic",),
        LOGS[:2],
        ("log_dest topic", "log_type unsubscribe", "log_type error"),
        (*LOGS, "connection_messages false"),
        ("log_dest stderr",),
    ],
    ids=lambda logs: ", ".join(logs) or "nothing",
)
def test_printed_lines_are_sufficient(logs, broker, capsys, wait_for_lines):
    wait_for_lines(SHORT_S)
    assert main(["doctor", broker("allow_anonymous true", *logs)]) == 1
    printed = capsys.readouterr().out.partition("Add to mosquitto.conf:\n")[2].partition("\n\n")[0]
    lines = [line.strip() for line in printed.splitlines()]
    wait_for_lines(LONG_S)
    assert main(["doctor", broker("allow_anonymous true", *logs, *lines)]) == 0
    assert "Add to mosquitto.conf" not in capsys.readouterr().out


def test_queue_is_overflowed_only_on_request(broker, capsys):
    short = ("max_queued_messages 50", "max_inflight_messages 20")
    address = broker("allow_anonymous true", *short, *LOGS)
    kept = "all of 20 publications for a disconnected client were kept; --queue tries more"
    assert main(["doctor", address]) == 0
    assert kept in " ".join(capsys.readouterr().out.split())
    assert main(["doctor", address, "--queue"]) == 0
    assert "the broker kept 50 and dropped the rest" in " ".join(capsys.readouterr().out.split())


def test_short_queue_is_measured(broker, capsys):
    assert main(["doctor", broker("allow_anonymous true", *LOGS), "--queue"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "while no more than 1000 publications wait for one" in out
    assert (
        "! of 1200 publications for a disconnected client the broker kept 1000 and dropped the"
        " rest" in out
    )
    assert "Add to mosquitto.conf: max_queued_messages 100000 Recommended" in out


def test_broker_without_qos_2_has_a_lower_delivery_class(broker, capsys):
    assert main(["doctor", broker("max_qos 1", "allow_anonymous true", *ROOM, *LOGS)]) == 0
    out = capsys.readouterr().out
    assert "! guaranteed delivery: at-least-once: it takes no QoS 2\n" in out


def test_missing_log_type_is_named(broker, capsys):
    logs = [line for line in LOGS if line != "log_type subscribe"]
    assert main(["doctor", broker("allow_anonymous true", *logs)]) == 1
    out = capsys.readouterr().out
    assert "✗ subscriptions are not logged\n" in out
    assert "log_type subscribe" in out.partition("Add to mosquitto.conf:\n")[2]


@pytest.mark.parametrize("has_file", [True, False])
def test_log_file_comes_from_the_settings_of_the_agent(has_file, broker, tmp_path, capsys):
    file = tmp_path / "broker.log"
    logs = (*LOGS, "log_type information", f"log_dest file {file}")
    port = broker("allow_anonymous true", *logs).rpartition(":")[2]
    config = tmp_path / "node.toml"
    line = f'log_file = "{file}"' if has_file else ""
    config.write_text(f"[broker]\nport = {port}\n{line}\n")
    assert main(["doctor", "--config", str(config)]) == 0
    out = capsys.readouterr().out
    assert ("subscriptions from before the agent's start are unknown" in out) is not has_file
    assert ("log_dest file /var/log/mosquitto/mosquitto.log" in out) is not has_file


@pytest.mark.parametrize("given", [[], ["localhost:1883", "--config", "node.toml"]])
def test_address_and_settings_exclude_each_other(given, capsys):
    assert main(["doctor", *given]) == 2
    assert "give either HOST:PORT or --config FILE" in capsys.readouterr().err


def test_tls_is_used_on_request(broker, tmp_path, capsys):
    address = broker("allow_anonymous true", *LOGS)
    assert main(["doctor", address, "--tls"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["doctor", address, "--tls-ca", str(tmp_path / "none.pem")]) == 2
    expected = f"hansa: [broker] tls_ca {tmp_path}/none.pem: No such file or directory\n"
    assert capsys.readouterr().err == expected


def test_bridge_is_reported(broker, capsys):
    far = broker("allow_anonymous true")
    bridge = ("connection leftover", f"address {far}", "topic # both 0")
    address = broker("allow_anonymous true", *LOGS, *bridge)

    async def until_joined() -> None:
        host, _, port = address.partition(":")
        where = BrokerAddress(host, int(port))
        client = RecordingClient(where, "onlooker", examination.BRIDGES)
        await client.start()
        joined = lambda: any(a.payload == b"1" for a in client.arrivals)  # noqa: E731
        assert await wait_until(joined, 20)
        await client.stop()

    asyncio.run(until_joined())
    assert main(["doctor", address]) == 0
    assert "leftover': if it connects to a broker of this federation, messages loop" in (
        " ".join(capsys.readouterr().out.split())
    )


def test_access_list_that_hides_the_log_is_reported(broker, tmp_path, capsys, wait_for_lines):
    wait_for_lines(SHORT_S)
    rules = tmp_path / "acl"
    rules.write_text("topic readwrite hansa/#\n")
    assert main(["doctor", broker("allow_anonymous true", f"acl_file {rules}", *LOGS)]) == 1
    assert "an access list hides them" in " ".join(capsys.readouterr().out.split())


def test_access_list_that_blocks_publications_is_reported(broker, tmp_path, capsys):
    rules = tmp_path / "acl"
    rules.write_text("topic read $SYS/#\n")
    assert main(["doctor", broker("allow_anonymous true", f"acl_file {rules}", *LOGS)]) == 1
    out = capsys.readouterr().out
    assert "a publication of one client did not reach another" in out
    assert "! guaranteed delivery: unknown: no QoS 1 publication of one client reached" in out


def test_refused_connection_is_one_line(broker, capsys):
    address = broker("allow_anonymous false", *LOGS)
    assert main(["doctor", address, "--username", "hansa", "--password", "wrong"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"hansa: broker {address}: ")
    assert err.endswith(
        "login refused by the broker (0x87 not authorized), tried with the user name 'hansa': "
        "check --username and HANSA_BROKER_PASSWORD\n"
    )


def test_unreachable_broker_is_one_line(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["doctor", address]) == 2
    remedy = "does a broker run there, and is it its port of MQTT, such as 1883?"
    answer = f"hansa: broker {address}: Connection refused; {remedy}\n"
    assert capsys.readouterr() == ("", answer)


@pytest.mark.parametrize("text", ["localhost", "localhost:", ":1883", "h:0", "h:65536", "h:x"])
def test_address_needs_host_and_port(text, capsys):
    assert main(["doctor", text]) == 2
    assert capsys.readouterr() == (
        "",
        f"hansa: argument HOST:PORT: {text!r} must be HOST:PORT, as in localhost:1883;"
        " see `hansa doctor --help`\n",
    )


# ---------------------------------------------------------------- what was subscribed before

ALL_LOGS = ("allow_anonymous true", *ROOM, *LOGS, "log_type warning", "log_type information")
DEPLOYED = Path(__file__).parents[2] / "deploy" / "mosquitto.conf"


@pytest.fixture
def subscriber():
    """Connects clients to a broker; they disconnect at the end of the test."""
    made: list[Subscriber] = []

    def connect(address: str, name: str = "", *, clean: bool = True) -> Subscriber:
        made.append(Subscriber(int(address.rpartition(":")[2]), name, clean=clean))
        return made[-1]

    yield connect
    for client in made:
        client.kill()


def words(capsys) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_unobserved_subscription_is_reported(broker, subscriber, capsys):
    address = broker("allow_anonymous true", *ROOM)
    subscriber(address).subscribe("early/1")
    broker.reload(address, *LOGS)
    assert main(["doctor", address]) == 0
    out = words(capsys)
    assert "! the broker had 1 subscriptions before this check." in out
    assert "SIGHUP does not help: Mosquitto logs only new subscriptions." in out
    assert out.endswith("An agent can work here, with the limits named above.")


def test_own_subscriptions_are_not_counted(broker, subscriber, capsys, wait_for_lines):
    wait_for_lines(SHORT_S)
    address = broker("allow_anonymous true", *ROOM)
    early = subscriber(address).subscribe("early/1")
    assert main(["doctor", address]) == 1
    assert "! the broker had 1 subscriptions before this check." in words(capsys)
    early.close()
    assert main(["doctor", address]) == 1
    out = words(capsys)
    assert "before this check" not in out
    assert "Log settings take effect at SIGHUP" in out


def test_complete_log_file_is_confirmed_by_the_counters(broker, subscriber, tmp_path, capsys):
    log_file = tmp_path / "log"
    address = broker(*ALL_LOGS, f"log_dest file {log_file}")
    subscriber(address).subscribe("early/1", "$share/g/early")
    assert main(["doctor", address, "--log-file", str(log_file)]) == 0
    out = words(capsys)
    assert re.search(r"✓ all \d+ subscriptions are known, confirmed by broker counters", out)
    assert "!" not in out


def test_log_file_enabled_by_sighup_is_incomplete(broker, subscriber, tmp_path, capsys):
    log_file = tmp_path / "log"
    address = broker("allow_anonymous true", *ROOM, f"log_dest file {log_file}")
    early = subscriber(address, "early").subscribe("early/1")
    broker.reload(address, *LOGS, "log_type information")
    assert main(["doctor", address, "--log-file", str(log_file)]) == 0
    out = words(capsys)
    assert "! an agent would not know every subscription: the log of subscriptions may have" in out
    assert "Make the connected clients reconnect, or restart the broker" in out
    early.close()
    subscriber(address, "early").subscribe("early/1")
    assert main(["doctor", address, "--log-file", str(log_file)]) == 0
    assert "subscriptions are known, confirmed by broker counters" in words(capsys)


def test_restart_is_not_advised_for_restored_sessions(broker, subscriber, tmp_path, capsys):
    log_file, kept = tmp_path / "log", ("persistence true", f"persistence_location {tmp_path}/")
    address = broker(*ALL_LOGS, *kept, f"log_dest file {log_file}")
    subscriber(address, "away", clean=False).subscribe("away/1").close()
    broker.restart(address)
    assert main(["doctor", address, "--log-file", str(log_file)]) == 0
    out = words(capsys)
    assert "the broker may have restored sessions from disk at its start" in out
    assert "neither SIGHUP nor a restart helps for persistent sessions" in out


def test_unreadable_log_file_is_reported(broker, tmp_path, capsys):
    address = broker(*ALL_LOGS)
    assert main(["doctor", address, "--log-file", str(tmp_path / "none")]) == 0
    assert "subscriptions from before the agent's start are unknown" in words(capsys)


def test_without_counters_the_log_file_is_not_enough(broker, tmp_path, capsys):
    log_file = tmp_path / "log"
    address = broker(*ALL_LOGS, "sys_interval 0", f"log_dest file {log_file}")
    assert main(["doctor", address, "--log-file", str(log_file)]) == 0
    out = words(capsys)
    assert "the broker may have restored sessions from disk at its start" in out
    assert "no $SYS topics: sys_interval is 0" in out


def test_deployed_configuration_has_no_problems(broker, tmp_path, capsys):
    assert main(["doctor", "--config", str(DEPLOYED)]) == 0
    assert capsys.readouterr().out == (
        f"✓ {DEPLOYED}: an agent would know every subscription since the start of the broker\n\n"
        "An agent can work here.\n"
    )
    log_file = tmp_path / "mosquitto.log"
    text = DEPLOYED.read_text().replace("listener 1883\n", "").replace("./", f"{tmp_path}/")
    text = text.replace("/var/log/mosquitto/mosquitto.log", str(log_file))
    lines = [line for line in text.splitlines() if line != "sys_interval 10"]
    address = broker(*lines)
    for more in ([], ["--log-file", str(log_file)]):
        assert main(["doctor", address, *more]) == 0
        out = words(capsys)
        assert "!" not in out
        assert "✓ log lines received: subscribe, unsubscribe, connect, takeover" in out
        assert out.endswith("An agent can work here.")


def test_configuration_is_checked_without_a_broker(tmp_path, capsys):
    config = tmp_path / "mosquitto.conf"
    config.write_text("# a comment\nlistener 1883\nlog_dest topic\nconnection other\n")
    assert main(["doctor", "--config", str(config)]) == 1
    out = capsys.readouterr().out
    assert "✗ subscriptions are not logged\n" in out
    assert "bridge 'other'" in out
    added = out.partition("Add to mosquitto.conf:\n")[2].partition("\n\n")[0].split("\n")
    assert {"  log_type subscribe", "  persistence true"} <= set(added)
    assert main(["doctor", "--config", str(tmp_path / "none.conf")]) == 2
    assert capsys.readouterr().err.startswith(f"hansa: cannot read {tmp_path}/none.conf: ")


def test_missing_lines_are_added_to_a_configuration(tmp_path, capsys):
    config = tmp_path / "mosquitto.conf"
    before = "listener 1883\nlog_dest topic\nmax_queued_messages 10\n"
    config.write_text(before)
    assert main(["doctor", "--config", str(config), "--fix"]) == 0
    out = capsys.readouterr().out
    assert "log_dest topic" not in out
    assert "log_type subscribe\n" in out
    assert out.endswith("# then restart the broker: after SIGHUP it logs only new subscriptions\n")
    assert (tmp_path / "mosquitto.conf.before-hansa").read_text() == before
    assert "# max_queued_messages 10\n" in config.read_text()
    assert main(["doctor", "--config", str(config), "--fix"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["doctor", "--config", str(config)]) == 0


def test_fix_prints_lines_for_a_running_broker(broker, capsys, wait_for_lines):
    wait_for_lines(SHORT_S)
    assert main(["doctor", broker("allow_anonymous true", "log_type none"), "--fix"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert {"log_dest topic", "log_type subscribe"} <= set(lines)
    assert lines[-1] == "# then restart the broker: after SIGHUP it logs only new subscriptions"
