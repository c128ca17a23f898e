"""Lakes as Delta or Iceberg tables: the same Parquet files with a transaction log.

Spark writes the files as for a plain lake; they are authoritative. This module adds them to the log
of a table format, with Python packages that need no Java. The log has the number of the last batch,
so the next run adds what a killed one missed, and adds nothing twice.

    delta      `_delta_log` in the directory of every table
    iceberg    a catalog in `iceberg.db`, with the namespaces bronze, silver and gold
"""

import importlib
import importlib.util
import json
import logging
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from hansa.errors import UsageError, install_extra
from hansa.pipeline.lake import BRONZE, Lake, TableEntry

Format = Literal["parquet", "delta", "iceberg"]
FORMATS: tuple[Format, ...] = get_args(Format)
PACKAGES = {"delta": "deltalake", "iceberg": "pyiceberg"}
DELTA_APP_ID = "hansa"
"""Application id of the transactions in a Delta log; their version is the last batch."""
ICEBERG_BATCH_PROPERTY = "hansa.batch"
"""Property of an Iceberg snapshot with its batch."""


class TableLog(Protocol):
    """The transaction log of a table format."""

    def last_batch(self, table: str, root: Path) -> int:
        """Return the last logged batch of a bronze table, -1 if there is none."""

    def append(self, table: str, root: Path, batch: int, files: list[Path]) -> None:
        """Add a batch to a bronze table."""

    def prepare_table(self, root: Path) -> None:
        """Prepare the directory of a silver or gold table before it is published."""

    def replace_table(self, entry: TableEntry, root: Path) -> None:
        """Replace the files of a table by those of its published directory."""


def require_package(name: str) -> None:
    """Raise UsageError if the package of a format is not installed."""
    package = PACKAGES.get(name)
    if package and importlib.util.find_spec(package) is None:
        raise UsageError(
            f"a lake of format {name} needs the package {package}: {install_extra(name)}"
        )


def open_table_log(lake: Lake) -> TableLog | None:
    """Return the transaction log of a lake, None for plain Parquet."""
    require_package(lake.format)
    match lake.format:
        case "delta":
            return DeltaLog()
        case "iceberg":
            return IcebergLog(lake)
    return None


def append_batches(lake: Lake, log: TableLog) -> None:
    """Add all bronze batches that are not in the log yet."""
    for table in BRONZE:
        root = lake.path / "bronze" / table
        last = log.last_batch(table, root)
        for directory in sorted(root.glob("batch=*")):
            batch = int(directory.name.partition("=")[2])
            files = files_under(directory) if batch > last else []
            if files:
                log.append(table, root, batch, files)


def files_under(directory: Path) -> list[Path]:
    """Return the files of a table, sorted."""
    return sorted(directory.rglob("*.parquet"))


def _footer(path: Path) -> Any:
    return importlib.import_module("pyarrow.parquet").read_metadata(path)


# ---------------------------------------------------------------- Delta


