"""Payload contracts: which JSON payloads are expected on which topics, as a file of the user:

    [temperatures]                      # name of the table
    filter = "plant/+/temp"
    columns = "value double not null, unit string"

    [pumps]
    filter = "plant/+/pump"
    schema = "pump.schema.json"         # JSON Schema, in the directory of this file

A message that fulfils the contract is a row of the table. Any other is a row of `payload_errors`,
with the reason. Fields that the contract does not name are ignored.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from hansa.errors import InvalidTopic, UsageError
from hansa.pipeline.errors import SPARK_EXCEPTIONS, to_user_error
from hansa.pipeline.silver import MESSAGE_KEY, SILVER
from hansa.pipeline.topics import filter_matches, text_literal
from hansa.protocol.topics import check_filter

FIELDS = ("filter", "columns", "schema")
FIXED_COLUMNS = (*MESSAGE_KEY, "hour", "published_at", "topic")

JSON_TYPES = {
    "number": "double",
    "integer": "bigint",
    "string": "string",
    "boolean": "boolean",
}
"""Column types of JSON Schema's types."""
OBJECT_KEYWORDS = {"$schema", "$id", "title", "description", "type", "properties", "required"}
FIELD_KEYWORDS = {"title", "description", "type", "enum", "minimum", "maximum"}

NUMBER = "^(BIGINT|DECIMAL|DOUBLE|FLOAT)"
JSON_FORMS = {
    **dict.fromkeys(("double", "float", "decimal"), NUMBER),
    **dict.fromkeys(("bigint", "int", "smallint", "tinyint"), r"^(BIGINT|DECIMAL\([0-9]+,0\))"),
    "boolean": "^BOOLEAN",
    "array": "^ARRAY",
    **dict.fromkeys(("struct", "map"), "^OBJECT"),
}
"""By column type, what Spark calls the JSON values that it accepts; any other type is a string."""


@dataclass(frozen=True, slots=True)
class PayloadContract:
    """One table of the file."""

    name: str
    filter: str
    columns: str
    """Columns as Spark DDL."""
    checks: tuple[tuple[str, str], ...] = ()
    """Conditions in SQL, each with the reason if it does not hold."""

    @property
    def fields(self) -> StructType:
        return StructType.fromDDL(self.columns)


# ---------------------------------------------------------------- the file


def read_contracts(path: Path, reserved_names: Iterable[str]) -> list[PayloadContract]:
    """Return the contracts of a file; raise UsageError if it is wrong."""
    try:
        declared = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _unreadable(path, error) from None
    return [_read_contract(path, name, entry, reserved_names) for name, entry in declared.items()]


def _unreadable(path: Path, error: OSError | ValueError) -> UsageError:
    reason = error.strerror if isinstance(error, OSError) else error
    return UsageError(f"{path} cannot be read: {reason}")


def _read_contract(
    path: Path, name: str, entry: object, reserved_names: Iterable[str]
) -> PayloadContract:
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", name) or name in reserved_names:
        raise UsageError(
            f"{path}: {name!r} cannot be the name of a table: use lower case letters, digits and _,"
            " and no name of an existing table"
        )
    if not isinstance(entry, dict) or not all(isinstance(it, str) for it in entry.values()):
        raise UsageError(f"{path}: [{name}] must have filter, and columns or schema, all texts")
    for field in entry:
        if field not in FIELDS:
            near = difflib.get_close_matches(field, FIELDS, n=1) or FIELDS
            raise UsageError(f"{path}: [{name}] has no field {field!r}; it has {near[0]!r}")
    if "filter" not in entry:
        raise UsageError(f"{path}: [{name}] needs 'filter'")
    if ("columns" in entry) == ("schema" in entry):
        raise UsageError(f"{path}: [{name}] needs either 'columns' or 'schema'")
    try:
        topic_filter = check_filter(entry["filter"])
    except InvalidTopic as error:
        raise UsageError(f"{path}: [{name}] {error}") from None
    columns, checks = (
        (entry["columns"], ())
        if "columns" in entry
        else _from_json_schema(path.parent / entry["schema"])
    )
    _check_columns(path, name, columns)
    return PayloadContract(name, topic_filter, columns, checks)


def _check_columns(path: Path, name: str, columns: str) -> None:
    try:
        fields = StructType.fromDDL(columns)
    except SPARK_EXCEPTIONS as error:
        why = to_user_error(error)
        raise UsageError(f"{path}: [{name}] columns {columns!r}: {why}") from None
    used = list(FIXED_COLUMNS)
    for field in fields.names:
        if field.lower() in used:  # Spark ignores case
            raise UsageError(
                f"{path}: [{name}] has a column {field!r} twice, or every table has it"
            )
        if not re.fullmatch(r"[\w -]+", field):
            raise UsageError(f"{path}: [{name}] column {field!r}: use letters, digits, _ and -")
        used.append(field.lower())


