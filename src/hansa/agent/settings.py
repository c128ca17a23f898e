"""An agent's configuration: one TOML file, every value also as an environment variable.

`[broker] port = 1883` is `HANSA_BROKER_PORT=1883`; the environment wins. An unknown name is an
error that suggests the nearest one; nothing is silently ignored.
"""

import math
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from hansa.agent.broker.access import tls_context
from hansa.agent.broker.settings import (
    BrokerSettings,
    ProxySettings,
    RestSettings,
    TopicsSettings,
    check_broker,
)
from hansa.agent.exposure import check_admin_exposure, check_link_exposure, is_loopback
from hansa.agent.links.mqtt import MqttLinkAccess
from hansa.agent.links.settings import (
    PORT_MAX,
    LinkSettings,
    check_link,
    parse_address,
    trusted_brokers,
)
from hansa.agent.mqttfed.settings import NO_ID, MqttFedSettings, check_mqtt_fed
from hansa.agent.telemetry.settings import SampleRate, TelemetrySettings
from hansa.agent.topology.settings import PAPER_VARIABLES, TopologySettings, check_topology
from hansa.delivery.settings import DeliverySettings
from hansa.errors import InvalidTopic, UsageError
from hansa.identity.credentials import has_certificate
from hansa.identity.renewal import RENEWAL_PORT
from hansa.protocol.model import NodeId
from hansa.protocol.settings import LABEL_BYTES_MAX, ProtocolSettings
from hansa.protocol.topics import check_filter

VARIABLE_PREFIX = "HANSA_"
OTHER_VARIABLES = (
    *("HANSA_LAUNCHER", "HANSA_TRACEBACK", "HANSA_CRASH_POINT", "HANSA_CONTEXT"),
    "HANSA_PURE",
    *("HANSA_MANAGER_TOKEN", "HANSA_MANAGER_HEALTH_INTERVAL", "HANSA_MANAGER_BROKERS"),
    "HANSA_MANAGER_APPROVAL",
    *("HANSA_MANAGER_BROKER_USERNAME", "HANSA_MANAGER_BROKER_PASSWORD"),
)
"""Variables of the command line, the manager and tests that an agent may inherit."""
ADMIN_PORT = 8_080
MODES = ("hansa", "mqtt-fed")
RECORD_FILTERS_MAX = 1_024
"""Most filters in `record`."""
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """The agent's HTTP endpoints."""

    host: str = "127.0.0.1"
    """Address to listen on. Beyond loopback only with tls_certificate and a token, or insecure."""
    port: int = ADMIN_PORT
    """0 takes a free port and logs it."""
    token: str = field(default="", repr=False)
    """Token that may do everything, also read journals and telemetry from /logs and messages from
    /tail, which are closed without one. Beyond loopback with TLS, every endpoint but /healthz
    requires it."""
    read_token: str = field(default="", repr=False)
    """Token that reads every endpoint but /logs and /tail. Once it is set, all endpoints but
    /healthz require it or token, on loopback too."""
    operate_token: str = field(default="", repr=False)
    """Token that reads like read_token and also sends commands, such as hansa quarantine release.
    Once it is set, commands require it or token, on loopback too; without it, commands on loopback
    must come from root or from the agent's user, which only Linux reports."""
    tls_certificate: str = ""
    """File with the certificate for HTTPS, and its chain; plain HTTP without one."""
    tls_key: str = ""
    """File with its private key, if it is not in the same file."""
    insecure: bool = False
    """Whether to listen beyond loopback without TLS and tokens. Only for networks that you trust;
    raises the alarm insecure."""
    names: tuple[str, ...] = ()
    """Host names, besides those of loopback, that requests may use, such as that of a reverse
    proxy. Other names get 403, so that web pages cannot read the status."""
    answers_observers: bool = False
    """Whether to answer the questions of agents with the role observe about this node: counters,
    alarms, filters, paths of topics. Agents with other roles always get answers."""

    @property
    def scheme(self) -> str:
        return "https" if self.tls_certificate else "http"

    @property
    def is_protected(self) -> bool:
        """Whether requests are encrypted and need a token beyond loopback."""
        return bool(self.tls_certificate and (self.token or self.read_token or self.operate_token))


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """The certificate of this node. Without one, links are neither authenticated nor encrypted."""

    directory: str = ""
    """Directory of certificate.pem, authority.pem and revoked.pem; empty: the state directory.
    The agent uses changed files without a restart. The private key is always key.pem in the
    state directory."""
    issuer: str = ""
    """HOST:PORT of `hansa ca serve`, where the agent renews its certificate at two thirds of its
    validity; empty: what the file issuer in that directory says, which `hansa join` writes."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
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
    security: SecuritySettings = field(default_factory=SecuritySettings)
    admin: AdminSettings = field(default_factory=AdminSettings)
    proxy: ProxySettings = field(default_factory=ProxySettings)
    rest: RestSettings = field(default_factory=RestSettings)
    topics: TopicsSettings = field(default_factory=TopicsSettings)
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
    def state_directory(self) -> Path:
        return Path(self.state) if self.state else default_state_directory()

    @property
    def certificate_directory(self) -> Path:
        return Path(self.security.directory) if self.security.directory else self.state_directory

    @property
    def exposure_text(self) -> str:
        """Return what other machines reach without TLS and a token, as text of the alarm."""
        served = []
        if self.mode == "hansa" and self.link.transport != "mqtt":
            try:
                self.check_link_exposure()
            except UsageError:
                served.append(f"links on {self.link.host}")
        if not is_loopback(self.admin.host) and not self.admin.is_protected:
            served.append(f"HTTP endpoints on {self.admin.host}")
        if not served:
            return ""
        text = " and ".join(served)
        return f"{text}: reachable from other machines, neither authenticated nor encrypted"

    def check_link_exposure(self) -> None:
        """Raise UsageError for links that other machines reach without TLS."""
        if not is_loopback(self.link.host):
            secure = has_certificate(self.certificate_directory)
            check_link_exposure(self.link.host, secure)

    @property
    def display_name(self) -> str:
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


def default_config_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the file that `hansa init` writes and the systemd unit reads."""
    if os.geteuid() == 0:
        return Path("/etc/hansa/agent.toml")
    given = Path(environment.get("XDG_CONFIG_HOME", ""))
    if given.is_absolute():
        return given / "hansa" / "agent.toml"
    try:
        return Path.home() / ".config" / "hansa" / "agent.toml"
    except RuntimeError as error:
        raise UsageError("this user has no home directory: name a file with --config") from error


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
    check_broker(settings.broker, settings.proxy, settings.rest, settings.topics)
    for place, port, least in (
        ("broker", settings.broker.port, 1),
        ("link", settings.link.port, 0),
        ("admin", settings.admin.port, 0),
        ("proxy", settings.proxy.port, 0),
    ):
        if not least <= port <= PORT_MAX:
            raise UsageError(f"[{place}] port must be from {least} to {PORT_MAX}, not {port}")
    _check_exposure(settings)
    _check_issuer(settings.security)
    check_link(settings.link, settings.protocol.packet_bytes_max)
    check_mqtt_fed(settings.mqtt_fed)
    check_topology(settings.topology, settings.link)