class DeltaLog:
    """A Delta log in the directory of each table."""

    def last_batch(self, table: str, root: Path) -> int:
        delta_table = self._open_table(root)
        known = delta_table.transaction_version(DELTA_APP_ID) if delta_table else None
        return -1 if known is None else int(known)

    def append(self, table: str, root: Path, batch: int, files: list[Path]) -> None:
        self._commit(self._open_table(root), root, files, batch)

    def prepare_table(self, root: Path) -> None:
        files = files_under(root)
        if files:
            self._commit(None, root, files, 0)

    def replace_table(self, entry: TableEntry, root: Path) -> None:
        """Do nothing: the log was published with the directory."""

    def _open_table(self, root: Path) -> Any:
        tables = importlib.import_module("deltalake").DeltaTable
        return tables(str(root)) if tables.is_deltatable(str(root)) else None

    def _commit(self, delta_table: Any, root: Path, files: list[Path], version: int) -> None:
        """Add files to a log; create it if there is none."""
        delta = importlib.import_module("deltalake")
        transaction = importlib.import_module("deltalake.transaction")
        pa = importlib.import_module("pyarrow")
        types = {"batch": pa.int32(), "day": pa.date32()}
        partitions = [*_partition(root, files[0])]
        arrow = _footer(files[0]).schema.to_arrow_schema().remove_metadata()
        for name in partitions:
            arrow = arrow.append(pa.field(name, types[name]))
        schema = delta.Schema.from_arrow(arrow)
        actions = [self._action(transaction, root, path) for path in files]
        properties = delta.CommitProperties(
            app_transactions=[delta.Transaction(DELTA_APP_ID, version)]
        )
        if delta_table:
            delta_table.create_write_transaction(
                actions, "append", schema, partitions, commit_properties=properties
            )
        else:
            transaction.create_table_with_add_actions(
                str(root), schema, actions, partition_by=partitions, commit_properties=properties
            )

    def _action(self, transaction: Any, root: Path, path: Path) -> Any:
        found = path.stat()
        return transaction.AddAction(
            path=str(path.relative_to(root)),
            size=found.st_size,
            partition_values=_partition(root, path),
            modification_time=int(found.st_mtime * 1_000),
            data_change=True,
            stats=json.dumps({"numRecords": _footer(path).num_rows}),
        )


def _partition(root: Path, path: Path) -> dict[str, str]:
    """Return the partition values of a file."""
    values = dict(part.split("=", 1) for part in path.relative_to(root).parts[:-1])
    if "batch" in values:
        values["batch"] = str(int(values["batch"]))
    return values


# ---------------------------------------------------------------- Iceberg


class IcebergLog:
    """Tables of an Iceberg catalog in the lake; it has absolute paths of files."""

    def __init__(self, lake: Lake) -> None:
        logging.getLogger("pyiceberg").setLevel(logging.ERROR)  # empty files have no statistics
        sql = importlib.import_module("pyiceberg.catalog.sql")
        directory = lake.path / "iceberg"
        directory.mkdir(exist_ok=True)
        self._catalog = sql.SqlCatalog(
            "hansa", uri=f"sqlite:///{lake.path / 'iceberg.db'}", warehouse=directory.as_uri()
        )
        for layer in ("bronze", "silver", "gold"):
            self._catalog.create_namespace_if_not_exists(layer)

    def last_batch(self, table: str, root: Path) -> int:
        name = f"bronze.{table}"
        iceberg_table = self._catalog.load_table(name) if self._catalog.table_exists(name) else None
        snapshot = iceberg_table.current_snapshot() if iceberg_table else None
        return int(snapshot.summary[ICEBERG_BATCH_PROPERTY]) if snapshot else -1

    def append(self, table: str, root: Path, batch: int, files: list[Path]) -> None:
        iceberg_table = self._table(f"bronze.{table}", files[0])
        iceberg_table.add_files(_urls(files), {ICEBERG_BATCH_PROPERTY: str(batch)})

    def prepare_table(self, root: Path) -> None:
        """Do nothing: the catalog needs the final paths."""

    def replace_table(self, entry: TableEntry, root: Path) -> None:
        """Replace the files in one transaction."""
        always = importlib.import_module("pyiceberg.expressions").AlwaysTrue()
        files = files_under(root)
        if not files:  # a partitioned table without rows
            return
        table = self._table(f"{entry.layer}.{entry.name}", files[0])
        with warnings.catch_warnings(), table.transaction() as change:
            warnings.simplefilter("ignore", UserWarning)  # nothing to delete
            change.delete(always)
            change.add_files(_urls(files))

    def _table(self, name: str, example: Path) -> Any:
        schema = _footer(example).schema.to_arrow_schema().remove_metadata()
        table = self._catalog.create_table_if_not_exists(name, schema)
        with table.update_schema() as change:  # a newer version adds columns
            change.union_by_name(schema)
        return table


def _urls(files: Iterable[Path]) -> list[str]:
    # `as_uri` would escape `=`, and Iceberg does not decode paths.
    return [f"file://{path}" for path in files]
