"""What a table of the lake is: one function from tables to a table, with its grain and its rules.

    @table("delay_ms >= 0")
    def deliveries(events: DataFrame, publications: DataFrame) -> DataFrame:
        '''One row per publication and node that got it. Key: run, origin, life, seq, sure, node.'''

The names of the arguments are the tables that it is made from. The docstring is the definition of
its key. The rules, in SQL, hold for every row; `quality` checks key and rules of every table that
the pipeline makes, before anybody sees it.
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
    """One table, as its function declares it."""

    name: str
    layer: str
    grain: str
    """What a row is, in a sentence."""
    key: tuple[str, ...]
    rules: tuple[str, ...]
    inputs: tuple[str, ...]
    build: Build
    partitions: tuple[str, ...] = ()
    """Columns by whose values its files are in directories of their own."""

    def build_from(self, tables: "Mapping[str, DataFrame]") -> "DataFrame":
        """Return the table, made from others."""
        return self.build(*(tables[name] for name in self.inputs))


class TableLayer:
    """The tables of one layer, in the order in which they are declared and can be made."""

    def __init__(self, name: str) -> None:
        """Begin without tables."""
        self.name = name
        self.tables: list[LakeTable] = []

    def table(self, *rules: str, partitions: tuple[str, ...] = ()) -> Callable[[Build], Build]:
        """Declare the function below as a table, whose rows keep these rules."""

        def declare(build: Build) -> Build:
            self.tables.append(declare_table(self.name, build, rules, partitions))
            return build

        return declare


def declare_table(
    layer: str, build: Build, rules: tuple[str, ...], partitions: tuple[str, ...] = ()
) -> LakeTable:
    """Read what a function says of its table."""
    text = " ".join((build.__doc__ or "").split())
    found = re.match(r"(One row per .*?\.) Key: (.*?)\.", text)
    if not found:
        raise TypeError(f"{build.__name__}: its docstring must begin with grain and key")
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