def _check_issuer(security: SecuritySettings) -> None:
    if security.issuer:
        try:
            parse_address(security.issuer, RENEWAL_PORT)
        except UsageError as error:
            raise UsageError(f"[security] issuer: {error}") from error


def _check_exposure(settings: AgentSettings) -> None:
    link, admin = settings.link, settings.admin
    if link.transport != "mqtt" and not link.insecure:
        settings.check_link_exposure()
    if not admin.insecure and not admin.is_protected:
        check_admin_exposure(admin.host)
    if admin.tls_key and not admin.tls_certificate:
        raise UsageError("[admin] tls_key needs tls_certificate")


def _check_mode(settings: AgentSettings) -> None:
    if settings.mode not in MODES:
        raise UsageError(f"mode must be one of {', '.join(MODES)}, not {settings.mode!r}")
    if settings.mode == "mqtt-fed" and settings.broker.observer == "embedded":
        raise UsageError('mode = "mqtt-fed" needs a broker with MQTT 5, which embedded is not')
    if settings.mode == "mqtt-fed" and settings.broker.observer in ("proxy", "rest", "topics"):
        raise UsageError(f'mode = "mqtt-fed" has no observer {settings.broker.observer!r}')
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


def link_access(settings: AgentSettings, client_id: str, node: NodeId) -> MqttLinkAccess:
    """Return the access to neighbours' brokers; raise UsageError if tls_ca is unusable."""
    given = settings.link.mqtt
    return MqttLinkAccess(
        given.prefix,
        settings.broker.address(),
        client_id,
        given.username or None,
        given.password or None,
        tls_context("link.mqtt", given),
        given.chunk_bytes,
        f"{node:016x}",
        trusted_brokers(settings.link),
        frozenset(given.accepted_nodes),
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
    import difflib  # 0.2 MB that only a wrong name needs

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
