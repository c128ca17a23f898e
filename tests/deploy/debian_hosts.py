"""Two Debian systems on this machine: chroots made by debootstrap, each with its own network,
processes and mounts, joined by one cable and without a route to anywhere else.

systemd does not run in them. `systemctl` is a script that starts the command of a unit under the
unit's user with the unit's environment.
"""

import ipaddress
import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.tutorial import Site

PACKAGES = ("mosquitto", "mosquitto-clients", "procps", "python3", "systemd")
SUITES = {"12": "bookworm", "13": "trixie"}
BOOTSTRAP_TIMEOUT_S = 1_200.0
START_TIMEOUT_S = 30.0

NETWORK = ipaddress.ip_network("198.18.77.0/30")
"""Reserved for tests of network devices (RFC 2544); exists only between the two namespaces."""

SYSTEMCTL = r"""#!/bin/bash
# As much of systemctl as packages, hansa init and the tutorial use.
set -e
words=()
for word; do case $word in --*) ;; *) words+=("${word%.service}") ;; esac; done
unit_file() { cat "/usr/lib/systemd/system/$1.service"; }
value() { unit_file "$1" | sed -n "s|^$2=||p"; }
running() { [ -e "/run/$1.pid" ] && kill -0 "$(cat "/run/$1.pid")" 2> /dev/null; }
start() {
    running "$1" && return
    user=$(value "$1" User)
    value "$1" ExecStartPre | while read -r before; do $before; done
    (
        set -a
        for file in $(value "$1" EnvironmentFile); do [ ! -e "${file#-}" ] || . "${file#-}"; done
        for each in $(value "$1" Environment); do export "$each"; done
        as=()
        [ -z "$user" ] || as=(setpriv --reuid="$user" --regid="$user" --init-groups)
        cd /
        exec "${as[@]}" $(value "$1" ExecStart) >> "/run/$1.out" 2>&1 < /dev/null
    ) &
    echo $! > "/run/$1.pid"
    case $(value "$1" Type) in
        notify) until (: < /dev/tcp/127.0.0.1/1883) 2> /dev/null; do sleep 0.1; done ;;
    esac
}
stop() {
    running "$1" || return 0
    kill "$(cat "/run/$1.pid")"
    while running "$1"; do sleep 0.1; done
}
case ${words[0]} in
    is-system-running) echo running ;;
    daemon-reload) ;;
    cat) unit_file "${words[1]}" ;;
    reload) kill -HUP "$(cat "/run/${words[1]}.pid")" ;;
    start | enable) start "${words[1]}" ;;
    restart) stop "${words[1]}"; start "${words[1]}" ;;
    try-restart) if running "${words[1]}"; then stop "${words[1]}"; start "${words[1]}"; fi ;;
    stop | disable) for unit in "${words[@]:1}"; do stop "$unit"; done ;;
    *) echo "unexpected: systemctl $*" >&2; exit 1 ;;
esac
"""


INIT = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans leave no zombies
while True:
    signal.pause()
"""


def require_debian_hosts() -> None:
    """Skip the test where such hosts cannot be made."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a Debian system and network namespaces")
    for program in ("debootstrap", "ip", "unshare", "nsenter", "dpkg-deb"):
        if shutil.which(program) is None and not _install(program):
            pytest.skip(f"there is no {program} here, and it cannot be installed")


def _install(program: str) -> bool:
    if program != "debootstrap" or shutil.which("apt-get") is None:
        return False
    update = ["apt-get", "-qq", "update"]
    command = ["apt-get", "-qq", "-y", "install", "debootstrap"]
    return all(
        subprocess.run(each, capture_output=True, check=False).returncode == 0
        for each in (update, command)
    )


def bootstrap(directory: Path, release: str = "12") -> None:
    """Make a Debian system; skip the test if its packages cannot be had."""
    done = subprocess.run(
        [
            *("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"),
            *(SUITES[release], str(directory)),
        ],
        capture_output=True,
        text=True,
        timeout=BOOTSTRAP_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"debootstrap failed: {done.stdout.splitlines()[-1:]}")
    for place in ("usr/bin/systemctl", "bin/systemctl"):
        (directory / place).unlink(missing_ok=True)
    script = directory / "usr/bin/systemctl"
    script.write_text(SYSTEMCTL)
    script.chmod(0o755)


class DebianHost(Site):
    """A booted copy of a Debian system: with separate processes, network and mounts."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name
        # --kill-child: every process of the host ends with this one.
        self._init = subprocess.Popen(
            [
                *("unshare", "--net", "--mount", "--pid", "--uts", "--fork", "--kill-child"),
                *("chroot", str(root), "/bin/sh", "-c"),
                f"hostname {name}; mount -t proc proc /proc; mount -t tmpfs run /run;"
                " mkdir -p /run/systemd/system; touch /run/booted; exec python3 -c "
                + shlex.quote(INIT),
            ],
            start_new_session=True,
        )
        self.pid = self._inner_pid()
        self._wait_for("test -e /run/booted")

    def _inner_pid(self) -> int:
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children")
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (found := children.read_text().split()):
            assert time.monotonic() < deadline, "the host does not start"
            time.sleep(0.05)
        return int(found[0])

    def _wait_for(self, command: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            with self.start(command) as process:
                process.communicate()
            if process.returncode == 0:
                return
            assert time.monotonic() < deadline, command
            time.sleep(0.1)

    def at_home(self, text: str) -> str:
        return text

    def start(self, command: str) -> "subprocess.Popen[str]":
        place = ["--net", "--mount", "--pid", "--uts", "--root", "--wd"]
        return subprocess.Popen(
            [
                *("nsenter", f"--target={self.pid}", *place),
                *("/bin/bash", "-e", "-o", "pipefail", "-c", f"cd /root; {command}"),
            ],
            env={
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": "/root",
                "LC_ALL": "C.UTF-8",
                "DEBIAN_FRONTEND": "noninteractive",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def write(self, path: str, text: str) -> None:
        (self.root / path.lstrip("/")).write_text(text)

    def read(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text()

    def install(self, command: str) -> None:
        self.run(command.replace("apt-get install", "apt-get install -y"))

    def logs(self) -> str:
        return self.name + subprocess.run(
            ["nsenter", f"--target={self.pid}", "--mount", "--root", "sh", "-c",
             "tail -n 30 /run/*.out"], capture_output=True, text=True, check=False,
        ).stdout  # fmt: skip

    def end(self) -> None:
        os.killpg(self._init.pid, signal.SIGKILL)
        self._init.wait()


def connect(north: DebianHost, south: DebianHost) -> None:
    """Lay a cable between two hosts, and give them names."""
    first, second = map(str, NETWORK.hosts())
    names = "127.0.0.1 localhost\n" + f"{first} north north.example\n{second} south south.example\n"
    cable = ["ip", "link", "add", "name", "eth0", "netns", str(north.pid), "type", "veth"]
    subprocess.run([*cable, "peer", "name", "eth0", "netns", str(south.pid)], check=True)
    for host, address in ((north, first), (south, second)):
        host.write("/etc/hosts", names)
        for command in (
            "link set lo up",
            f"address add {address}/{NETWORK.prefixlen} dev eth0",
            "link set eth0 up",
        ):
            inside = ["nsenter", f"--target={host.pid}", "--net", "ip", *command.split()]
            subprocess.run(inside, check=True)
