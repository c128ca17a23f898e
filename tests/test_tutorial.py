"""docs/tutorial.md works as it is written: it joins two Mosquittos that have passwords and ACLs.

Both sites are directories here. Absolute paths, ports and host names are replaced in the text of
the commands; `systemctl`, `chown` and `systemd-sysusers` are scripts that need no root. The
installation is not run, only compared with docs/how-to/install.md.
"""

import getpass
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from hansa.testbed.mosquitto import find_mosquitto, free_port

ROOT = Path(__file__).parent.parent
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
TIMEOUT_S = 60.0

USERS = {"sensor": "sensor-password", "dashboard": "dashboard-password"}

MOSQUITTO_CONF = """
persistence true
persistence_location /var/lib/mosquitto/
log_dest file /var/log/mosquitto/mosquitto.log
include_dir /etc/mosquitto/conf.d
"""
"""Debian's file, but for the pid_file."""

SYSTEMCTL = r"""#!/bin/bash -e
cd {root}
broker() {{
    {mosquitto} -c etc/mosquitto/mosquitto.conf > mosquitto.out 2>&1 < /dev/null &
    echo $! > mosquitto.pid
    until (: < /dev/tcp/127.0.0.1/{port}) 2> /dev/null; do sleep 0.1; done
}}
agent() {{
    unit=etc/systemd/system/hansa-agent.service
    set -a; . etc/hansa/agent.env; set +a
    export $(sed -n 's|^Environment=\(.*=\)/|\1{root}/|p' $unit)
    export HANSA_BROKER_PORT={port} HANSA_ADMIN_PORT={admin}
    $(sed -n 's|^ExecStart=||; T; s| /| {root}/|g; s|^/|{root}/|; p' $unit) \
        >> agent.out 2>&1 < /dev/null &
    echo $! > agent.pid
    until (: < /dev/tcp/127.0.0.1/{admin}) 2> /dev/null; do kill -0 $!; sleep 0.1; done
}}
end() {{ kill $(cat $1.pid); while kill -0 $(cat $1.pid) 2> /dev/null; do sleep 0.1; done; }}
case "$*" in
    "start mosquitto") broker ;;
    "restart mosquitto") end mosquitto; broker ;;
    "reload mosquitto") kill -HUP $(cat mosquitto.pid) ;;
    "enable --now hansa-agent" | "start hansa-agent") agent ;;
    "stop hansa-agent") end agent ;;
    "restart hansa-agent") end agent; agent ;;
    "daemon-reload") ;;
    *) echo "unexpected: systemctl $*" >&2; exit 1 ;;
esac
"""


class Block(NamedTuple):
    """One fenced block: the words behind the fence, and its text."""

    words: list[str]
    text: str


BLOCKS = [
    Block(info.split(), text)
    for info, text in re.findall(r"^```([^\n]*)\n(.*?)^```", TUTORIAL, flags=re.M | re.S)
]


def is_like(expected: str, line: str) -> bool:
    """Whether a line is as expected, where `…` stands for any text."""
    return bool(re.fullmatch(".*".join(map(re.escape, expected.split("…"))), line))


