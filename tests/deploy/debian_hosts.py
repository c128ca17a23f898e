"""Two Debian systems on this machine: chroots made by debootstrap, each with its own network,
processes and mounts, joined by one cable and without a route to anywhere else.

Each has its own systemd as process 1, in a control group of its own.
"""

import ipaddress
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.tutorial import Site

PACKAGES = ("dbus", "mosquitto", "mosquitto-clients", "procps", "python3", "systemd")
SUITES = {"12": "bookworm", "13": "trixie"}
BOOTSTRAP_TIMEOUT_S = 1_200.0
START_TIMEOUT_S = 30.0

NETWORK = ipaddress.ip_network("198.18.77.0/30")
"""Reserved for tests of network devices (RFC 2544); exists only between the two namespaces."""

NAMESPACES = ("--net", "--mount", "--pid", "--uts", "--ipc")

BOOT = """
mount -t cgroup2 none /sys/fs/cgroup
mkdir "/sys/fs/cgroup/$2"
echo 0 > "/sys/fs/cgroup/$2/cgroup.procs"
exec unshare --cgroup /bin/bash -ec '
    cd "$1"
    mount --bind . .
    cd "$1"
    mount -t proc proc proc
    mount -t sysfs -o ro sysfs sys
    mount -t cgroup2 none sys/fs/cgroup
    mount -t tmpfs -o mode=755 run run
    mount -t tmpfs -o mode=755 dev dev
    for device in full null random tty urandom zero; do
        touch dev/$device
        mount --bind /dev/$device dev/$device
    done
    mkdir dev/pts dev/shm
    mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    mount -t tmpfs shm dev/shm
    pivot_root . mnt
    umount -l /mnt
    exec env -i container=test /lib/systemd/systemd
' bash "$1"
"""
"""Boots the Debian system at $1 in the control group $2; this becomes its process 1."""

REMOVE_GROUP = """
mount -t cgroup2 none /sys/fs/cgroup
find "/sys/fs/cgroup/$1" -depth -type d -exec rmdir {} +
"""


def require_debian_hosts() -> None:
    """Skip the test where such hosts cannot be made."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a Debian system and network namespaces")
    for program in ("debootstrap", "ip", "unshare", "nsenter", "dpkg-deb"):
        if shutil.which(program) is None and not _install(program):
            pytest.skip(f"there is no {program} here, and it cannot be installed")
    probe = "mount -t cgroup2 none /sys/fs/cgroup && mkdir /sys/fs/cgroup/$$ && rmdir $_"
    done = subprocess.run(
        ["unshare", "--mount", "/bin/bash", "-c", probe],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"systemd needs control groups (version 2): {done.stderr.strip()}")


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


class DebianHost(Site):
    """A booted copy of a Debian system: with separate processes, network and mounts."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name
        self._group = f"{name}-{os.getpid()}"
        self.write("/etc/hostname", name)
        # --kill-child: every process of the host ends with this one.
        self._init = subprocess.Popen(
            [
                *("unshare", *NAMESPACES, "--fork", "--kill-child"),
                *("/bin/bash", "-ec", BOOT, "bash", str(root), self._group),
            ],
            start_new_session=True,
        )
        self.pid = self._inner_pid()
        self._wait_for("systemctl is-system-running")

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
        place = [*NAMESPACES, "--cgroup", "--root", "--wd"]
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

    def start_broker(self) -> None:
        super().start_broker()
        self.run("systemctl restart mosquitto")  # Debian's package has started it

    def install(self, command: str) -> None:
        self.run(command.replace("apt-get install", "apt-get install -y"))

    def logs(self) -> str:
        return self.name + subprocess.run(
            ["nsenter", f"--target={self.pid}", "--mount", "--root", "journalctl", "-n", "60"],
            capture_output=True, text=True, check=False,
        ).stdout  # fmt: skip

    def end(self) -> None:
        os.killpg(self._init.pid, signal.SIGKILL)
        self._init.wait()
        remove = ["unshare", "--mount", "/bin/bash", "-ec", REMOVE_GROUP, "bash", self._group]
        deadline = time.monotonic() + START_TIMEOUT_S
        while subprocess.run(remove, capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline, f"processes of {self.name} do not end"
            time.sleep(0.1)


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
