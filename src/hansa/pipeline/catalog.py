"""The tables of a lake: all that are declared, and how they are created."""

from pyspark.sql import DataFrame, SparkSession

from hansa.pipeline import rows
from hansa.pipeline.columns import describe_columns
from hansa.pipeline.contracts import PayloadContract, contracts_from_text
from hansa.pipeline.gold import GOLD
from hansa.pipeline.lake import (
    BRONZE_PLACES,
    CONTRACTS,
    EXPERIMENTS,
    Lake,
    TablePlace,
    bronze_schema,
)
from hansa.pipeline.silver import SILVER, prepare_events
from hansa.pipeline.tables import LakeTable

DECLARED: dict[str, LakeTable] = {table.name: table for table in (*SILVER.tables, *GOLD.tables)}
PLACES: dict[str, TablePlace] = {
    table.name: TablePlace(table.name, table.layer, table.grain) for table in DECLARED.values()
}
EXPERIMENTS_PLACE = TablePlace(EXPERIMENTS, "", "One row per simulation of a sweep.")

GOLD_SOURCES = tuple(dict.fromkeys(name for table in GOLD.tables for name in table.inputs))
"""Silver tables whose changes are followed by gold."""

RESERVED_NAMES = {
    *DECLARED,
    *(place.view for place in BRONZE_PLACES.values()),
    *("events", "experiments", "bronze_messages"),
}


def create_tables(lake: Lake) -> None:
    """Create the declared tables that the lake does not have yet."""
    missing = [name for name, place in PLACES.items() if not lake.has(place)]
    for bronze, place in BRONZE_PLACES.items():
        if not lake.has(place):
            lake.create(place, bronze_schema(bronze))
    if not missing:
        return
    frames = empty_tables(lake.spark)
    for name in missing:
        table = DECLARED[name]
        required = set(table.key) - set(table.nullable_key)
        schema = describe_columns(frames[name].schema, required)
        lake.create(PLACES[name], schema, table, has_changes=name in GOLD_SOURCES)


def empty_tables(spark: SparkSession) -> dict[str, DataFrame]:
    """Return all declared tables without rows; their schemas follow from the functions."""
    frames: dict[str, DataFrame] = {
        "bronze_messages": spark.createDataFrame([], rows.ddl(rows.MESSAGES)),
        "events": prepare_events(spark.createDataFrame([], rows.ddl(rows.EVENTS)), ()),
        **{name: spark.createDataFrame([], ddl) for name, ddl in STATE_COLUMNS.items()},
    }
    for table in DECLARED.values():
        frames[table.name] = table.build_from(frames)
    return frames


STATE_COLUMNS = {
    "runs": (
        "run string, simulated boolean, seed bigint, topology string, strategy string,"
        " started_at timestamp, ended_at timestamp"
    ),
    "incarnations": (
        "run string, node_id string, incarnation bigint, node_name string, records bigint,"
        " last_sequence bigint, started_at timestamp, first_at timestamp, last_at timestamp,"
        " stopped boolean, missing bigint"
    ),
    "peers": (
        "run string, node_id string, peer_id string, up_count bigint, down_count bigint,"
        " rtt_count bigint, rtt_ms double, report struct<incarnation bigint,"
        " record_sequence bigint, kind string, reason string>, unreachable_at timestamp"
    ),
}
"""Columns of the tables that are their own input."""


def stored_contracts(lake: Lake) -> list[PayloadContract]:
    """Return the payload contracts that the lake's tables are made with."""
    text = lake.storage.read(CONTRACTS)
    return contracts_from_text(text) if text else []


def contract_place(contract: PayloadContract) -> TablePlace:
    grain = f"One row per message that matches {contract.filter} and fulfils its contract."
    return TablePlace(contract.name, "silver", grain)


def places_of(lake: Lake) -> list[TablePlace]:
    """Return all tables of a lake, in the order in which data flows."""
    contracts = [contract_place(each) for each in stored_contracts(lake)]
    silver = [place for place in PLACES.values() if place.layer == "silver"]
    gold = [place for place in PLACES.values() if place.layer == "gold"]
    has_tables = lake.has(BRONZE_PLACES["events"])
    declared = [*BRONZE_PLACES.values(), *silver, *contracts, *gold] if has_tables else []
    return [*declared, *([EXPERIMENTS_PLACE] if lake.has(EXPERIMENTS_PLACE) else [])]
