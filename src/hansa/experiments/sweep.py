"""Reads a sweep file, which lists the simulations of an experiment.

    name = "redundancy"                      # default: the name of the file
    topology = ["ring:{size}", "random:{size},4"]
    size = [10, 25]
    redundancy = [1, 2]
    faults = ["", "crashes=1", "cuts=2,crashes=1"]
    publications = 50
    seeds = 20

Every key is an option of `hansa simulate`. Lists are swept, other values are the same for all
simulations. `size` replaces `{size}` in topologies. `seeds` is the number of seeds per combination,
a list of seeds, or a range such as "0-49999".
"""

import difflib
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from hansa.errors import UsageError
from hansa.simulator.campaign import parse_seeds

CASES_MAX = 1_000_000
"""Maximum number of simulations of one sweep; more is probably a mistake."""

NAME, SIZE, SEEDS, TOPOLOGY = "name", "size", "seeds", "topology"
SWEEP_KEYS = (NAME, SIZE, SEEDS)

OptionValue = str | int | float


@dataclass(frozen=True, slots=True)
class SweepCase:
    parameters: tuple[tuple[str, str], ...]
    """Options besides the seed."""
    seed: int

    @property
    def arguments(self) -> list[str]:
        """The arguments of `hansa simulate` that run it; they identify the case."""
        given = [word for name, value in self.parameters for word in (f"--{name}", value)]
        return [*given, "--seed", str(self.seed)]


@dataclass(frozen=True, slots=True)
class SimulationSweep:
    name: str
    swept: tuple[str, ...]
    """The options that differ between cases, besides the seed."""
    cases: tuple[SweepCase, ...]


def read_sweep(path: Path, options: Collection[str]) -> SimulationSweep:
    """Read a sweep file; `options` are the option names of `hansa simulate`."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the sweep file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error
    try:
        return make_sweep({NAME: path.stem, **values}, options)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def make_sweep(values: Mapping[str, object], options: Collection[str]) -> SimulationSweep:
    """Return the cases of a sweep file, with the seeds innermost."""
    for name in values:
        if name not in (*SWEEP_KEYS, *options):
            near = difflib.get_close_matches(name, [*SWEEP_KEYS, *options], 1)
            hint = f"did you mean {near[0]!r}?" if near else "see `hansa simulate --help`"
            raise UsageError(f"there is no option {name!r}; {hint}")
    choices = {
        name: _option_values(name, values[name]) for name in values if name not in (NAME, SEEDS)
    }
    _require_size_used(choices)
    seeds = _read_seeds(values.get(SEEDS, 1))
    count = len(seeds)
    for values_of_option in choices.values():
        count *= len(values_of_option)
    if count > CASES_MAX:
        raise UsageError(f"these are {count} simulations; a sweep has at most {CASES_MAX}")
    combinations = dict.fromkeys(
        _make_parameters(dict(zip(choices, chosen, strict=True)))
        for chosen in product(*choices.values())
    )
    return SimulationSweep(
        str(values.get(NAME, "sweep")),
        tuple(name for name in choices if len({dict(each).get(name) for each in combinations}) > 1),
        tuple(SweepCase(parameters, seed) for parameters in combinations for seed in seeds),
    )


def _option_values(name: str, value: object) -> list[OptionValue]:
    option_values: list[Any] = value if isinstance(value, list) else [value]
    if not option_values:
        raise UsageError(f"{name} is an empty list: there is nothing to run")
    for each in option_values:
        if isinstance(each, bool) or not isinstance(each, OptionValue):
            raise UsageError(f"{name} = {each!r} is neither a string nor a number")
    return option_values


def _require_size_used(choices: Mapping[str, list[OptionValue]]) -> None:
    uses_size = any("{size}" in str(word) for word in choices.get(TOPOLOGY, ()))
    if uses_size and SIZE not in choices:
        raise UsageError("a topology contains {size}; set it, for example size = [10, 20]")
    if SIZE in choices and not uses_size:
        raise UsageError('size is set, but no topology uses it: topology = "ring:{size}"')


def _read_seeds(value: object) -> Sequence[int]:
    if isinstance(value, str):
        return parse_seeds(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= CASES_MAX:
            raise UsageError(f"seeds = {value} must be from 1 to {CASES_MAX}")
        return list(range(1, value + 1))
    if not isinstance(value, list) or not value or not all(type(each) is int for each in value):
        raise UsageError(
            "seeds must be a number of seeds, such as 20, a list, such as [3, 7], or a range,"
            ' such as "0-1999"'
        )
    return list(dict.fromkeys(value))


def _make_parameters(chosen: dict[str, OptionValue]) -> tuple[tuple[str, str], ...]:
    """Return one combination as options; an empty string omits the option."""
    size = str(chosen.pop(SIZE, ""))
    texts = {name: str(value) for name, value in chosen.items()}
    if TOPOLOGY in texts:
        texts[TOPOLOGY] = texts[TOPOLOGY].replace("{size}", size)
    return tuple((name, text) for name, text in texts.items() if text)
