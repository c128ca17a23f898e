"""A lake: Delta tables in one place, on any storage that Spark can write.

    bronze/<table>, silver/<table>, gold/<table>    Delta tables
    experiments                   Delta table of simulations, written by `hansa.experiments`
    _hansa/lake.json              version of this layout
    _hansa/contracts.json         the user's payload contracts
    _hansa/retention.json         for how many days the user keeps tables
    _hansa/removed.json           which rows retention has removed
    _hansa/progress.json          versions of the tables from which all later ones are made
    _hansa/checkpoints/<stream>   Spark's checkpoints

Every change of a table is one commit of Delta. Nothing here depends on renaming, linking or
locking.
"""

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from hansa.errors import UsageError
from hansa.pipeline import rows
from hansa.pipeline.columns import describe_columns
from hansa.pipeline.errors import SPARK_EXCEPTIONS
from hansa.pipeline.location import MARKER, absolute_uri, not_a_lake
from hansa.pipeline.storage import Storage
from hansa.pipeline.tables import LakeTable

VERSION = 3
UNCHANGED_SINCE = "DELTA_TIMESTAMP_GREATER_THAN_COMMIT"
"""Error of Delta if a table was not changed after the time of a query."""
CONTRACTS = "_hansa/contracts.json"
PROGRESS = "_hansa/progress.json"
EXPERIMENTS = "experiments"
SMALL_BYTES = 16 << 20
"""Size of a small table: reading all of it costs less than finding out what to read."""
BRONZE = ("messages", "events")

STATISTICS = (
    *("run", "hour", "time", "published_at", "origin_id", "epoch", "sequence", "node_id"),
    *("incarnation", "kind", "topic", "recorded_at", "since", "until"),
)
"""Columns whose smallest and largest values Delta stores per file, to skip files. Statistics of all
columns would cost time at every write."""
BRONZE_STATISTICS = ("time", "kind")
"""The same for bronze, which is read as a whole and in the order of its commits."""
CLUSTERING = ("hour", "time", "topic")
"""Columns by which OPTIMIZE arranges rows, if they have statistics."""


@dataclass(frozen=True, slots=True)
class TablePlace:
    """Where a table is, and its text for people."""

    name: str
    layer: str
    grain: str = ""

    @property
    def path(self) -> str:
        return f"{self.layer}/{self.name}" if self.layer else self.name

    @property
    def view(self) -> str:
        """Name of the table in SQL."""
        return f"bronze_{self.name}" if self.layer == "bronze" else self.name


BRONZE_PLACES = {
    "messages": TablePlace("messages", "bronze", "One row per recorded publication, as recorded."),
    "events": TablePlace("events", "bronze", "One row per telemetry record, as recorded."),
}


