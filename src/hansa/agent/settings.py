"""An agent's configuration: one TOML file, every value also as an environment variable.

`[broker] port = 1883` is `HANSA_BROKER_PORT=1883`; the environment wins. An unknown name is an
error that suggests the nearest one; nothing is silently ignored.
"""

import difflib
import math
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from hansa.agent.broker.access import check_access, tls_context
from hansa.agent.broker.connection import BrokerAddress
from hansa.agent.delivery.settings import DeliverySettings
from hansa.agent.exposure import check_admin_exposure, is_loopback
from hansa.agent.links.mqtt import MqttLinkAccess
from hansa.agent.links.settings import (
    BROKER_PORT,
    PORT_MAX,
    LinkSettings,
    check_link,
    trusted_brokers,
)
from hansa.agent.mqttfed.settings import NO_ID, MqttFedSettings, check_mqtt_fed
from hansa.agent.telemetry.settings import SampleRate, TelemetrySettings
from hansa.agent.topology.settings import PAPER_VARIABLES, TopologySettings, check_topology
from hansa.errors import InvalidTopic, UsageError
from hansa.protocol.model import NodeId
from hansa.protocol.settings import LABEL_BYTES_MAX, ProtocolSettings
from hansa.protocol.topics import check_filter

VARIABLE_PREFIX = "HANSA_"
OTHER_VARIABLES = (
    *("HANSA_LAUNCHER", "HANSA_TRACEBACK", "HANSA_CRASH_POINT"),
    *("HANSA_MANAGER_TOKEN", "HANSA_MANAGER_HEALTH_INTERVAL", "HANSA_MANAGER_BROKERS"),
    *("HANSA_MANAGER_BROKER_USERNAME", "HANSA_MANAGER_BROKER_PASSWORD"),
)
"""Variables of the command line, the manager and tests that an agent may inherit."""
OBSERVERS = ("mosquitto", "proxy", "beacon", "static", "embedded")
ADMIN_PORT = 8_080
PROXY_PORT = 1_884
OVERLAP_COPIES = ("each", "once")
MODES = ("hansa", "mqtt-fed")
RECORD_FILTERS_MAX = 1_024
"""Most filters in `record`."""
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The broker beside this agent."""

    host: str = "127.0.0.1"
    port: int = BROKER_PORT
    username: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    """Whether to use TLS to the broker."""
    tls_ca: str = ""
    """File with the certificate authorities to trust; empty: those of the system."""
    observer: str = "mosquitto"
    """How to learn subscriptions: mosquitto, proxy, beacon or static; or embedded, a broker in
    the agent for evaluation, which listens on this host and port."""
    filters: tuple[str, ...] = ()
    """With observer static: the filters of clients here."""
    filters_when_unknown: tuple[str, ...] = ("#",)
    """Filters to announce while the agent does not know every subscription here, so that no
    client misses a message. Fewer filters save bandwidth; with an empty list, clients whose
    subscriptions are unknown get nothing."""
    log_file: str = ""
    """The broker's `log_dest file`, if the agent can read it: shows earlier subscriptions."""
    pid_file: str = ""
    """The broker's `pid_file`, if the agent may send SIGUSR2 to make the broker print all
    filters."""
    output_file: str = ""
    """With pid_file: the file of the broker's standard output, written line by line."""
    client_id: str = ""
    """Prefix of the agent's client ids at the broker; `hansa-<node id>` if empty."""
    beacon_interval: float = 10.0
    """With observer beacon: seconds between two beacons of one topic."""
    overlap_copies: str = "each"
    """Copies that a broker without MQTT 5 sends of a publication that several of the agent's
    filters match: each, one for each of them, or once. `hansa doctor` finds out."""


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """With [broker] observer = "proxy": the address that clients connect to instead of the
    broker's."""

    host: str = "127.0.0.1"
    """Address to listen on: that of an interface, 0.0.0.0 or :: for all."""
    port: int = PROXY_PORT
    """0 takes a free port and logs it."""
    tls_certificate: str = ""
    """File with the certificate for clients; without one they use plain MQTT."""
    tls_key: str = ""
    """File with its private key, if it is not in the same file."""
    no_earlier_sessions: bool = False
    """Whether no client has left a persistent session at the broker before the proxy first ran.
    Until this is set, subscriptions may be unknown and the agent announces filters_when_unknown."""


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """The agent's HTTP endpoints."""

    host: str = "127.0.0.1"
    """Address to listen on. Beyond loopback only with insecure."""
    port: int = ADMIN_PORT
    """0 takes a free port and logs it."""
    token: str = field(default="", repr=False)
    """Token required to read journals and telemetry from /logs; without one /logs is closed."""
    insecure: bool = False
    """Whether to listen beyond loopback although /status and /metrics require no password. Only
    for networks that you trust; raises the alarm insecure."""
    names: tuple[str, ...] = ()
    """Host names, besides those of loopback, that requests may use, such as that of a reverse
    proxy. Other names get 403, so that web pages cannot read the status."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """One agent."""

    name: str = ""
    """Name of this node; the broker's host if empty."""
    state: str = ""
    """Directory for the identity, the incarnation and other state; one per agent. If empty:
    /var/lib/hansa/agent for root, $XDG_STATE_HOME/hansa/agent (usually
    ~/.local/state/hansa/agent) for other users. It does not depend on the name: an agent with a
    new name must keep its identity."""
    capacity: float = 1.0
    """Relative capacity of this node: decides the root of a tree, and the management core with
    management_by = "capacity". The γ of Antonielli 2020; the next two are its α and β."""
    capacity_per_gib: float = 0.0
    """Added for every GiB of this machine's memory."""
    capacity_per_core: float = 0.0
    """Added for every core of this machine."""
    mode: str = "hansa"
    """hansa, or mqtt-fed: be a node of that federator, as [mqtt_fed] says."""
    record: tuple[str, ...] = ()
    """Filters: publications of clients here to matching topics are journaled for the lake,
    subscribed elsewhere or not, with payload and properties, as long as [delivery] retention
    allows."""
    log: str = "info"
    """Least severity that is logged: debug, info, warning or error."""
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    link: LinkSettings = field(default_factory=LinkSettings)
    admin: AdminSettings = field(default_factory=AdminSettings)
    proxy: ProxySettings = field(default_factory=ProxySettings)
    mqtt_fed: MqttFedSettings = field(default_factory=MqttFedSettings)
    topology: TopologySettings = field(default_factory=TopologySettings)
    delivery: DeliverySettings = field(default_factory=DeliverySettings)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    protocol: ProtocolSettings = field(default_factory=ProtocolSettings)

    @property
    def total_capacity(self) -> float:
        """Return the capacity including memory and cores of this machine."""
        gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
        machine = self.capacity_per_gib * gib + self.capacity_per_core * (os.cpu_count() or 1)
        return self.capacity + machine

    @property
    def exposure_text(self) -> str:
        """Return what other machines reach without a password, as text of the alarm."""
        served = []
        if self.mode == "hansa" and self.link.transport != "mqtt":
            if not is_loopback(self.link.host):
                served.append(f"links on {self.link.host}")
        if not is_loopback(self.admin.host):
            served.append(f"status pages on {self.admin.host}")
        if not served:
            return ""
        text = " and ".join(served)
        return f"{text}: reachable from other machines, neither authenticated nor encrypted"

    @property
    def display_name(self) -> str:
        """Return the name to show."""
        return self.name or f"{self.broker.host}:{self.broker.port}"


