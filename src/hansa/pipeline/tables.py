"""Declares a table of the lake: a function from tables to a table, with grain, key and rules.

    @SILVER.table("delay_ms >= 0")
    def deliveries(events: DataFrame, publications: DataFrame) -> DataFrame:
        '''One row per publication and node that received it. Key: run, origin_id, …, node_id.'''

The names of the parameters are the input tables. The docstring defines grain and key. The rules, in
SQL, hold for every row; `quality` checks key and rules of each table before it is published.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Build = Callable[..., "DataFrame"]


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A declared table."""

    name: str
    layer: str
    grain: str
    """Sentence that says what a row is."""
    key: tuple[str, ...]
    rules: tuple[str, ...]
    inputs: tuple[str, ...]
    build: Build
    partitions: tuple[str, ...] = ()
    """Columns by which its files are partitioned."""

    def build_from(self, tables: "Mapping[str, DataFrame]") -> "DataFrame":
        """Build the table from its inputs."""
        return self.build(*(tables[name] for name in self.inputs))


class TableLayer:
    """The tables of one layer, in the order in which they are declared and can be built."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tables: list[LakeTable] = []

    def table(self, *rules: str, partitions: tuple[str, ...] = ()) -> Callable[[Build], Build]:
        """Return a decorator that declares a function as a table with these rules."""

        def declare(build: Build) -> Build:
            self.tables.append(declare_table(self.name, build, rules, partitions))
            return build

        return declare


def declare_table(
    layer: str, build: Build, rules: tuple[str, ...], partitions: tuple[str, ...] = ()
) -> LakeTable:
    """Read grain and key from the docstring and inputs from the parameters of a function."""
    text = " ".join((build.__doc__ or "").split())
    found = re.match(r"(One row per .*?\.) Key: (.*?)\.", text)
    if not found:
        raise TypeError(f"{build.__name__}: the docstring must begin with grain and key")
    return LakeTable(
        build.__name__,
        layer,
        found[1],
        tuple(found[2].split(", ")),
        rules,
        tuple(inspect.signature(build).parameters),
        build,
        partitions,
    )
