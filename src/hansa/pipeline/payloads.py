"""Payloads as columns: a small file of the user's says which topics hold which JSON.

    [temperatures]                      # becomes a table of this name
    filter = "plant/+/temp"
    columns = "value double, unit string"

A payload that is no such JSON leaves the columns empty; the bytes are in `messages` all the same.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from hansa.errors import UsageError
from hansa.pipeline.tables import LakeTable, declare_table
from hansa.pipeline.topics import filter_matches
from hansa.protocol.topics import check_filter

MAPPING_FIELDS = ("filter", "columns")
MESSAGE_KEY = ("origin", "life", "seq", "sure")
FIXED_COLUMNS = (*MESSAGE_KEY, "time", "topic")


def read_payload_tables(path: Path, reserved_names: Iterable[str]) -> list[LakeTable]:
    """Return the tables that a file asks for; their names must not be `taken`."""
    try:
        wanted = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    return [_table(path, name, entry, reserved_names) for name, entry in wanted.items()]


def _table(path: Path, name: str, entry: object, taken: Iterable[str]) -> LakeTable:
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", name) or name in taken:
        raise UsageError(
            f"{path}: {name!r} cannot be the name of a table: lower case letters, digits and _,"
            " and none that there is already"
        )
    if not isinstance(entry, dict) or not all(isinstance(it, str) for it in entry.values()):
        raise UsageError(f"{path}: [{name}] must have filter and columns, both texts")
    for field in entry:
        if field not in MAPPING_FIELDS:
            near = difflib.get_close_matches(field, MAPPING_FIELDS, n=1) or MAPPING_FIELDS
            raise UsageError(f"{path}: [{name}] has no field {field!r}; it has {near[0]!r}")
    for field in MAPPING_FIELDS:
        if field not in entry:
            raise UsageError(f"{path}: [{name}] needs {field!r}")
    topic_filter = check_filter(entry["filter"])
    try:
        columns = StructType.fromDDL(entry["columns"])
    except PySparkException as error:
        why = str(error).strip().splitlines()[0]
        raise UsageError(f"{path}: [{name}] columns {entry['columns']!r}: {why}") from None
    there = list(FIXED_COLUMNS)
    for field in columns.names:
        if field.lower() in there:  # Spark does not tell upper from lower case
            raise UsageError(
                f"{path}: [{name}] has a column {field!r} twice, or every table has it"
            )
        there.append(field.lower())
    return _mapped(name, topic_filter, columns)


def _mapped(name: str, topic_filter: str, columns: StructType) -> LakeTable:
    quoted = topic_filter.replace("\\", "\\\\").replace("'", "\\'")

    def build(messages: DataFrame) -> DataFrame:
        parsed = F.from_json(F.try_validate_utf8(F.col("payload").cast("string")), columns)
        found = messages.where(filter_matches(f"'{quoted}'", "topic")).withColumn("parsed", parsed)
        return found.select(
            *FIXED_COLUMNS, *(F.col("parsed")[field].alias(field) for field in columns.names)
        )

    build.__name__ = name
    build.__doc__ = f"One row per recorded publication that {topic_filter} matches. Key: {', '.join(MESSAGE_KEY)}."
    return declare_table("silver", build, ())
