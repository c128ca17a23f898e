"""Silver tables for JSON payloads, declared in a file of the user:

    [temperatures]                      # name of the table
    filter = "plant/+/temp"
    columns = "value double, unit string"

The columns of a payload that does not match are empty; its bytes are in `messages` in any case.
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
from hansa.pipeline.silver import MESSAGE_KEY
from hansa.pipeline.tables import LakeTable, declare_table
from hansa.pipeline.topics import filter_matches
from hansa.protocol.topics import check_filter

MAPPING_FIELDS = ("filter", "columns")
FIXED_COLUMNS = (*MESSAGE_KEY, "time", "topic")


def read_payload_tables(path: Path, reserved_names: Iterable[str]) -> list[LakeTable]:
    """Return the tables that a file declares; raise UsageError if it is wrong."""
    try:
        declared = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    return [_read_table(path, name, entry, reserved_names) for name, entry in declared.items()]


def _read_table(path: Path, name: str, entry: object, reserved_names: Iterable[str]) -> LakeTable:
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", name) or name in reserved_names:
        raise UsageError(
            f"{path}: {name!r} cannot be the name of a table: use lower case letters, digits and _,"
            " and no name of an existing table"
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
    used = list(FIXED_COLUMNS)
    for field in columns.names:
        if field.lower() in used:  # Spark ignores case
            raise UsageError(
                f"{path}: [{name}] has a column {field!r} twice, or every table has it"
            )
        used.append(field.lower())
    return _payload_table(name, topic_filter, columns)


def _payload_table(name: str, topic_filter: str, columns: StructType) -> LakeTable:
    quoted = topic_filter.replace("\\", "\\\\").replace("'", "\\'")

    def build(messages: DataFrame) -> DataFrame:
        parsed = F.from_json(F.try_validate_utf8(F.col("payload").cast("string")), columns)
        matching = messages.where(filter_matches(f"'{quoted}'", "topic"))
        return matching.withColumn("parsed", parsed).select(
            *FIXED_COLUMNS, *(F.col("parsed")[field].alias(field) for field in columns.names)
        )

    build.__name__ = name
    build.__doc__ = (
        f"One row per recorded publication that matches {topic_filter}."
        f" Key: {', '.join(MESSAGE_KEY)}."
    )
    return declare_table("silver", build, ())
