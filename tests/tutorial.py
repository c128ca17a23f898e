"""Runs the commands of docs/tutorial.md, on any two hosts that can run shell commands.

The words behind the fence of a block say what it is:

    text file=PATH            a file that both hosts have before the tutorial begins
    sh both install           installs the package
    sh HOST [OPTIONS]         commands; `retry`: until the output is as expected; `leave-running`;
                              `keep=WORD`: later blocks have the first line of its output for WORD
    text output               lines that the last command prints, where … stands for any text
    text arrives              the next line of the command that was left running
"""

import os
import re
import select
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
TIMEOUT_S = 120.0

USERS = {"sensor": "sensor-password", "dashboard": "dashboard-password"}


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


class Site(ABC):
    """One host of the tutorial."""

    @abstractmethod
    def at_home(self, text: str) -> str:
        """A text of the tutorial as it has to be at this host."""

    @abstractmethod
    def start(self, command: str) -> "subprocess.Popen[str]":
        """Start a shell command in a new session; its stdout and stderr are one pipe."""

    @abstractmethod
    def write(self, path: str, text: str) -> None: ...

    @abstractmethod
    def install(self, command: str) -> None: ...

    @abstractmethod
    def logs(self) -> str: ...

    @abstractmethod
    def end(self) -> None: ...

    def run(self, command: str) -> str:
        with self.start(command) as process:
            output, _ = process.communicate(timeout=TIMEOUT_S)
        is_status = command.startswith("hansa status")  # 1 until all nodes are reachable
        expected = (0, 1) if is_status else (0,)
        assert process.returncode in expected, f"{command}\n{output}\n{self.logs()}"
        return output

    def start_broker(self) -> None:
        """Start the broker as it is before the tutorial begins."""
        for number, (user, password) in enumerate(USERS.items()):
            create = "-c" if number == 0 else ""
            passwd = self.at_home("/etc/mosquitto/passwd")
            self.run(f"mosquitto_passwd -b {create} {passwd} {user} {password}")
        self.run("systemctl start mosquitto")


class Reader:
    """Runs the blocks of the tutorial one after the other, as a reader would."""

    def __init__(self, sites: dict[str, Site], replacements: dict[str, str]) -> None:
        self.sites = sites
        self.commands: list[str] = []
        """All commands that were run, one for each host."""
        self._replacements = replacements
        self.running: list[subprocess.Popen[str]] = []
        """Commands that were left running."""
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
                    site.write(file.removeprefix("file="), self.text_for(site, block.text))
            case ["sh", "both", "install"]:
                for site in self.sites.values():
                    site.start_broker()
                    site.install(block.text)
                    self.commands.append(block.text)
            case ["sh", where, *options]:
                names = list(self.sites) if where == "both" else [where]
                self.run(
                    [
                        (self.sites[name], self.text_for(self.sites[name], block.text))
                        for name in names
                    ],
                    options,
                )
            case ["text", "output"]:
                for number in range(len(self._done)):
                    self.compare(number, block.text)
            case ["text", "arrives"]:
                assert self.next_line(self.running[-1]) == block.text.strip()
            case words:
                pytest.fail(f"a block of an unknown kind: {words}")

    def run(self, commands: list[tuple[Site, str]], options: list[str]) -> None:
        self.commands += [command for _, command in commands]
        self._may_retry = "retry" in options
        first = ""
        if "leave-running" in options:
            started = [site.start(command) for site, command in commands]
            self.running += started
            kept = [option for option in options if option.startswith("keep=")]
            first = self.next_line(started[0]) if kept else ""
        else:
            self._done = [(site, command, site.run(command)) for site, command in commands]
            first = self._done[0][2].partition("\n")[0]
        for option in options:
            if option.startswith("keep="):
                self._replacements[option.removeprefix("keep=")] = first

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
            may_retry = self._may_retry and time.monotonic() < deadline
            assert may_retry, f"missing: {missing}\nin: {output}\n{self.logs()}"
            time.sleep(0.5)
            self._done[number] = (site, command, site.run(command))

    def next_line(self, process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], TIMEOUT_S)
        assert ready, f"no output\n{self.logs()}"
        return process.stdout.readline().strip()

    def logs(self) -> str:
        return "\n".join(site.logs() for site in self.sites.values())

    def wait_for(self, site: Site, command: str, text: str) -> None:
        """Repeat a command until its output contains a text."""
        deadline = time.monotonic() + TIMEOUT_S
        while text not in (output := site.run(f"{command} || true")):
            assert time.monotonic() < deadline, f"missing: {text}\nin: {output}\n{self.logs()}"
            time.sleep(0.5)

    def end(self) -> None:
        for site in self.sites.values():
            site.end()
        self.end_commands()

    def end_commands(self) -> None:
        for process in self.running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # nsenter does not pass signals on
            process.communicate()
        self.running.clear()
