"""The files of a new agent: settings, secrets, identity."""

import os
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hansa.agent.broker.settings import BrokerSettings
from hansa.agent.settings import load_settings
from hansa.errors import UsageError
from hansa.identity.authority import CertificateAuthority
from hansa.identity.certificates import Claims, check_new_federation_name
from hansa.identity.credentials import (
    Credentials,
    has_certificate,
    install,
    load_credentials,
)
from hansa.identity.enrolment import Token, join_with_token
from hansa.identity.keys import KEY_FILE, create_key, load_key
from hansa.setup.host import give_to_agent

PASSWORD_VARIABLE = "HANSA_BROKER_PASSWORD"
ENVIRONMENT_FILE = "agent.env"
"""Beside the settings: secrets, which only root may read."""

_VALUE = re.compile(rf'^{PASSWORD_VARIABLE}="?(.*?)"?$', re.M)


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A node to set up."""

    name: str
    broker: BrokerSettings
    state: Path
    listen: str = ""
    """Address for links of other nodes; none beyond loopback if empty."""
    link_port: int = 0
    admin_port: int = 0
    """0: the default."""
    advertised_link: str = ""
    """Where other nodes reach this one."""
    neighbours: tuple[str, ...] = ()

    def settings_text(self) -> str:
        """Return the settings of the agent as TOML."""
        broker = self.broker
        sections: dict[str, dict[str, object]] = {
            "": {"name": self.name, "state": str(self.state)},
            "broker": {
                "host": broker.host,
                "port": broker.port,
                "username": broker.username,
                "tls": broker.tls,
                "tls_ca": broker.tls_ca,
                "log_file": broker.log_file,
                "config_file": broker.config_file,
            },
            "link": {
                "host": self.listen,
                "port": self.link_port,
                "neighbours": self.neighbours,
            },
            "admin": {"port": self.admin_port},
            "topology": {"advertised_link": self.advertised_link},
        }
        lines = [
            "# Made by `hansa init`. Secrets are in agent.env; docs/node.toml has all settings."
        ]
        for section, values in sections.items():
            used = {key: value for key, value in values.items() if value}
            if used:
                lines += ["", f"[{section}]"] if section else []
                lines += [f"{key} = {_toml(value)}" for key, value in used.items()]
        return "".join(f"{line}\n" for line in lines)


def _toml(value: object) -> str:
    """Return a text, number, truth value or list in TOML, which writes these as JSON does."""
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def check_new(config: Path, federation: str = "") -> None:
    """Raise UsageError if there are settings already or they could not be written, or for a name
    that no new federation may have."""
    if federation:
        check_new_federation_name(federation)
    if config.exists():
        raise UsageError(
            f"{config} exists: this host has an agent. Change that file and restart the agent; or"
            " move it away to start again with the same identity"
        )
    try:
        config.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {config.parent}: {error.strerror}") from error
    if not os.access(config.parent, os.W_OK):
        raise UsageError(f"cannot write to {config.parent}: run this as root, or name --config")


def write_settings(plan: NodePlan, config: Path) -> None:
    """Write the settings, if an agent accepts them."""
    draft = config.with_name(f"{config.name}.new")
    try:
        draft.write_text(plan.settings_text())
        draft.chmod(0o644)
        load_settings(draft, {})
        draft.rename(config)
    except OSError as error:
        raise UsageError(f"cannot write {config}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)


def saved_password(config: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Return the password of the agent at its broker: from the environment, or the file that an
    earlier attempt left."""
    if given := environment.get(PASSWORD_VARIABLE, ""):
        return given
    file = config.with_name(ENVIRONMENT_FILE)
    try:
        found = _VALUE.search(file.read_text())
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {error}") from error
    return re.sub(r"\\(.)", r"\1", found[1]) if found else ""


def save_password(config: Path, password: str) -> None:
    """Write the password where the service reads it. Other lines of the file stay."""
    if not password or password == saved_password(config, {}):
        return
    if not password.isprintable():
        raise UsageError(f"{PASSWORD_VARIABLE} has a character that a file of systemd cannot have")
    file = config.with_name(ENVIRONMENT_FILE)
    quoted = re.sub(r'(["\\`$])', r"\\\1", password)  # as sh and systemd read it
    try:
        earlier = file.read_text().splitlines() if file.exists() else []
        kept = [line for line in earlier if not line.startswith(f"{PASSWORD_VARIABLE}=")]
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as opened:
            os.fchmod(opened.fileno(), 0o600)
            opened.write("".join(f"{line}\n" for line in kept))
            opened.write(f'{PASSWORD_VARIABLE}="{quoted}"\n')
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from error


def make_password() -> str:
    return secrets.token_hex(16)


# ---------------------------------------------------------------- identity


def member_of(state: Path) -> Credentials | None:
    """Return the credentials that a node has already."""
    if not has_certificate(state):
        return None
    return load_credentials(state, state / KEY_FILE, datetime.now(UTC))


def enrol(plan: NodePlan, token: Token | None, ca: Path, federation: str) -> Credentials:
    """Get the certificate of a node: by a token, or of an authority on this host."""
    if token is not None:
        return join_federation(plan.state, token)
    return found_federation(plan.state, ca, federation, plan.name)


def found_federation(state: Path, ca: Path, federation: str, name: str) -> Credentials:
    """Make the certificate authority of a federation, unless it exists, and certify this node."""
    now = datetime.now(UTC)
    if (ca / KEY_FILE).exists():
        authority = CertificateAuthority(ca)
        if federation not in ("", authority.federation):
            raise UsageError(
                f"{ca} is the authority of federation {authority.federation!r}: leave out"
                " --federation, or name another directory with --ca"
            )
    else:
        authority = CertificateAuthority.create(ca, federation or "hansa", now)
    key = _key_of(state).public_key()
    _, bundle = authority.sign(key, Claims(name), now)
    return _installed(state, install(state, bundle, now))


def join_federation(state: Path, token: Token) -> Credentials:
    """Get a certificate from the issuer of a token."""
    _key_of(state)
    return _installed(state, join_with_token(state, token, datetime.now(UTC)))


def _key_of(state: Path) -> Ed25519PrivateKey:
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot use {state}: {error.strerror}") from error
    return load_key(state / KEY_FILE) or create_key(state / KEY_FILE)


def _installed(state: Path, made: Credentials) -> Credentials:
    files: Iterable[Path] = (each for each in state.iterdir() if each.is_file())
    give_to_agent((state, *files))
    return made
