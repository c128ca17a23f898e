"""Argument parsing shared by all commands: one-line errors, and argument types.

An invalid argument raises UsageError, which `main` prints; argparse would print its usage as well.
"""

import argparse
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from hansa.errors import UsageError
from hansa.launcher import command_line

SAMPLE_MAX = 65_536
"""Largest N of a telemetry sample of one publication in N."""

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

    def error(self, message: str) -> NoReturn:
        help_command = command_line(*self.prog.split()[1:], "--help")
        raise UsageError(f"{message}; see `{help_command}`")


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
