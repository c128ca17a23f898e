"""Prepares a Mosquitto on this machine for an agent: log settings, user, rights, log file.

Lines are only added and modes only widened. Of every changed file the first copy is kept as
FILE.before-hansa. A second run changes nothing.
"""

import base64
import hashlib
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from hansa.agent.broker.mosquitto_conf import read_settings
from hansa.console.federation_checks import IN_FLIGHT_RECOMMENDED
from hansa.errors import UsageError
from hansa.setup.host import BROKER_GROUP, group_id
from hansa.testbed.probes.advice import (
    advise_on_broker,
    configuration_lines,
)
from hansa.testbed.probes.mosquitto_conf import (
    REPEATED,
    add_lines,
    make_findings,
    missing_lines,
)

DEFAULT_CONF = Path("/etc/mosquitto/mosquitto.conf")
COPY_SUFFIX = ".before-hansa"

HASH_ITERATIONS = 101
"""Of PBKDF2, as mosquitto_passwd does. The password is random: more would protect nothing."""
SALT_BYTES = 12

DOCTOR_TOPICS = "hansa/doctor/#"
"""Topics that `hansa doctor` uses."""

BY_HAND = (
    "give the agent a user yourself, and name it with --username and HANSA_BROKER_PASSWORD instead"
    " of --prepare-broker"
)


