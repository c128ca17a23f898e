"""This host: its service manager, and the user of the agent's service."""

import grp
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from hansa.errors import UsageError

AGENT_USER = "hansa"
AGENT_UNIT = "hansa-agent"
BROKER_UNIT = "mosquitto"
BROKER_GROUP = "mosquitto"
START_TIMEOUT_S = 30.0
"""Seconds until an agent that was started must answer."""
COMMAND_TIMEOUT_S = 100.0
"""Seconds for a command of systemd; it gives up on a service after 90 s."""


def runs_systemd() -> bool:
    """Whether systemd manages the services of this host; not so in containers and chroots."""
    done = _systemctl("is-system-running")
    return done is not None and done.stdout.strip() not in ("", "offline", "unknown")


def unit_text(name: str) -> str:
    """Return the files of a unit; empty if it is not installed."""
    done = _systemctl("cat", name)
    return "" if done is None or done.returncode else done.stdout


def run_systemctl(*words: str) -> None:
    """Run a command of systemd; raise UsageError with its words if it fails."""
    done = _systemctl(*words)
    if done is None or done.returncode:
        said = "" if done is None else (done.stderr.strip() or done.stdout.strip())
        raise UsageError(f"systemctl {' '.join(words)} failed: {said}")


def wait_for_agent(port: int) -> None:
    """Return when the agent's endpoints are open; raise UsageError if that takes too long."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise UsageError(
                    f"the agent does not answer at 127.0.0.1:{port} after {START_TIMEOUT_S:.0f} s:"
                    f" journalctl -u {AGENT_UNIT} says why"
                ) from None
        time.sleep(0.1)


def _systemctl(*words: str) -> "subprocess.CompletedProcess[str] | None":
    if shutil.which("systemctl") is None:
        return None
    try:
        return subprocess.run(
            ["systemctl", *words], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"systemctl {' '.join(words)} takes too long: is it stuck?") from error


def group_id(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def give_to_agent(paths: Iterable[Path]) -> None:
    """Make the user of the service the owner of files and directories, as root, if it exists."""
    user = _agent_user()
    if user is not None:
        for path in paths:
            os.chown(path, user.pw_uid, user.pw_gid)


def agent_can_read(file: Path) -> bool:
    """Whether the user of the service can read a file; this user if there is none."""
    user = _agent_user()
    if user is None:
        return os.access(file, os.R_OK)
    groups = os.getgrouplist(user.pw_name, user.pw_gid)
    done = subprocess.run(
        ["test", "-r", str(file)], user=user.pw_uid, group=user.pw_gid, extra_groups=groups
    )
    return done.returncode == 0


def _agent_user() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(AGENT_USER)
    except KeyError:
        return None
