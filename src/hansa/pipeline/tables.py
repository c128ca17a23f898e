"""Declares a table of the lake: a function from tables to a table, with grain, key and rules.

    @SILVER.table("frame_bytes > 0")
    def control_frames(events: DataFrame) -> DataFrame:
        '''One row per sent control frame. Key: run, node_id, incarnation, record_sequence.'''

The names of the parameters are the input tables. The docstring defines grain and key. The rules, in
SQL, hold for every row. Delta enforces both when rows are written: key columns are NOT NULL, and
rules are CHECK constraints, so a row that breaks one stops the pipeline before the commit.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Build = Callable[..., "DataFrame"]

BUCKET = ("run", "hour")
"""Partition of a gold table: the unit that is computed anew when its input changes."""


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
    nullable_key: tuple[str, ...] = ()
    """Columns of the key that may be NULL."""
    partitions: tuple[str, ...] = ()
    looks_ahead: bool = False
    """Whether a gold row of one hour also depends on input of the next hour."""

    def build_from(self, tables: "Mapping[str, DataFrame]") -> "DataFrame":
        """Build the table from its inputs."""
        return self.build(*(tables[name] for name in self.inputs))


class TableLayer:
    """The tables of one layer, in the order in which they are declared and can be built."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tables: list[LakeTable] = []

    def table(
        self,
        *rules: str,
        nullable_key: tuple[str, ...] = (),
        partitions: tuple[str, ...] = (),
        looks_ahead: bool = False,
    ) -> Callable[[Build], Build]:
        """Return a decorator that declares a function as a table with these rules."""

        def declare(build: Build) -> Build:
            grain, key = read_docstring(build)
            inputs = tuple(inspect.signature(build).parameters)
            self.tables.append(
                LakeTable(
                    build.__name__,
                    self.name,
                    grain,
                    key,
                    rules,
                    inputs,
                    build,
                    nullable_key,
                    partitions,
                    looks_ahead,
                )
            )
            return build

        return declare

    def __getitem__(self, name: str) -> LakeTable:
        return next(table for table in self.tables if table.name == name)


def read_docstring(build: Build) -> tuple[str, tuple[str, ...]]:
    """Return grain and key, which the docstring of a table begins with."""
    text = " ".join((build.__doc__ or "").split())
    found = re.match(r"(One row per .*?\.) Key: (.*?)\.", text)
    if not found:
        raise TypeError(f"{build.__name__}: the docstring must begin with grain and key")
    return found[1], tuple(found[2].split(", "))