class MosquittoSetup:
    """The configuration of one Mosquitto, and the changes that an agent needs."""

    def __init__(self, conf: Path) -> None:
        """Read the configuration; raise UsageError if a file is not readable."""
        self.conf = conf
        self.changes: list[str] = []
        """What was changed, one line each."""
        self._settings = read_settings(conf)

    # ------------------------------------------------------------ reading

    @property
    def requires_login(self) -> bool:
        """Whether clients need a user name. By default they do as soon as a listener is set."""
        allowed = self._last("allow_anonymous")
        if allowed:
            return allowed != "true"
        return bool(self._settings.get("listener") or self._settings.get("port"))

    @property
    def log_file(self) -> Path | None:
        """The file of `log_dest file`."""
        for value in self._settings.get("log_dest", []):
            kind, _, path = value.partition(" ")
            if kind == "file":
                return self._absolute("log_dest file", path.strip())
        return None

    def has_user(self, username: str) -> bool:
        """Whether the password file has a user."""
        text = _read(self._password_file())
        return any(line.partition(":")[0] == username for line in text.splitlines())

    # ------------------------------------------------------------ changing

    def add_user(self, username: str, password: str) -> None:
        """Add a user to the password file."""
        file = self._password_file()
        salt = secrets.token_bytes(SALT_BYTES)
        digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, HASH_ITERATIONS)
        fields = (base64.b64encode(each).decode() for each in (salt, digest))
        _append(file, f"{username}:$7${HASH_ITERATIONS}${'$'.join(fields)}\n")
        self.changes.append(f"{file}: user {username}")

    def add_rights(self, username: str, filters: Sequence[str]) -> None:
        """Let the user read the broker's log, and read and write topics, if there is an ACL."""
        name = self._last("acl_file")
        if not name:
            return
        file = self._absolute("acl_file", name)
        if any(line.split() == ["user", username] for line in _read(file).splitlines()):
            return
        rights = ["read $SYS/#", *(f"readwrite {each}" for each in (*filters, DOCTOR_TOPICS))]
        lines = [f"user {username}", *(f"topic {right}" for right in rights)]
        _append(file, "\n" + "".join(f"{line}\n" for line in lines))
        self.changes.append(f"{file}: rights of {username}")

    def add_settings(self) -> None:
        """Add the lines that the observer and guaranteed delivery need."""
        advised = configuration_lines(advise_on_broker(make_findings(self._settings)))
        in_flight = f"max_inflight_messages {IN_FLIGHT_RECOMMENDED}"
        lines = missing_lines(self._settings, advised)
        if "max_inflight_messages" not in self._settings:
            lines = (*lines, in_flight)
        if not lines:
            return
        file = self._file_for(lines)
        try:
            if file.exists():
                text = file.read_text(errors="surrogateescape")
                _copy(file)
                file.write_text(add_lines(text, lines), errors="surrogateescape")
            else:
                file.write_text("".join(f"{line}\n" for line in ("# for hansa", *lines)))
        except OSError as error:
            raise UsageError(f"cannot change {file}: {error.strerror}") from error
        self._settings = read_settings(self.conf)
        self.changes.append(f"{file}: {', '.join(lines)}")

    def open_log_file(self) -> None:
        """Let the broker's group read the log file, also after its rotation."""
        file, group = self.log_file, group_id(BROKER_GROUP)
        if file is None:
            return
        try:
            if not file.exists():
                file.touch(mode=0o640)
                if os.geteuid() == 0 and group is not None:
                    shutil.chown(file, BROKER_GROUP)  # the user of the same name
            self._widen(file, 0o040, group)
            self._widen(file.parent, 0o050, group)
        except (OSError, LookupError) as error:
            raise UsageError(f"cannot let the agent read {file}: {error}") from error
        rotation = self.conf.parents[1] / "logrotate.d" / "mosquitto"
        if rotation.exists() and "nocreate" in (text := _read(rotation)).split():
            new = f"create 0640 {BROKER_GROUP} {BROKER_GROUP}"
            _copy(rotation, self.conf.with_name("logrotate"))
            rotation.write_text(text.replace("nocreate", new))
            self.changes.append(f"{rotation}: {new}")

    def _widen(self, path: Path, bits: int, group: int | None) -> None:
        status = path.stat()
        if status.st_mode & (bits >> 3) == bits >> 3:
            return  # every user may
        if os.geteuid() == 0 and group is not None and status.st_gid != group:
            os.chown(path, -1, group)
        elif status.st_mode & bits == bits:
            return
        path.chmod(status.st_mode & 0o7777 | bits)
        self.changes.append(f"{path}: readable by the group {BROKER_GROUP}")

    # ------------------------------------------------------------ places

    def _file_for(self, lines: Sequence[str]) -> Path:
        """Return hansa.conf in include_dir, unless a value has to be replaced."""
        names = {line.partition(" ")[0] for line in lines}.difference(REPEATED)
        included = [
            line.split(None, 1)[1].strip()
            for line in _read(self.conf).splitlines()
            if line.startswith("include_dir ")
        ]
        if not included or names.intersection(self._settings):
            return self.conf
        return self.conf.parent / included[-1] / "hansa.conf"

    def _password_file(self) -> Path:
        names = set(self._settings.get("password_file", []))
        if len(names) != 1:
            how = "several" if names else "no"
            raise UsageError(f"{self.conf} has {how} password_file: {BY_HAND}")
        return self._absolute("password_file", names.pop())

    def _absolute(self, name: str, text: str) -> Path:
        if not text.startswith("/"):
            raise UsageError(
                f"{self.conf}: {name} {text!r} is relative to the directory where the broker was"
                f" started, which is unknown: write the whole path, or {BY_HAND}"
            )
        return Path(text)

    def _last(self, name: str) -> str:
        return self._settings.get(name, [""])[-1]


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error


def _append(file: Path, text: str) -> None:
    """Append to a file, whose owner and mode stay."""
    try:
        _copy(file)
        with file.open("a+b") as opened:
            if opened.tell():
                opened.seek(-1, os.SEEK_END)
                text = text if opened.read(1) == b"\n" else f"\n{text}"
            opened.write(text.encode())
    except OSError as error:
        raise UsageError(f"cannot change {file}: {error.strerror}") from error


def _copy(file: Path, named: Path | None = None) -> None:
    """Keep the file as it was before the first change, with owner and mode."""
    copy = (named or file).with_name(f"{(named or file).name}{COPY_SUFFIX}")
    if not copy.exists():
        shutil.copy2(file, copy)
        if os.geteuid() == 0:
            status = file.stat()
            os.chown(copy, status.st_uid, status.st_gid)
