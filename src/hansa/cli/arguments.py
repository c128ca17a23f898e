"""Parsing a command line: argparse, with one-line complaints and texts that become values.

A bad argument raises UsageError, which `main` prints; argparse alone would print its usage, too.
"""

import argparse
import math
from collections.abc import Callable, Iterable
from typing import NoReturn

from hansa.errors import UsageError

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
        raise UsageError(f"{message}; see `{self.prog} --help`")


def whole(least: int, most: int, unit: str) -> Callable[[str], int]:
    """Return a parser of whole numbers from `least` to `most`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {unit}") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} must be from {least} to {most} {unit}")
        return value

    return parse


def amount(least: float, most: float, unit: str) -> Callable[[str], float]:
    """Return a parser of numbers from `least` to `most`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {unit}")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} must be from {least:g} to {most:g} {unit}")
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
    return whole(0, SEED_MAX, "(a seed)")(text)


def at_node(text: str) -> tuple[str, str]:
    """Split `NODE:TEXT`, such as `3:plant/#`; which nodes there are is not known yet."""
    node, colon, rest = text.partition(":")
    if not (colon and node and rest):
        raise argparse.ArgumentTypeError(f"{text!r} must be NODE:TOPIC, as in 3:plant/temp")
    return node, rest
