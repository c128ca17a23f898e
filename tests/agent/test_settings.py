"""Settings from a file and from the environment, and their errors."""

import os
import re
import tomllib
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path

import pytest

from hansa.agent.links.link import Address
from hansa.agent.links.settings import parse_address, parse_neighbour
from hansa.agent.settings import AgentSettings, default_state_directory, load_settings
from hansa.cli.main import TRACEBACK
from hansa.compiled_core import PURE
from hansa.errors import UsageError
from hansa.launcher import LAUNCHER
from hansa.protocol.settings import Metric

EXAMPLE = Path(__file__).parents[2] / "docs" / "node.toml"


def written(tmp_path, text):
    path = tmp_path / "node.toml"
    path.write_text(text)
    return path


def test_defaults_apply_without_file_and_environment():
    assert load_settings(None, {}) == AgentSettings()


def test_example_loads_and_lists_every_agent_setting():
    settings = load_settings(EXAMPLE, {})
    assert (settings.name, settings.broker.port) == ("plant-1", 1883)
    named = set(re.findall(r"^(?:# )?(\w+) = ", EXAMPLE.read_text(), re.M))
    parts = (
        settings.broker,
        settings.link,
        settings.link.limits,
        settings.link.mqtt,
        settings.security,
        settings.mqtt_fed,
        settings.proxy,
        settings.rest,
        settings.rest.custom,
        settings.topics,
        settings.admin,
        settings.topology,
        settings.delivery,
        settings.telemetry,
    )
    sections = {"broker", "link", "limits", "mqtt", "mqtt_fed", "proxy", "admin", "topology"}
    sections |= {"rest", "custom", "topics", "delivery", "security", "telemetry", "protocol"}
    for record in (settings, *parts):
        assert {item.name for item in fields(record)} - sections <= named


EXAMPLES = {
    *("name", "broker.tls_ca", "broker.log_file"),
    *("link.neighbours", "link.mqtt.tls_ca", "mqtt_fed.id", "mqtt_fed.neighbours"),
    "topics.kind",
    *("rest.kind", "rest.url", "rest.tls_ca", "rest.custom.path", "rest.custom.rows"),
    *("rest.custom.client", "rest.custom.filter", "topology.advertised_link"),
}
"""Settings whose value in docs/node.toml is an example; all others are shown with their default."""


