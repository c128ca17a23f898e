"""The Debian package: two fresh Debian systems follow the tutorial, upgrade, remove, purge."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.deploy.debian_hosts import DebianHost, bootstrap, connect, require_debian_hosts
from tests.later_version import LATER, copy_later_version
from tests.tutorial import BLOCKS, ROOT, Reader

BUILD_TIMEOUT_S = 900.0


def build(tree: Path, out: Path) -> Path:
    """Build the packages of a source tree; return the Debian one."""
    done = subprocess.run(
        [sys.executable, str(tree / "deploy" / "package.py"), "--out", str(out)],
        capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def debian(tmp_path_factory) -> Path:
    """A fresh Debian system, to be copied."""
    require_debian_hosts()
    directory: Path = tmp_path_factory.mktemp("debian") / "root"
    bootstrap(directory)
    return directory


@pytest.fixture
def hosts(debian: Path, tmp_path: Path) -> Iterator[dict[str, DebianHost]]:
    made = {}
    for name in ("north", "south"):
        subprocess.run(["cp", "-a", str(debian), str(tmp_path / name)], check=True)
        made[name] = DebianHost(tmp_path / name, name)
    connect(made["north"], made["south"])
    yield made
    for host in made.values():
        host.end()
        shutil.rmtree(host.root)


def node_id(host: DebianHost) -> str:
    return str(json.loads(host.run("hansa node show --json"))["node"])


def deliver(hosts: dict[str, DebianHost], reader: Reader, text: str) -> None:
    """Publish at north, and wait for the message at the subscriber of the tutorial."""
    hosts["north"].run(
        f"mosquitto_pub -u sensor -P sensor-password -q 1 -t plant/line1/temp -m {text}"
    )
    assert reader.next_line(reader.running[-1]) == f"plant/line1/temp {text}"


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_two_fresh_debian_systems_follow_the_tutorial(hosts, tmp_path):
    package = build(ROOT, tmp_path / "dist")
    later = build(copy_later_version(tmp_path / "tree"), tmp_path / "dist")
    for host in hosts.values():
        for file in (package, later):
            shutil.copy(file, host.root / "root")
    reader = Reader(dict(hosts), {"hansa_0.2.0+deb12_amd64.deb": package.name})
    try:
        for block in BLOCKS:
            reader.read(block)
        check_installed(hosts["north"])
        check_restarts(hosts["north"], reader)
        check_upgrade(hosts, reader, later)
    finally:
        reader.end_commands()
    check_removal(hosts["south"])


def check_installed(host: DebianHost) -> None:
    units = "hansa-agent.service hansa-broker.service hansa-proxy.socket"
    assert host.run(f"systemd-analyze verify {units}") == ""
    process = host.run("systemctl show --property MainPID --value hansa-agent").strip()
    status = dict(
        line.split(":\t") for line in host.run(f"cat /proc/{process}/status").splitlines()
    )
    assert (status["NoNewPrivs"], status["Seccomp"], int(status["CapEff"], 16)) == ("1", "2", 0)
    # user of the process, owner of the state, modes of secrets
    assert host.run(f"stat -c %U /proc/{process}").strip() == "hansa"
    places = "/var/lib/hansa/agent /var/lib/hansa/ca /etc/hansa/agent.env /etc/hansa/agent.toml"
    assert host.run(f"stat -c '%a %U' {places}").splitlines() == [
        "700 hansa", "700 root", "600 root", "644 root",
    ]  # fmt: skip
    assert host.run("dpkg --verify hansa") == ""


def check_restarts(host: DebianHost, reader: Reader) -> None:
    """systemd restarts an agent that crashed, but none with wrong settings."""
    host.run("systemctl kill --signal SIGKILL hansa-agent")
    reader.wait_for(host, "systemctl show --property NRestarts hansa-agent", "NRestarts=1")
    reader.wait_for(host, "hansa status", "south")
    host.run("cp -p /etc/hansa/agent.toml /root; echo 'nonsense = 1' >> /etc/hansa/agent.toml")
    host.run("systemctl restart hansa-agent")
    asked = "systemctl show --property NRestarts,ActiveState,ExecMainStatus hansa-agent"
    reader.wait_for(host, asked, "ActiveState=failed")
    assert set(host.run(asked).splitlines()) == {
        "NRestarts=0", "ActiveState=failed", "ExecMainStatus=2",
    }  # fmt: skip
    assert "unknown setting 'nonsense'" in host.run("journalctl --unit hansa-agent --lines 5")
    host.run("cp -p /root/agent.toml /etc/hansa; systemctl restart hansa-agent")
    reader.wait_for(host, "hansa status", "south")


def check_upgrade(hosts: dict[str, DebianHost], reader: Reader, later: Path) -> None:
    """The agents restart with the same identity; settings that were edited stay."""
    for host in hosts.values():
        host.run("echo '# edited' >> /etc/hansa/mosquitto.conf")
        host.run("echo '# edited' >> /etc/hansa/agent.toml")
        before = node_id(host)
        host.run(f"apt-get install -y ./{later.name}")
        reader.wait_for(host, "hansa status", LATER)
        assert node_id(host) == before
        for file in ("mosquitto.conf", "agent.toml"):
            assert host.read(f"/etc/hansa/{file}").endswith("# edited\n")
    reader.wait_for(hosts["north"], "hansa topic ls", "plant/#")
    deliver(hosts, reader, "23.5")


def check_removal(host: DebianHost) -> None:
    host.run("apt-get remove -y hansa")
    assert host.run("ls -d /opt/hansa /usr/bin/hansa 2>/dev/null || true") == ""
    assert host.run("ls /var/lib/hansa/agent/key.pem").strip() == "/var/lib/hansa/agent/key.pem"
    assert host.run("pgrep --list-name hansa || true") == ""
    host.run("apt-get purge -y hansa")
    assert host.run("ls -d /var/lib/hansa /etc/hansa 2>/dev/null || true") == ""
    assert host.run("dpkg -l hansa 2>&1 | grep '^[a-z]i' || true") == ""