def default_state_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the state directory of an agent whose settings name none."""
    if os.geteuid() == 0:
        return Path("/var/lib/hansa/agent")
    given = Path(environment.get("XDG_STATE_HOME", ""))
    if given.is_absolute():  # the XDG specification: ignore relative paths
        return given / "hansa" / "agent"
    try:
        return Path.home() / ".local" / "state" / "hansa" / "agent"
    except RuntimeError as error:
        raise UsageError("this user has no home directory: set state, or HANSA_STATE") from error


def load_settings(path: Path | None, environment: Mapping[str, str] = os.environ) -> AgentSettings:
    """Read the file, then override it by the environment."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = tomllib.loads(path.read_text())
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} is no TOML: {error}") from error
    given = {
        name: text
        for name, text in environment.items()
        if name.startswith(VARIABLE_PREFIX) and name not in OTHER_VARIABLES
    }
    for variable, name in PAPER_VARIABLES.items():
        if variable in environment:
            given.setdefault(name, environment[variable])
    settings = _apply_environment(
        _apply_file(AgentSettings(), values, str(path)), given, VARIABLE_PREFIX
    )
    if given:
        known = [*_variable_names(AgentSettings(), VARIABLE_PREFIX)]
        raise UsageError(f"environment: unknown setting {_suggest_name(min(given), known)}")
    assert isinstance(settings, AgentSettings)
    _check_settings(settings)
    return settings