def test_example_shows_defaults(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    shown: dict[str, object] = {}
    section = ""
    for line in EXAMPLE.read_text().splitlines():
        if found := re.match(r"\[([\w.]+)\]", line):
            section = f"{found[1]}."
        elif found := re.match(r"(?:# )?(\w+) = (.*)", line):
            shown[f"{section}{found[1]}"] = tomllib.loads(f"value = {found[2]}")["value"]
    default = replace(AgentSettings(), state=str(default_state_directory()))
    differing = {
        name
        for name, value in shown.items()
        if value != (list(v) if isinstance(v := attrgetter(name)(default), tuple) else v)
        and value != str(v)
    }
    assert differing == EXAMPLES


def test_endpoints_are_at_port_8080_of_loopback_by_default():
    admin = AgentSettings().admin
    assert (admin.host, admin.port) == ("127.0.0.1", 8080)


@pytest.mark.parametrize(
    ("user", "environment", "expected"),
    [
        (0, {"XDG_STATE_HOME": "/s"}, "/var/lib/hansa/agent"),
        (1000, {"XDG_STATE_HOME": "/s"}, "/s/hansa/agent"),
        (1000, {"XDG_STATE_HOME": "relative"}, "/home/x/.local/state/hansa/agent"),
        (1000, {}, "/home/x/.local/state/hansa/agent"),
    ],
)
def test_state_directory_by_default(monkeypatch, user, environment, expected):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setenv("HOME", "/home/x")
    assert str(default_state_directory(environment)) == expected


def test_file_overrides_defaults(tmp_path):
    text = """
    name = "plant-1"
    capacity = 2
    [broker]
    port = 1884
    tls = true
    [link]
    neighbours = ["a:1", "b"]
    [protocol]
    metric = "rtt"
    redundancy = 3
    """
    settings = load_settings(written(tmp_path, text), {})
    assert settings.display_name == "plant-1"
    assert settings.capacity == 2.0
    assert (settings.broker.port, settings.broker.tls) == (1884, True)
    assert settings.link.neighbours == ("a:1", "b")
    assert (settings.protocol.metric, settings.protocol.redundancy) == (Metric.RTT, 3)


def test_capacity_includes_cores_and_memory(tmp_path):
    alone = load_settings(written(tmp_path, "capacity = 3"), {})
    assert alone.total_capacity == 3.0
    by_core = load_settings(written(tmp_path, "capacity = 3\ncapacity_per_core = 2"), {})
    assert by_core.total_capacity == 3.0 + 2 * (os.cpu_count() or 1)
    by_memory = load_settings(
        written(tmp_path, "capacity = 0\ncapacity_per_gib = 1"), {}
    ).total_capacity
    assert by_memory == pytest.approx(_memory_gib(), rel=0.01)


def _memory_gib() -> float:
    found = re.search(r"MemTotal: *(\d+) kB", Path("/proc/meminfo").read_text())
    assert found is not None
    return int(found[1]) / (1 << 20)


def test_environment_overrides_file(tmp_path):
    path = written(tmp_path, "[broker]\nport = 1884\n")
    environment = {
        "HANSA_BROKER_PORT": "1885",
        "HANSA_BROKER_TLS": "yes",
        "HANSA_LINK_NEIGHBOURS": "a:1, b:2,",
        "HANSA_PROTOCOL_HEARTBEAT_INTERVAL": "0.5",
        "HOME": "/root",
    }
    settings = load_settings(path, environment)
    assert (settings.broker.port, settings.broker.tls) == (1885, True)
    assert settings.link.neighbours == ("a:1", "b:2")
    assert settings.protocol.heartbeat_interval == 0.5


def test_default_node_name_is_broker_address():
    assert load_settings(None, {}).display_name == "127.0.0.1:1883"


def test_password_is_not_shown():
    shown = repr(
        load_settings(None, {"HANSA_BROKER_USERNAME": "u", "HANSA_BROKER_PASSWORD": "secret"})
    )
    assert "secret" not in shown


def rest(**values: str | float) -> str:
    """Settings of the observer rest, with changes."""
    fields = {"kind": "nats", "url": "http://127.0.0.1:8222", **values}
    lines = (f'{k} = "{v}"' if isinstance(v, str) else f"{k} = {v}" for k, v in fields.items())
    return "\n".join(["[broker]", 'observer = "rest"', "[rest]", *lines])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nam = 'x'", "unknown setting 'nam'; did you mean 'name'?"),
        ("zzz = 1", "unknown setting 'zzz'"),
        ("[broker]\nprt = 1", "[broker]: unknown setting 'prt'; did you mean 'port'?"),
        ("broker = 5", "broker is a section: write [broker], not broker = …"),
        ("[name]\na = 1", "name must be a text, not {'a': 1}"),
        ("name = 5", "name must be a text, not 5"),
        ("capacity = 'much'", "capacity must be a number, not 'much'"),
        ("capacity = inf", "capacity must be a number, not inf"),
        ("capacity = nan", "capacity must be a number, not nan"),
        ("capacity = 1e308\ncapacity_per_core = 1e308", "capacity, with what this machine adds"),
        ("[broker]\nport = 1.5", "port must be a whole number, not 1.5"),
        ("[broker]\nport = true", "port must be a whole number, not True"),
        ("[broker]\ntls = 'perhaps'", "tls must be true or false, not 'perhaps'"),
        ("[link]\nneighbours = 5", "neighbours must be a list of texts, not 5"),
        ("[link]\nneighbours = [5]", "neighbours must be a list of texts, not [5]"),
        ("[protocol]\nmetric = 'km'", "metric must be one of hops, rtt, not 'km'"),
        ("[protocol]\nredundancy = 0", "[protocol]: redundancy must be from 1 to 16, not 0"),
        ("log = 'loud'", "log must be one of debug, info, warning, error, not 'loud'"),
        (
            "[broker]\nobserver = 'x'",
            "[broker] observer must be one of mosquitto, rest, topics, proxy, beacon,"
            " static, embedded, not 'x'",
        ),
        (f"name = '{256 * 'x'}'", "name must have at most 255 bytes"),
        ("capacity = -1", "capacity must not be below 0, not -1.0"),
        ("capacity_per_core = -1", "capacity_per_core must not be below 0, not -1.0"),
        ("[broker]\nhost = ''", "[broker] host is missing"),
        ("[broker]\nfilters = ['a']", '[broker] filters is for observer = "static"'),
        (
            "[broker]\nobserver = 'static'\nfilters = ['a/#/b']",
            "[broker] filters: topic filter 'a/#/b': '#' must be the last level",
        ),
        (
            "[broker]\nfilters_when_unknown = ['a/#/b']",
            "[broker] filters_when_unknown: topic filter 'a/#/b': '#' must be the last level",
        ),
        (
            "[broker]\nfilters_when_unknown = ['$share/g/a']",
            "[broker] filters_when_unknown: '$share/g/a': topics with $ stay with their broker",
        ),
        ("[broker]\npassword = 'x'", "[broker] password needs a username"),
        ("[broker]\ntls_ca = 'x'", "[broker] tls_ca is for tls = true"),
        ("[broker]\npid_file = 'x'", "[broker] pid_file and output_file need each other"),
        ("[broker]\noutput_file = 'x'", "[broker] pid_file and output_file need each other"),
        ("[broker]\nbeacon_interval = 0", "beacon_interval must be above 0 seconds, not 0.0"),
        ("[link]\ntransport = 'x'", "[link] transport must be one of tcp, udp, mqtt, not 'x'"),
        (
            "[broker]\nobserver = 'embedded'\n[link]\ntransport = 'mqtt'",
            "needs a broker that carries links, which embedded does not: use tcp or udp",
        ),
        ("mode = 'mqtt-fed'", 'mode = "mqtt-fed" needs [mqtt_fed] id, a number that no other'),
        ("mode = 'mqtt-fed'\n[broker]\nobserver = 'proxy'", "\"mqtt-fed\" has no observer 'proxy'"),
        ("mode = 'x'", "mode must be one of hansa, mqtt-fed, not 'x'"),
        ("mode = 'mqtt-fed'\n[broker]\nobserver = 'embedded'", "needs a broker with MQTT 5"),
        ("[mqtt_fed]\nid = -2", "[mqtt_fed] id must be from 0 to 4294967295, not -2"),
        ("[mqtt_fed]\nredundancy = 0", "[mqtt_fed] redundancy must be from 1 to 16, not 0"),
        ("[mqtt_fed]\nannounce_interval = 0", "announce_interval must be at least 1 second"),
        ("[mqtt_fed]\nneighbours = ['a:1']", "neighbour 'a:1': write it as id@host:port"),
        ("[mqtt_fed]\nneighbours = ['1@a', '1@b']", "neighbour '1@b': the id 1 is there twice"),
        ("[mqtt_fed]\nid = 1\nneighbours = ['1@a']", "neighbours: 1 is this node's own id"),
        ("[link.mqtt]\npassword = 'x'", "[link.mqtt] password needs a username"),
        ("[link.mqtt]\ntls_ca = 'x'", "[link.mqtt] tls_ca is for tls = true"),
        ("[link.mqtt]\nprefix = 'a/#'", "[link.mqtt] prefix: "),
        (
            "[link.mqtt]\naccepted_nodes = ['x']",
            "[link.mqtt] accepted_nodes: 'x' is no node id of 16 hexadecimal",
        ),
        (
            "[link.mqtt]\ntrusted_brokers = ['a:x']",
            "neighbour 'a:x': the port must be a number from 1 to",
        ),
        ("[link.mqtt]\nchunk_bytes = 99", "[link.mqtt] chunk_bytes must be from 1024 to 65536"),
        ("[link]\nneighbours = ['x://a:1']", "neighbour 'x://a:1': the transport must be one of"),
        ("[link]\nneighbours = ['udp://a:x']", "neighbour 'a:x': the port must be a number"),
        (
            "[link]\nwindow_bytes = 1000",
            "[link] window_bytes must be at least 262144 bytes, not 1000",
        ),
        ("[broker]\nport = 0", "[broker] port must be from 1 to 65535, not 0"),
        ("[link]\nport = 65536", "[link] port must be from 0 to 65535, not 65536"),
        ("[admin]\nport = -1", "[admin] port must be from 0 to 65535, not -1"),
        ("[link]\nneighbours = ['a:x']", "neighbour 'a:x': the port must be a number from 1 to"),
        ("name = ", "is no TOML"),
        ("[proxy]\nproxy_protocol = 'v3'", "[proxy] proxy_protocol must be v1 or v2, not 'v3'"),
        ("[proxy]\nproxy_protocol = 'v2'", "[proxy] proxy_protocol needs broker_port"),
        (
            "[broker]\npersistence_file = '/x'",
            "[broker] persistence_file needs log_file",
        ),
        ("[proxy]\nwebsocket_port = 1", "[proxy] websocket_port needs broker_websocket_port"),
        ("[proxy]\nwebsocket_port = 70000", "[proxy] websocket_port must be from 0 to 65535"),
        ("[proxy]\nunfinished_max = 0", "[proxy] unfinished_max must be at least 1"),
        ("[proxy]\nhandshake_timeout = 0", "[proxy] handshake_timeout must be more than 0"),
        (
            "[proxy]\npassthrough_names = ['a']",
            "[proxy] passthrough_names needs tls_certificate and passthrough_port",
        ),
        (
            "[proxy]\npassthrough_filters = ['a']",
            "[proxy] passthrough_filters needs passthrough_names",
        ),
        (
            "[proxy]\ntls_certificate = 'c'\npassthrough_port = 1\npassthrough_names = ['A']",
            "[proxy] passthrough_names: 'A' must be in lower case",
        ),
        (
            "[proxy]\ntls_certificate = 'c'\npassthrough_port = 1\npassthrough_names = ['a']\n"
            "passthrough_filters = ['#/a']",
            "[proxy] passthrough_filters: ",
        ),
        ("[proxy]\nbroker_port = -1", "[proxy] broker_port must be from 0 to 65535"),
        ("[broker]\nobserver = 'topics'", "[topics] kind must be one of aedes, rmqtt, not ''"),
        (rest(kind="x"), "[rest] kind must be one of nats, rabbitmq, rmqtt, emqx, nanomq, custom"),
        (rest(url="ftp://a"), "[rest] url must be http://HOST:PORT or https://HOST:PORT"),
        (rest(password="p"), "[rest] password needs a username"),
        (rest(token="t", username="u"), "[rest] token and username exclude each other"),
        (rest(token="a\\nb"), "[rest] username, password and token must be one line each"),
        (rest(tls_ca="x"), "[rest] tls_ca is for a url with https"),
        (rest(interval=0.01), "[rest] interval must be at least 0.1, not 0.01"),
        (rest(timeout=0.0), "[rest] timeout must be above 0 seconds, not 0.0"),
        (rest(kind="custom"), "[rest.custom] path must begin with /, not ''"),
    ],
)
def test_invalid_setting_is_refused_with_advice(tmp_path, text, complaint):
    with pytest.raises(UsageError, match=re.escape(complaint)):
        load_settings(written(tmp_path, text), {})


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("HANSA_BROKER_PROT", "1", "'HANSA_BROKER_PROT'; did you mean 'HANSA_BROKER_PORT'?"),
        ("HANSA_BROKER_PORT", "many", "HANSA_BROKER_PORT: port must be a whole number, not 'many'"),
        (
            "HANSA_PROTOCOL_DEDUP_WINDOW",
            "7",
            "environment: dedup_window must be a power of two, at least 64",
        ),
    ],
)
def test_invalid_environment_value_is_refused(name, text, complaint):
    with pytest.raises(UsageError, match=re.escape(complaint)):
        load_settings(None, {name: text})


