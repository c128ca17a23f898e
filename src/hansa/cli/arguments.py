"""Argument parsing shared by all commands: one-line errors, and argument types.

An invalid argument raises UsageError, which `main` prints; argparse would print its usage as well.
"""

import argparse
import getpass
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from hansa.errors import UsageError
from hansa.launcher import command_line

REQUIRED = "the following arguments are required: "
"""How argparse begins its message."""

SAMPLE_MAX = 65_536
"""Largest N of a telemetry sample of one publication in N."""

SECRET_CHARS_MAX = 4_096

SEED_MAX = (1 << 63) - 1
"""Largest signed 64-bit integer, which every reader of our JSON can represent."""


class Parser(argparse.ArgumentParser):
    """A parser that raises errors instead of exiting."""

    def __init__(self, prog: str, description: str, examples: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse; optional positional arguments may also follow options."""
        return self.parse_intermixed_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if message.startswith(REQUIRED):
            message = self._explain_required(message.removeprefix(REQUIRED).split(", "))
        help_command = command_line(*self.prog.split()[1:], "--help")
        raise UsageError(f"{message}; see `{help_command}`")

    def _explain_required(self, names: Sequence[str]) -> str:
        """Say what a missing argument is, as its help does."""
        helps = {each.metavar or each.dest: each.help for each in self._actions}
        missing = [f"{name} ({helps[name]})" if helps.get(name) else name for name in names]
        return f"missing: {', '.join(missing)}"


def whole_number(least: int, most: int, unit: str = "") -> Callable[[str], int]:
    """Return the type of whole numbers from `least` to `most`; `unit` is used in errors."""
    of, units = (f" of {unit}", f" {unit}") if unit else ("", "")

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,30}", text):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number{of}")
        if not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text} must be from {least} to {most}{units}")
        return int(text)

    return parse


def decimal_number(least: float, most: float, unit: str = "") -> Callable[[str], float]:
    """Return the type of numbers from `least` to `most`; `unit` is used in errors."""
    of, units = (f" of {unit}", f" {unit}") if unit else ("", "")

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number{of}")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"{text} must be from {least:.9g} to {most:.9g}{units}"
            )
        return value

    return parse


def one_of(words: Iterable[str]) -> Callable[[str], str]:
    """Return the type of some words; the error of argparse's `choices` depends on the version."""
    known = [str(word) for word in words]

    def parse(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"there is no {text!r}; there are {', '.join(known)}")
        return text

    return parse


def seed(text: str) -> int:
    return whole_number(0, SEED_MAX)(text)


def strategy(text: str) -> str:
    """Check the name of a routing strategy; imports the strategies only when it is used."""
    from hansa.protocol.routing import STRATEGIES

    return one_of(STRATEGIES)(text)


def telemetry_sample(text: str) -> str:
    """Check a sample of publications: none, all, or N for one in N."""
    if text not in ("none", "all"):
        whole_number(1, SAMPLE_MAX)(text)
    return text


def path(text: str) -> Path:
    """Return a path; an empty text, which would be the current directory, is refused."""
    if not text:
        raise argparse.ArgumentTypeError("name a file")
    return Path(text)


def node_and_text(text: str) -> tuple[str, str]:
    """Split `NODE:TEXT`, such as `3:plant/#`; the node is checked later."""
    node, colon, rest = text.partition(":")
    if not (colon and node and rest):
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a node, a colon and a topic or filter, as in 3:plant/temp"
        )
    return node, rest


def broker_address(text: str) -> tuple[str, int]:
    """Return host and port."""
    host, colon, port = text.rpartition(":")
    if not (
        colon
        and host
        and "/" not in host
        and port.isascii()
        and port.isdigit()
        and 0 < int(port) < 1 << 16
    ):
        raise argparse.ArgumentTypeError(f"{text!r} must be HOST:PORT, as in localhost:1883")
    return host.strip("[]"), int(port)


def make_directory(directory: Path, option: str) -> None:
    """Create the directory of an option before the work, so that an error is reported early."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{option} {directory}: {error.strerror}") from error


def read_secret(given: str) -> str:
    """Return a secret argument, or for `-` one line of standard input: other users of the machine
    see the arguments of running commands."""
    if given != "-":
        return given
    if sys.stdin.isatty():
        return getpass.getpass("token: ").strip()
    return sys.stdin.readline(SECRET_CHARS_MAX).strip()