def _check_settings(settings: AgentSettings) -> None:
    """Raise UsageError for settings that cannot work, with the setting and what to change."""
    _check_mode(settings)
    if settings.log not in LOG_LEVELS:
        raise UsageError(f"log must be one of {', '.join(LOG_LEVELS)}, not {settings.log!r}")
    if len(settings.display_name.encode()) > LABEL_BYTES_MAX:
        raise UsageError(f"name must have at most {LABEL_BYTES_MAX} bytes")
    for name in ("capacity", "capacity_per_gib", "capacity_per_core"):
        if getattr(settings, name) < 0:
            raise UsageError(f"{name} must not be below 0, not {getattr(settings, name)}")
    if not math.isfinite(settings.total_capacity):
        raise UsageError("capacity, with what this machine adds to it, is too large to compare")
    _check_record(settings.record)
    _check_broker(settings.broker)
    _check_proxy(settings.proxy, settings.broker)
    for place, port, least in (
        ("broker", settings.broker.port, 1),
        ("link", settings.link.port, 0),
        ("admin", settings.admin.port, 0),
        ("proxy", settings.proxy.port, 0),
    ):
        if not least <= port <= PORT_MAX:
            raise UsageError(f"[{place}] port must be from {least} to {PORT_MAX}, not {port}")
    check_admin_exposure(settings.admin.host, settings.admin.insecure)
    check_link(settings.link, settings.protocol.packet_bytes_max)
    check_mqtt_fed(settings.mqtt_fed)
    check_topology(settings.topology, settings.link)


def _check_mode(settings: AgentSettings) -> None:
    if settings.mode not in MODES:
        raise UsageError(f"mode must be one of {', '.join(MODES)}, not {settings.mode!r}")
    if settings.mode == "mqtt-fed" and settings.broker.observer == "embedded":
        raise UsageError('mode = "mqtt-fed" needs a broker with MQTT 5, which embedded is not')
    if settings.mode == "mqtt-fed" and settings.mqtt_fed.id == NO_ID:
        raise UsageError('mode = "mqtt-fed" needs [mqtt_fed] id, a number that no other node has')
    if settings.link.transport == "mqtt" and settings.broker.observer == "embedded":
        raise UsageError(
            '[link] transport = "mqtt" needs a broker that carries links, which embedded does not:'
            " use tcp or udp"
        )
    if settings.topology.announcements and settings.broker.observer == "embedded":
        raise UsageError(
            "[topology] announcements need a broker that the manager reaches: embedded is none"
        )
    if settings.mode == "mqtt-fed" and (settings.record or settings.telemetry.is_enabled):
        raise UsageError('mode = "mqtt-fed" keeps no journal: leave out record and [telemetry]')


def _check_record(filters: tuple[str, ...]) -> None:
    if len(filters) > RECORD_FILTERS_MAX:
        raise UsageError(f"record has {len(filters)} filters, the limit is {RECORD_FILTERS_MAX}")
    for topic_filter in filters:
        try:
            check_filter(topic_filter)
        except InvalidTopic as error:
            raise UsageError(f"record: {error}") from error
        if topic_filter.startswith("$"):
            raise UsageError(f"record: {topic_filter!r}: topics with $ stay with their broker")


def _check_proxy(proxy: ProxySettings, broker: BrokerSettings) -> None:
    is_same = (proxy.host, proxy.port) == (broker.host, broker.port)
    if is_same and broker.observer == "proxy":
        raise UsageError("[proxy] and [broker] have the same host and port; choose another one")
    if proxy.tls_key and not proxy.tls_certificate:
        raise UsageError("[proxy] tls_key needs tls_certificate")


def _check_broker(broker: BrokerSettings) -> None:
    if broker.observer not in OBSERVERS:
        choice = ", ".join(OBSERVERS)
        raise UsageError(f"[broker] observer must be one of {choice}, not {broker.observer!r}")
    if not broker.host:
        raise UsageError("[broker] host is missing")
    if broker.overlap_copies not in OVERLAP_COPIES:
        raise UsageError(
            f"[broker] overlap_copies must be each or once, not {broker.overlap_copies!r}"
        )
    if broker.filters and broker.observer != "static":
        raise UsageError('[broker] filters is for observer = "static"')
    for topic_filter in broker.filters:
        try:
            check_filter(topic_filter)
        except InvalidTopic as error:
            raise UsageError(f"[broker] filters: {error}") from error
    _check_filters_when_unknown(broker.filters_when_unknown)
    check_access("broker", broker)
    if bool(broker.pid_file) != bool(broker.output_file):
        raise UsageError("[broker] pid_file and output_file need each other")
    if broker.beacon_interval <= 0:
        raise UsageError(
            f"[broker] beacon_interval must be above 0 seconds, not {broker.beacon_interval}"
        )