def test_command_line_variables_are_not_settings():
    assert load_settings(None, {LAUNCHER: "./run", TRACEBACK: "1", PURE: "1"}) == AgentSettings()


def test_missing_file_is_reported(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*missing.toml: No such file"):
        load_settings(tmp_path / "missing.toml", {})


def test_binary_file_is_refused(tmp_path):
    path = tmp_path / "node.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is no TOML"):
        load_settings(path, {})


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("a.example", Address("a.example", 10_500)),
        ("a.example:7", Address("a.example", 7)),
        ("[::1]:7", Address("::1", 7)),
        ("[::1]", Address("::1", 10_500)),
    ],
)
def test_valid_address_is_parsed(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["::1", ":7", "a:0", "a:65536", "a:", "a:٣"])
def test_invalid_address_is_refused(text):
    with pytest.raises(UsageError, match="neighbour"):
        parse_address(text)


def test_neighbour_address_may_include_transport():
    assert parse_neighbour("a:1", "udp") == ("udp", Address("a", 1))
    assert parse_neighbour("tcp://a:1", "udp") == ("tcp", Address("a", 1))
    assert parse_neighbour("mqtt://a", "tcp") == ("mqtt", Address("a", 1_883))
    assert parse_neighbour("udp://[::1]", "tcp") == ("udp", Address("::1", 10_500))
