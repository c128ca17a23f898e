"""docs/tutorial.md works as it is written: it joins two Mosquittos that have passwords and ACLs.

Both sites are directories here: `hansa init` and `hansa invite` get options for the paths and
ports, `systemctl` is a script that needs no root, and the package is not installed.
tests/deploy/test_debian_package.py runs the same commands in two real Debian systems.
"""

import getpass
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hansa.testbed.mosquitto import find_mosquitto, free_port
from tests.tutorial import BLOCKS, ROOT, TIMEOUT_S, Reader, Site

MOSQUITTO_CONF = """
persistence true
persistence_location /var/lib/mosquitto/
log_dest file /var/log/mosquitto/mosquitto.log
include_dir /etc/mosquitto/conf.d
"""
"""Debian's file, but for the pid_file."""

COMMANDS_MAX = 9

SYSTEMCTL = r"""#!/bin/bash -e
cd {root}
unit=usr/lib/systemd/system/hansa-agent.service
broker() {{
    {mosquitto} -c etc/mosquitto/mosquitto.conf > mosquitto.out 2>&1 < /dev/null &
    echo $! > mosquitto.pid
    until (: < /dev/tcp/127.0.0.1/{port}) 2> /dev/null; do sleep 0.1; done
}}
agent() {{
    set -a; . etc/hansa/agent.env; set +a
    export $(sed -n 's|^Environment=\(.*=\)/|\1{root}/|p' $unit)
    $(sed -n 's|^ExecStart=||; T; s| /| {root}/|g; s|^/|{root}/|; p' $unit) \
        >> agent.out 2>&1 < /dev/null &
    echo $! > agent.pid
    until (: < /dev/tcp/127.0.0.1/{admin}) 2> /dev/null; do kill -0 $!; sleep 0.1; done
}}
end() {{ kill $(cat $1.pid); while kill -0 $(cat $1.pid) 2> /dev/null; do sleep 0.1; done; }}
case "$*" in
    "is-system-running") echo running ;;
    "cat hansa-agent") sed 's| /etc| {root}/etc|' $unit ;;
    "start mosquitto") broker ;;
    "restart mosquitto") end mosquitto; broker ;;
    "enable --now hansa-agent" | "start hansa-agent") agent ;;
    "stop hansa-agent") end agent ;;
    *) echo "unexpected: systemctl $*" >&2; exit 1 ;;
esac
"""

HANSA = """#!/bin/sh
command=$1
shift
case "$command" in
    init) set -- "$@" --state {root}/var/lib/hansa/agent --ca {root}/var/lib/hansa/ca \
        --config {root}/etc/hansa/agent.toml --mosquitto-conf {root}/etc/mosquitto/mosquitto.conf \
        --broker localhost:{port} --admin-port {admin} ;;
    invite) set -- "$@" --ca {root}/var/lib/hansa/ca --config {root}/etc/hansa/agent.toml \
        --listen 127.0.0.1 --port 0 ;;
esac
exec {python} -m hansa.cli "$command" "$@"
"""


class DirectorySite(Site):
    """One host of the tutorial, as a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port, self.admin = free_port(), free_port()
        for directory in (
            *("bin", "etc/hansa", "etc/mosquitto/conf.d", "etc/logrotate.d"),
            *("var/lib/mosquitto", "var/log/mosquitto", "opt/hansa/bin"),
            *("usr/lib/systemd/system", "config/hansa"),
        ):
            (root / directory).mkdir(parents=True)
        conf = self.at_home(MOSQUITTO_CONF) + f"user {getpass.getuser()}\n"
        (root / "etc/mosquitto/mosquitto.conf").write_text(conf)
        (root / "etc/logrotate.d/mosquitto").write_text("nocreate\n")
        texts = {
            "root": root,
            "port": self.port,
            "admin": self.admin,
            "mosquitto": find_mosquitto(),
            "python": sys.executable,
        }
        self._script("opt/hansa/bin/hansa", HANSA.format(**texts))
        self._script("bin/hansa", HANSA.format(**texts))
        self._script("bin/systemctl", SYSTEMCTL.format(**texts))
        # The agent of a real host answers at 127.0.0.1:8080, which `hansa` asks by default.
        context = {"urls": [f"http://127.0.0.1:{self.admin}"]}
        contexts = {"current": "here", "contexts": {"here": context}}
        (root / "config/hansa/contexts.json").write_text(json.dumps(contexts))
        for program in ("mosquitto_pub", "mosquitto_sub"):
            real = shutil.which(program)
            self._script(f"bin/{program}", f'#!/bin/sh\nexec {real} -p {self.port} "$@"\n')

    def _script(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)
        (self.root / name).chmod(0o755)

    def at_home(self, text: str) -> str:
        """A text of the tutorial with the paths and ports of this site."""
        text = re.sub(r"(?<![\w.])/(etc|var|opt)/", rf"{self.root}/\1/", text)
        return re.sub(r"\b1883\b", str(self.port), text)

    def write(self, path: str, text: str) -> None:
        (self.root / path.lstrip("/")).write_text(text)

    def install(self, command: str) -> None:
        unit = ROOT / "deploy" / "hansa-agent.service"
        shutil.copy(unit, self.root / "usr/lib/systemd/system")

    def start(self, command: str) -> "subprocess.Popen[str]":
        environment = os.environ | {
            "PATH": f"{self.root}/bin:{os.environ['PATH']}",
            "XDG_CONFIG_HOME": f"{self.root}/config",
        }
        return subprocess.Popen(
            ["bash", "-e", "-o", "pipefail", "-c", command],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def logs(self) -> str:
        outputs = sorted(self.root.glob("*.out"))
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in outputs)

    def end(self) -> None:
        for pid in self.root.glob("*.pid"):
            with suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGKILL)


@pytest.fixture
def reader(mosquitto, tmp_path: Path) -> Iterator[Reader]:
    sites: dict[str, Site] = {name: DirectorySite(tmp_path / name) for name in ("north", "south")}
    reader = Reader(sites, {"north.example": f"127.0.0.1:{free_port()}"})
    yield reader
    reader.end()


def wait_for_no_alarms(site: Site) -> None:
    """The last block restarts a node, which the others reach within seconds."""
    until = time.monotonic() + TIMEOUT_S
    while True:
        with site.start("hansa alarm ls") as process:
            output, _ = process.communicate(timeout=TIMEOUT_S)
        if output == "no alarms at 2 nodes\n":
            return
        assert time.monotonic() < until, f"{output}\n{site.logs()}"
        time.sleep(0.1)


def test_tutorial_works_as_it_is_written(reader):
    first_message = 0
    for block in BLOCKS:
        reader.read(block)
        if block.words == ["text", "arrives"]:
            first_message = first_message or len(reader.commands)
    for site in reader.sites.values():
        wait_for_no_alarms(site)
    assert first_message <= COMMANDS_MAX


def test_tutorial_installs_as_the_how_to_does():
    (block,) = [block for block in BLOCKS if "install" in block.words]
    page = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    lines = [line.partition("#")[0].rstrip() for line in page.splitlines()]
    assert [line for line in block.text.splitlines() if line not in lines] == []