class Lake:
    """An existing lake."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        """Open a lake; raise UsageError if there is none, or of another version."""
        self.spark = spark
        self.uri = absolute_uri(location)
        self.storage = Storage(spark, self.uri)
        text = self.storage.read(MARKER)
        if text is None:
            raise not_a_lake(location, is_in_use=bool(self.storage.names()))
        try:
            version = json.loads(text)["version"]
        except (ValueError, KeyError, TypeError):
            raise UsageError(f"{self.uri}/{MARKER} is corrupt") from None
        if version != VERSION:
            raise UsageError(
                f"{location} is a lake of version {version}, this Hansa has version {VERSION}: use"
                " the Hansa that made it, or another location"
            )

    @classmethod
    def open_or_create(cls, spark: SparkSession, location: str) -> "Lake":
        """Open a lake, or create an empty one where nothing else is."""
        storage = Storage(spark, absolute_uri(location))
        if not storage.exists(MARKER) and not storage.names():
            storage.write(MARKER, json.dumps({"version": VERSION}))
        return cls(spark, location)

    def location(self, place: TablePlace) -> str:
        return f"{self.uri}/{place.path}"

    def checkpoint(self, stream: str) -> str:
        return f"_hansa/checkpoints/{stream}"

    # ------------------------------------------------------------ tables

    def has(self, place: TablePlace) -> bool:
        """Return whether a table was created. A killed process may leave the directory of its log
        without the first commit."""
        return self.version(place) >= 0

    def read(self, place: TablePlace, as_of: str | None = None) -> DataFrame:
        """Return a table; with `as_of`, a timestamp, as it was then."""
        location = self.location(place)
        if as_of is not None:
            reader = self.spark.read.format("delta").option("timestampAsOf", as_of)
            try:
                return reader.load(location)
            except SPARK_EXCEPTIONS as error:
                if UNCHANGED_SINCE not in str(error):
                    raise
        return self.spark.read.format("delta").load(location)

    def version(self, place: TablePlace) -> int:
        """Return the version of a table: 0 if it was created and never changed, -1 if there is
        none."""
        names = self.storage.names(f"{place.path}/_delta_log")
        found = [int(name[:20]) for name in names if name.endswith(".json") and name[0].isdigit()]
        return max(found, default=-1)

    def is_small(self, place: TablePlace) -> bool:
        """Return whether a table is known to be small enough to be kept in memory."""
        checksum = f"{place.path}/_delta_log/{self.version(place):020d}.crc"
        text = self.storage.read(checksum)
        return text is not None and json.loads(text)["tableSizeBytes"] <= SMALL_BYTES

    def create(
        self,
        place: TablePlace,
        schema: StructType,
        table: LakeTable | None = None,
        has_changes: bool = False,
    ) -> None:
        """Create an empty table: write the first commit of its log.

        Delta's CREATE TABLE would do the same with a Spark job per table, and one more commit per
        constraint. That costs more than the first rows of a small lake.
        """
        actions = list(create_actions(place, schema, table, has_changes))
        text = "".join(f"{json.dumps(action)}\n" for action in actions)
        commit = f"{place.path}/_delta_log/{0:020d}"
        self.storage.write(f"{commit}.json", text, replace=False)
        # With it, Delta needs no Spark jobs to know the table before its first write.
        self.storage.write(f"{commit}.crc", json.dumps(version_checksum(actions)))

    # ------------------------------------------------------------ progress

    def progress(self) -> dict[str, int]:
        """Return the versions from which the present gold tables are made; none if unknown."""
        try:
            found = json.loads(self.storage.read(PROGRESS) or "{}")
            return {str(name): int(version) for name, version in found.items()}
        except (ValueError, AttributeError, TypeError):
            return {}

    def save_progress(self, versions: Mapping[str, int]) -> None:
        self.storage.write(PROGRESS, json.dumps(versions, sort_keys=True))


def bronze_schema(table: str) -> StructType:
    return describe_columns(StructType.fromDDL(rows.ddl(table)), ())


def create_actions(
    place: TablePlace, schema: StructType, table: LakeTable | None, has_changes: bool
) -> Iterable[dict[str, Any]]:
    """Return the actions of the commit that creates a table (Delta's protocol, section Actions)."""
    names = schema.names
    partitions = list(table.partitions) if table else []
    chosen = BRONZE_STATISTICS if place.layer == "bronze" else STATISTICS
    statistics = [name for name in chosen if name in names and name not in partitions]
    clustering = [] if partitions else [name for name in CLUSTERING if name in statistics]
    features = ["appendOnly", "invariants", "checkConstraints", "changeDataFeed"]
    settings = {
        "delta.dataSkippingStatsColumns": ",".join(statistics),
    }
    if has_changes:
        settings["delta.enableChangeDataFeed"] = "true"
    for number, rule in enumerate(table.rules if table else (), 1):
        # A rule that is neither true nor false, because a column is empty, holds.
        settings[f"delta.constraints.rule{number}"] = f"({rule}) IS NOT FALSE"
    yield {
        "protocol": {
            "minReaderVersion": 1,
            "minWriterVersion": 7,
            "writerFeatures": [
                *features,
                *(["domainMetadata", "clustering"] if clustering else []),
            ],
        }
    }
    yield {
        "metaData": {
            "id": str(uuid.uuid4()),
            "name": place.view,
            "description": place.grain,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema.json(),
            "partitionColumns": partitions,
            "configuration": {name: value for name, value in settings.items() if value},
            "createdTime": 0,
        }
    }
    if clustering:
        columns = {"clusteringColumns": [[name] for name in clustering]}
        yield {
            "domainMetadata": {
                "domain": "delta.clustering",
                "configuration": json.dumps({**columns, "domainName": "delta.clustering"}),
                "removed": False,
            }
        }


def version_checksum(actions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state of an empty table (Delta's protocol, section Version Checksum File)."""
    found = {kind: content for action in actions for kind, content in action.items()}
    return {
        "tableSizeBytes": 0,
        "numFiles": 0,
        "numMetadata": 1,
        "numProtocol": 1,
        "setTransactions": [],
        "domainMetadata": [found["domainMetadata"]] if "domainMetadata" in found else [],
        "metadata": found["metaData"],
        "protocol": found["protocol"],
    }