def _check_filters_when_unknown(filters: tuple[str, ...]) -> None:
    for topic_filter in filters:
        try:
            check_filter(topic_filter)
        except InvalidTopic as error:
            raise UsageError(f"[broker] filters_when_unknown: {error}") from error
        if topic_filter.startswith("$"):
            raise UsageError(
                f"[broker] filters_when_unknown: {topic_filter!r}: topics with $ stay with their"
                " broker, and a shared subscription would take messages from its group"
            )


def broker_address(broker: BrokerSettings) -> BrokerAddress:
    """Return address, credentials and TLS of the broker; raise UsageError if tls_ca is unusable."""
    return BrokerAddress(
        broker.host,
        broker.port,
        broker.username or None,
        broker.password or None,
        tls_context("broker", broker),
        "username and password in [broker]",
    )


def link_access(settings: AgentSettings, client_id: str, node: NodeId) -> MqttLinkAccess:
    """Return the access to neighbours' brokers; raise UsageError if tls_ca is unusable."""
    given = settings.link.mqtt
    return MqttLinkAccess(
        given.prefix,
        broker_address(settings.broker),
        client_id,
        given.username or None,
        given.password or None,
        tls_context("link.mqtt", given),
        given.chunk_bytes,
        f"{node:016x}",
        trusted_brokers(settings.link),
        frozenset(given.accept),
    )


def _apply_file(record: Any, values: Mapping[str, Any], source: str) -> Any:
    """Apply values from a file to a record, section by section."""
    known = [item.name for item in fields(record)]
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise UsageError(f"{source}: unknown setting {_suggest_name(name, known)}")
        current = getattr(record, name)
        if is_dataclass(current) and isinstance(value, dict):
            changes[name] = _apply_file(current, value, f"{source} [{name}]")
        elif is_dataclass(current):
            raise UsageError(f"{source}: {name} is a section: write [{name}], not {name} = …")
        else:
            changes[name] = _convert(record, name, value, source)
    return _replace(record, changes, source)


def _apply_environment(record: Any, given: dict[str, str], prefix: str) -> Any:
    """Apply values from the environment to a record; remove those used from `given`."""
    changes: dict[str, Any] = {}
    for item in fields(record):
        current = getattr(record, item.name)
        name = f"{prefix}{item.name.upper()}"
        if is_dataclass(current):
            changes[item.name] = _apply_environment(current, given, f"{name}_")
        elif name in given:
            changes[item.name] = _convert(record, item.name, given.pop(name), name)
    return _replace(record, changes, "environment")


def _replace(record: Any, changes: dict[str, Any], source: str) -> Any:
    try:
        return replace(record, **changes)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error


def _variable_names(record: Any, prefix: str) -> Iterator[str]:
    for item in fields(record):
        name, current = f"{prefix}{item.name.upper()}", getattr(record, item.name)
        if is_dataclass(current):
            yield from _variable_names(current, f"{name}_")
        else:
            yield name


def _suggest_name(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"{name!r}; did you mean {near[0]!r}?" if near else repr(name)


def _convert(record: Any, name: str, value: Any, source: str) -> Any:
    """Convert a value to the type of its field. Text becomes a number only as a whole."""
    current = getattr(record, name)
    kind = type(current)
    try:
        if isinstance(current, tuple):
            return _as_texts(value)
        if isinstance(current, bool):
            return _BOOLEAN_WORDS[str(value).lower()]
        if isinstance(current, StrEnum | SampleRate):
            return kind(value)
        if isinstance(current, str):
            return _as_text(value)
        if isinstance(value, bool) or (isinstance(value, float) and kind is int):
            raise TypeError
        number = kind(value)
        return number if math.isfinite(number) else kind("")
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{source}: {name} must be {_describe(current)}, not {value!r}") from error


_BOOLEAN_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _as_texts(value: Any) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list):
        raise TypeError
    return tuple(text for item in items if (text := _as_text(item).strip()))


def _describe(current: Any) -> str:
    match current:
        case tuple():
            return "a list of texts"
        case bool():
            return "true or false"
        case StrEnum():
            return f"one of {', '.join(type(current))}"
        case SampleRate():
            return "off, none, all, or a number n for one in n, up to 65536"
        case str():
            return "a text"
        case int():
            return "a whole number"
    return "a number"
