"""Payload contracts: JSON Schema, reasons, and changes of a contract."""

import json
from pathlib import Path

import pytest

from hansa.errors import UsageError

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

from hansa.pipeline.contracts import (
    contracts_from_text,
    contracts_to_text,
    error_rows,
    read_contracts,
    typed_rows,
)

SCHEMA = {
    "type": "object",
    "required": ["rpm"],
    "properties": {
        "rpm": {"type": "integer", "minimum": 0, "maximum": 3000},
        "state": {"type": "string", "enum": ["on", "off", "it's"]},
    },
}
CONTRACT = '[pumps]\nfilter = "plant/+/pump"\nschema = "pump.schema.json"\n'


def write(directory: Path, schema: object) -> Path:
    (directory / "pump.schema.json").write_text(json.dumps(schema))
    (directory / "contracts.toml").write_text(CONTRACT)
    return directory / "contracts.toml"


def test_message_is_typed_or_refused_with_a_reason(spark, tmp_path):
    (contract,) = read_contracts(write(tmp_path, SCHEMA), ())
    payloads = {
        '{"rpm": 1450, "state": "it\'s", "more": 1}': None,
        '{"rpm": 0}': None,
        '{"state": "on"}': "field 'rpm' is missing",
        '{"rpm": null}': "field 'rpm' is missing",
        '{"rpm": "fast"}': "field 'rpm' is not bigint",
        '{"rpm": 1.5}': "field 'rpm' is not bigint",
        '{"rpm": 3001}': "field 'rpm' is above 3000",
        '{"rpm": -1}': "field 'rpm' is below 0",
        '{"rpm": 1, "state": "broken"}': "field 'state' has a value that is not allowed",
        '{"rpm": 1, "state": 7}': "field 'state' is not string",
        "[1]": "the payload is not a JSON object",
        '{"rpm": 1': "the payload is not a JSON object",
    }
    rows = [("plant/1/pump", text, n) for n, text in enumerate(payloads)]
    rows.append(("plant/1/fan", "{}", 99))
    messages = spark.createDataFrame(rows, "topic string, payload_text string, sequence long")
    messages = messages.selectExpr(
        "*", "binary(payload_text) payload", "'a' origin_id", "1L epoch", "true guaranteed",
        "timestamp_seconds(0) hour", "timestamp_seconds(0) published_at",
    )  # fmt: skip
    texts = list(payloads)
    found = {row.sequence: row.reason for row in error_rows(messages, [contract]).collect()}
    assert {texts[n]: reason for n, reason in found.items()} == {
        text: reason for text, reason in payloads.items() if reason
    }
    typed = typed_rows(messages, contract).orderBy("sequence").collect()
    assert [(row.rpm, row.state) for row in typed] == [(1450, "it's"), (0, None)]


def test_contracts_are_stored_as_they_were_read(spark, tmp_path):
    contracts = read_contracts(write(tmp_path, SCHEMA), ())
    assert contracts_from_text(contracts_to_text(contracts)) == contracts


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ([], "must be a JSON Schema of an object with 'properties'"),
        ({"properties": {"a": {"type": "date"}}}, "'a' needs a type: number, integer"),
        ({"properties": {"a": {"pattern": "x"}}}, "keyword 'pattern' is not supported here"),
        ({"properties": {"a": 1}}, "1 is not a schema"),
    ],
)
def test_mistake_in_a_json_schema_is_one_sentence(spark, tmp_path, schema, message):
    with pytest.raises(UsageError, match=message.replace("(", r"\(")) as error:
        read_contracts(write(tmp_path, schema), ())
    assert "pump.schema.json" in str(error.value)