class Site:
    """One host of the tutorial, as a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port, self.admin = free_port(), free_port()
        for directory in (
            *(
                "bin",
                "etc/mosquitto/conf.d",
                "etc/sysusers.d",
                "etc/systemd/system",
                "etc/logrotate.d",
            ),
            *("var/lib/mosquitto", "var/lib/hansa", "var/log/mosquitto", "opt/hansa/bin"),
        ):
            (root / directory).mkdir(parents=True)
        conf = self.at_home(MOSQUITTO_CONF) + f"user {getpass.getuser()}\n"
        (root / "etc/mosquitto/mosquitto.conf").write_text(conf)
        (root / "etc/logrotate.d/mosquitto").write_text("nocreate\n")
        hansa = f'#!/bin/sh\nexec {sys.executable} -m hansa.cli "$@"\n'
        self._script("opt/hansa/bin/hansa", hansa)
        self._script("bin/hansa", hansa)
        self._script("bin/chown", "#!/bin/sh\n")
        self._script("bin/systemd-sysusers", "#!/bin/sh\n")
        for program in ("mosquitto_pub", "mosquitto_sub"):
            real = shutil.which(program)
            self._script(f"bin/{program}", f'#!/bin/sh\nexec {real} -p {self.port} "$@"\n')
        self._script(
            "bin/systemctl",
            SYSTEMCTL.format(
                root=root, mosquitto=find_mosquitto(), port=self.port, admin=self.admin
            ),
        )

    def _script(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)
        (self.root / name).chmod(0o755)

    def at_home(self, text: str) -> str:
        """A text of the tutorial with the paths and ports of this site."""
        text = re.sub(r"(?<![\w.])/(etc|var|opt)/", rf"{self.root}/\1/", text)
        text = text.replace("127.0.0.1:8080", f"127.0.0.1:{self.admin}")
        return re.sub(r"\b1883\b", str(self.port), text)

    def start(self, command: str) -> "subprocess.Popen[str]":
        environment = os.environ | {"PATH": f"{self.root}/bin:{os.environ['PATH']}"}
        return subprocess.Popen(
            ["bash", "-e", "-o", "pipefail", "-c", command],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str) -> str:
        with self.start(command) as process:
            output, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, f"{command}\n{output}\n{self.logs()}"
        return output

    def logs(self) -> str:
        outputs = sorted(self.root.glob("*.out"))
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in outputs)

    def end(self) -> None:
        for pid in self.root.glob("*.pid"):
            with suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGKILL)


class Reader:
    """Runs the blocks of the tutorial one after the other, as a reader would."""

    def __init__(self, directory: Path) -> None:
        self.sites = {name: Site(directory / name) for name in ("north", "south")}
        self._replacements = {"north.example:1883": f"127.0.0.1:{self.sites['north'].port}"}
        self._running: list[subprocess.Popen[str]] = []
        self._done: list[tuple[Site, str, str]] = []
        """The last commands: where, which, and their output."""
        self._may_retry = False

    def text_for(self, site: Site, text: str) -> str:
        for old, new in self._replacements.items():
            text = text.replace(old, new)
        return site.at_home(text)

    def read(self, block: Block) -> None:
        match block.words:
            case ["text", file] if file.startswith("file="):
                for site in self.sites.values():
                    target = site.root / file.removeprefix("file=/")
                    target.write_text(self.text_for(site, block.text))
            case ["sh", "both", "install"]:
                self.start_brokers()
            case ["sh", where, *options]:
                names = list(self.sites) if where == "both" else [where]
                commands = [
                    (self.sites[name], self.text_for(self.sites[name], block.text))
                    for name in names
                ]
                self.run(commands, options)
            case ["text", "output"]:
                for number in range(len(self._done)):
                    self.compare(number, block.text)
            case ["text", "arrives"]:
                self.await_line(block.text.strip())
            case words:
                pytest.fail(f"a block of an unknown kind: {words}")

    def start_brokers(self) -> None:
        """Start both brokers as they are before the tutorial begins."""
        for site in self.sites.values():
            for number, (user, password) in enumerate(USERS.items()):
                create = "-c" if number == 0 else ""
                passwd = site.root / "etc/mosquitto/passwd"
                site.run(f"mosquitto_passwd -b {create} {passwd} {user} {password}")
            site.run("systemctl start mosquitto")

    def run(self, commands: list[tuple[Site, str]], options: list[str]) -> None:
        self._may_retry = "retry" in options
        if "leave-running" in options:
            self._running += [site.start(command) for site, command in commands]
            return
        self._done = [(site, command, site.run(command)) for site, command in commands]
        for option in options:
            if option.startswith("keep="):
                self._replacements[option.removeprefix("keep=")] = self._done[0][2].strip()

    def compare(self, number: int, expected: str) -> None:
        """Check that every line of the expected output is in the real one."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            site, command, output = self._done[number]
            missing = [
                line
                for line in self.text_for(site, expected).splitlines()
                if not any(is_like(line, each) for each in output.splitlines())
            ]
            if not missing:
                return
            logs = "\n".join(each.logs() for each in self.sites.values())
            may_retry = self._may_retry and time.monotonic() < deadline
            assert may_retry, f"missing: {missing}\nin: {output}\n{logs}"
            time.sleep(0.5)
            self._done[number] = (site, command, site.run(command))

    def await_line(self, line: str) -> None:
        (process,) = self._running
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], TIMEOUT_S)
        logs = "\n".join(site.logs() for site in self.sites.values())
        assert ready, f"missing: {line}\n{logs}"
        assert process.stdout.readline().strip() == line

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()
        for site in self.sites.values():
            site.end()


@pytest.fixture
def reader(mosquitto, tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.end()


def test_tutorial_works_as_it_is_written(reader):
    for block in BLOCKS:
        reader.read(block)
    status = [
        json.loads(site.run(f"hansa status --json 127.0.0.1:{site.admin}"))
        for site in reader.sites.values()
    ]
    assert [each["alarms"] for each in status] == [{}, {}]


def test_tutorial_installs_as_the_how_to_does():
    (block,) = [block for block in BLOCKS if "install" in block.words]
    page = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    lines = [line.partition("#")[0].rstrip() for line in page.splitlines()]
    assert [line for line in block.text.splitlines() if line not in lines] == []
