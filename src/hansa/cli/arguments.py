"""Parsing a command line: argparse, with one-line complaints and texts that become values.

A bad argument raises UsageError, which `main` prints; argparse alone would print its usage, too.
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
"""Telemetry tells of one publication in so many at least, or of none."""

SEED_MAX = (1 << 63) - 1
"The largest seed: what every tool that reads our JSON can hold."


class Parser(argparse.ArgumentParser):
    """An argparse parser that leaves printing and exiting to `main`."""

    def __init__(self, prog: str, description: str, examples: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would have printed, in one line."""
        asked = command_line(*self.prog.split()[1:], "--help")
        raise UsageError(f"{message}; see `{asked}`")


def whole_number(least: int, most: int, unit: str = "") -> Callable[[str], int]:
    """Return a parser of whole numbers from `least` to `most`, of so many `unit` if they count."""
    of, units = (f" of {unit}", f" {unit}") if unit else ("", "")

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,30}", text):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number{of}")
        if not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text} must be from {least} to {most}{units}")
        return int(text)

    return parse


def decimal_number(least: float, most: float, unit: str = "") -> Callable[[str], float]:
    """Return a parser of numbers from `least` to `most`, of so many `unit` if they have one."""
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
    """Return a parser of some words; argparse's own complaint differs from version to version."""
    known = [str(word) for word in words]

    def parse(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"there is no {text!r}; there are {', '.join(known)}")
        return text

    return parse


def seed(text: str) -> int:
    """Return a seed: any whole number that a replay can name."""
    return whole_number(0, SEED_MAX)(text)


def strategy(text: str) -> str:
    """Return the name of a routing strategy; they are imported only to look one up."""
    from hansa.protocol.routing import STRATEGIES

    return one_of(STRATEGIES)(text)


def telemetry_sample(text: str) -> str:
    """Return of which publications telemetry tells: none, all, or a number n for one in n."""
    if text not in ("none", "all"):
        whole_number(1, SAMPLE_MAX)(text)
    return text


def path(text: str) -> Path:
    """Return the path of a file; an empty text would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("name a file")
    return Path(text)


def node_and_text(text: str) -> tuple[str, str]:
    """Split `NODE:TEXT`, such as `3:plant/#`; which nodes there are is not known yet."""
    node, colon, rest = text.partition(":")
    if not (colon and node and rest):
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a node, a colon and a topic or filter, as in 3:plant/temp"
        )
    return node, rest