def _from_json_schema(path: Path) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return columns and checks of a JSON Schema: an object with plain fields."""
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        raise UsageError(f"{path} must be a JSON Schema of an object with 'properties'")
    _refuse_keywords(path, schema, OBJECT_KEYWORDS)
    required = schema.get("required", [])
    columns: list[str] = []
    checks: list[tuple[str, str]] = []
    for name, field in schema["properties"].items():
        _refuse_keywords(path, field, FIELD_KEYWORDS)
        if field.get("type") not in JSON_TYPES:
            raise UsageError(f"{path}: {name!r} needs a type: {', '.join(JSON_TYPES)}")
        kind = JSON_TYPES[field["type"]]
        columns.append(f"`{name}` {kind}{' not null' if name in required else ''}")
        checks += _field_checks(name, field)
    return ", ".join(columns), tuple(checks)


def _refuse_keywords(path: Path, schema: object, known: set[str]) -> None:
    if not isinstance(schema, dict):
        raise UsageError(f"{path}: {schema!r} is not a schema")
    for keyword in schema:
        if keyword not in known:
            raise UsageError(
                f"{path}: keyword {keyword!r} is not supported here; there are"
                f" {', '.join(sorted(known))}"
            )


def _field_checks(name: str, field: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for keyword, sign, word in (("minimum", ">=", "below"), ("maximum", "<=", "above")):
        if keyword in field:
            limit = float(field[keyword])
            yield f"`{name}` {sign} {limit!r}", f"field '{name}' is {word} {limit:g}"
    if "enum" in field:
        values = ", ".join(_literal(value) for value in field["enum"])
        yield f"`{name}` in ({values})", f"field '{name}' has a value that is not allowed"


def _literal(value: object) -> str:
    return text_literal(value) if isinstance(value, str) else json.dumps(value)


def contracts_to_text(contracts: Sequence[PayloadContract]) -> str:
    return json.dumps([asdict(each) for each in contracts], indent=1)


def contracts_from_text(text: str) -> list[PayloadContract]:
    return [
        PayloadContract(**{**each, "checks": tuple(tuple(check) for check in each["checks"])})
        for each in json.loads(text)
    ]


# ---------------------------------------------------------------- the tables


def typed_rows(messages: DataFrame, contract: PayloadContract) -> DataFrame:
    """Return one row per message that fulfils a contract. Key: origin_id, epoch, sequence,
    guaranteed."""
    return (
        _parsed(messages, contract)
        .where("reason is null")
        .select(*FIXED_COLUMNS, *(F.col(f"`{name}`") for name in contract.fields.names))
    )


@SILVER.table()
def payload_errors(messages: DataFrame) -> DataFrame:
    """One row per message and payload contract that it does not fulfil. Key: contract, origin_id,
    epoch, sequence, guaranteed."""
    return messages.select(
        F.lit("").alias("contract"), *FIXED_COLUMNS, F.lit("").alias("reason"), "payload"
    ).limit(0)


def error_rows(messages: DataFrame, contracts: Sequence[PayloadContract]) -> DataFrame:
    """Return the rows of `payload_errors`."""
    found = [
        _parsed(messages, contract)
        .where("reason is not null")
        .select(F.lit(contract.name).alias("contract"), *FIXED_COLUMNS, "reason", "payload")
        for contract in contracts
    ]
    return reduce(DataFrame.unionByName, found)


def _parsed(messages: DataFrame, contract: PayloadContract) -> DataFrame:
    """Add the columns of a contract to the messages that match its filter, and `reason`."""
    matching = messages.where(filter_matches(_literal(contract.filter), "topic"))
    # A failed attempt to parse JSON costs more than the rest of the row.
    text = F.when(F.col("payload_text").rlike(r"^\s*\{"), F.col("payload_text"))
    parsed = matching.withColumn("variant", F.try_parse_json(text))
    for field in contract.fields:
        kind = field.dataType.simpleString()
        value = f"try_variant_get(variant, \"$['{field.name}']\", '{kind}')"
        parsed = parsed.withColumn(field.name, F.expr(value))
    return parsed.withColumn("reason", _reason(contract))


def _reason(contract: PayloadContract) -> Column:
    """Return why a message breaks the contract; NULL if it does not."""
    cases = [
        ("payload_text is null", "the payload is not UTF-8"),
        ("variant is null", "the payload is not a JSON object"),
    ]
    for field in contract.fields:
        kind = field.dataType.simpleString()
        form = JSON_FORMS.get(re.split(r"[(<]", kind)[0], "^STRING")
        value = f"variant_get(variant, \"$['{field.name}']\", 'variant')"
        is_missing = f"({value} is null or is_variant_null({value}))"
        if not field.nullable:
            cases.append((is_missing, f"field '{field.name}' is missing"))
        fits = f"schema_of_variant({value}) rlike {_literal(form)}"
        wrong = f"not {is_missing} and (not {fits} or `{field.name}` is null)"
        cases.append((wrong, f"field '{field.name}' is not {kind}"))
    cases += [(f"not ({condition})", reason) for condition, reason in contract.checks]
    branches = " ".join(f"when {condition} then {_literal(reason)}" for condition, reason in cases)
    return F.expr(f"case {branches} end")
