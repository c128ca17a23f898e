"""Lakes as Delta or Iceberg tables: the same Parquet files, and a log beside them.

Spark writes the files as for a plain lake, and they are the truth; here they are entered into the
log of a table format, by Python packages that need no Java. What a kill left out is entered by the
next run, what is entered already is not entered again: the number of the last batch is in the log.

    delta      `_delta_log` in every table's directory, bronze with all batches
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
"""Who says in a Delta log how far it got."""
ICEBERG_BATCH_PROPERTY = "hansa.batch"
"""The same in Iceberg."""


class TableLog(Protocol):
    """What enters files into the log of a format."""

    def last_batch(self, table: str, root: Path) -> int:
        """Return the last batch of a bronze table that is in the log, -1 if there is none."""

    def append(self, table: str, root: Path, batch: int, files: list[Path]) -> None:
        """Add a batch of a bronze table."""

    def prepare_table(self, root: Path) -> None:
        """Prepare the directory of a silver or gold table before it gets its place."""

    def replace_table(self, kept: TableEntry, root: Path) -> None:
        """Make the files of a directory, now in its place, all that the table has."""


def require_package(name: str) -> None:
    """Raise UsageError if what a format needs is not installed."""
    package = PACKAGES.get(name)
    if package and importlib.util.find_spec(package) is None:
        raise UsageError(
            f"a lake of format {name} needs the package {package}: {install_extra(name)}"
        )


def open_table_log(lake: Lake) -> TableLog | None:
    """Return what keeps the log of a lake, None for plain Parquet."""
    require_package(lake.format)
    match lake.format:
        case "delta":
            return DeltaLog()
        case "iceberg":
            return IcebergLog(lake)
    return None


def append_batches(lake: Lake, log: TableLog) -> None:
    """Enter all of bronze that is not in the log yet."""
    for table in BRONZE:
        root = lake.path / "bronze" / table
        last = log.last_batch(table, root)
        for place in sorted(root.glob("batch=*")):
            batch = int(place.name.partition("=")[2])
            files = files_under(place) if batch > last else []
            if files:
                log.append(table, root, batch, files)


def files_under(place: Path) -> list[Path]:
    """Return a table's files, in order."""
    return sorted(place.rglob("*.parquet"))


def _footer(path: Path) -> Any:
    return importlib.import_module("pyarrow.parquet").read_metadata(path)


# ---------------------------------------------------------------- Delta


class DeltaLog:
    """A log in the directory of each table."""

    def last_batch(self, table: str, root: Path) -> int:
        """The number of the batch is the version of our transaction."""
        made = self._open_table(root)
        known = made.transaction_version(DELTA_APP_ID) if made else None
        return -1 if known is None else int(known)

    def append(self, table: str, root: Path, batch: int, files: list[Path]) -> None:
        """One transaction is one batch."""
        self._commit(self._open_table(root), root, files, batch)

    def prepare_table(self, root: Path) -> None:
        """A generation is new: so is its log."""
        files = files_under(root)
        if files:
            self._commit(None, root, files, 0)

    def replace_table(self, kept: TableEntry, root: Path) -> None:
        """The log came with the directory."""

    def _open_table(self, root: Path) -> Any:
        tables = importlib.import_module("deltalake").DeltaTable
        return tables(str(root)) if tables.is_deltatable(str(root)) else None

    def _commit(self, made: Any, root: Path, files: list[Path], version: int) -> None:
        """Enter files into a log, which begins with them if there is none."""
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
        ours = delta.CommitProperties(app_transactions=[delta.Transaction(DELTA_APP_ID, version)])
        if made:
            made.create_write_transaction(
                actions, "append", schema, partitions, commit_properties=ours
            )
        else:
            transaction.create_table_with_add_actions(
                str(root), schema, actions, partition_by=partitions, commit_properties=ours
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
    """Return what the directories of a file say of its rows."""
    values = dict(part.split("=", 1) for part in path.relative_to(root).parts[:-1])
    if "batch" in values:
        values["batch"] = str(int(values["batch"]))
    return values


# ---------------------------------------------------------------- Iceberg


class IcebergLog:
    """Tables of a catalog in the lake. Its entries say where files are from the root on."""

    def __init__(self, lake: Lake) -> None:
        """Open the catalog, or make it."""
        logging.getLogger("pyiceberg").setLevel(logging.ERROR)  # empty files have no statistics
        sql = importlib.import_module("pyiceberg.catalog.sql")
        place = lake.path / "iceberg"
        place.mkdir(exist_ok=True)
        self._catalog = sql.SqlCatalog(
            "hansa", uri=f"sqlite:///{lake.path / 'iceberg.db'}", warehouse=place.as_uri()
        )
        for layer in ("bronze", "silver", "gold"):
            self._catalog.create_namespace_if_not_exists(layer)

    def last_batch(self, table: str, root: Path) -> int:
        """The number of the batch is a property of the snapshot that brought it."""
        name = f"bronze.{table}"
        made = self._catalog.load_table(name) if self._catalog.table_exists(name) else None
        snapshot = made.current_snapshot() if made else None
        return int(snapshot.summary[ICEBERG_BATCH_PROPERTY]) if snapshot else -1

    def append(self, table: str, root: Path, batch: int, files: list[Path]) -> None:
        """One snapshot is one batch."""
        made = self._table(f"bronze.{table}", files[0])
        made.add_files(_urls(files), {ICEBERG_BATCH_PROPERTY: str(batch)})

    def prepare_table(self, root: Path) -> None:
        """It would have to know where the files will be."""

    def replace_table(self, kept: TableEntry, root: Path) -> None:
        """In one transaction: who reads sees the one generation or the other."""
        always = importlib.import_module("pyiceberg.expressions").AlwaysTrue()
        files = files_under(root)
        if not files:  # a table with partitions, and no rows
            return
        made = self._table(f"{kept.layer}.{kept.name}", files[0])
        with warnings.catch_warnings(), made.transaction() as change:
            warnings.simplefilter("ignore", UserWarning)  # that there was nothing to delete
            change.delete(always)
            change.add_files(_urls(files))

    def _table(self, name: str, example: Path) -> Any:
        schema = _footer(example).schema.to_arrow_schema().remove_metadata()
        made = self._catalog.create_table_if_not_exists(name, schema)
        with made.update_schema() as change:  # a newer Hansa adds columns
            change.union_by_name(schema)
        return made


def _urls(files: Iterable[Path]) -> list[str]:
    """Not `as_uri`, which would write `=` in another way: Iceberg takes a path to the letter."""
    return [f"file://{path}" for path in files]
