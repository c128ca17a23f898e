"""An agent's configuration: one TOML file, every value also as an environment variable.

`[broker] port = 1883` is `HANSA_BROKER_PORT=1883`; the environment wins. An unknown name is an
error that suggests the nearest one; nothing is silently ignored.
"""

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from hansa.agent.links.tcp import Address
from hansa.errors import UsageError
from hansa.protocol.settings import ProtocolSettings

LINK_PORT = 10_500
"""Where agents listen for each other unless told otherwise, as in Machado 2023."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The broker that this agent stands beside."""

    host: str = "127.0.0.1"
    port: int = 1883
    username: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    """Whether to speak TLS to the broker."""
    tls_ca: str = ""
    """File with the authorities to trust; the system's if empty."""
    observer: str = "mosquitto"
    """How to learn who subscribes: mosquitto, beacon or static."""
    filters: tuple[str, ...] = ()
    """With observer static: the filters that clients here want."""
    log_file: str = ""
    """The broker's `log_dest file`, if the agent may read it: what was subscribed before."""
    client_id: str = ""
    """How the agent's clients are called at the broker; `hansa-<name>` if empty."""


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """How neighbours are reached."""

    host: str = "127.0.0.1"
    """Where to listen. Links are not encrypted yet: keep them on networks you trust."""
    port: int = LINK_PORT
    """Where to listen; 0 takes a free port."""
    neighbours: tuple[str, ...] = ()
    """Whom to dial, as host:port. One side of a link is enough."""


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """The agent's own pages."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free port and logs it."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """One agent."""

    name: str = ""
    """What people call this node; the broker's host if empty."""
    state: str = "hansa-state"
    """Directory for the key, the incarnation and what was learned; one per agent."""
    capacity: float = 1.0
    log: str = "info"
    """Least severity that is logged: debug, info, warning or error."""
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    link: LinkSettings = field(default_factory=LinkSettings)
    admin: AdminSettings = field(default_factory=AdminSettings)
    protocol: ProtocolSettings = field(default_factory=ProtocolSettings)

    @property
    def title(self) -> str:
        """Return the name to show."""
        return self.name or f"{self.broker.host}:{self.broker.port}"


def load(path: Path | None, environment: Mapping[str, str] = os.environ) -> AgentSettings:
    """Read the file, then what the environment says instead."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = tomllib.loads(path.read_text())
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{path} is no TOML: {error}") from error
    settings = _override(_fill(AgentSettings(), values, str(path)), environment, "HANSA")
    assert isinstance(settings, AgentSettings)
    return settings


def parse_address(text: str) -> Address:
    """Read `host:port`, or `host` alone for the usual port."""
    host, colon, port = text.rpartition(":")
    if not colon:
        return Address(text, LINK_PORT)
    if not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"neighbour {text!r}: the port must be a number from 1 to 65535")
    return Address(host.strip("[]"), int(port))


def _fill(record: Any, values: Mapping[str, Any], place: str) -> Any:
    """Put values from a file into a record, section by section."""
    known = {field.name for field in fields(record)}
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"{place}: unknown setting {name!r}{hint}")
        current = getattr(record, name)
        if isinstance(value, dict):
            changes[name] = _fill(current, value, f"{place} [{name}]")
        else:
            changes[name] = _convert(record, name, value, place)
    return replace(record, **changes)


def _override(record: Any, environment: Mapping[str, str], prefix: str) -> Any:
    """Put values from the environment into a record."""
    changes: dict[str, Any] = {}
    for item in fields(record):
        current = getattr(record, item.name)
        name = f"{prefix}_{item.name.upper()}"
        if hasattr(current, "__dataclass_fields__"):
            changes[item.name] = _override(current, environment, name)
        elif name in environment:
            changes[item.name] = _convert(record, item.name, environment[name], name)
    return replace(record, **changes)


def _convert(record: Any, name: str, value: Any, place: str) -> Any:
    """Turn a value into what its field wants."""
    kind = get_type_hints(type(record))[name]
    current = getattr(record, name)
    try:
        if isinstance(current, tuple):
            items = value.split(",") if isinstance(value, str) else value
            return tuple(str(item).strip() for item in items if str(item).strip())
        if isinstance(current, bool):
            return _as_bool(value)
        if isinstance(current, int | float) and isinstance(value, str | int | float):
            return type(current)(value)
        return kind(value)
    except (TypeError, ValueError) as error:
        wanted = getattr(kind, "__name__", str(kind))
        raise UsageError(f"{place}: {name} must be a {wanted}, not {value!r}") from error


def _as_bool(value: Any) -> bool:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    return words[str(value).lower()] if str(value).lower() in words else bool(int(value))
