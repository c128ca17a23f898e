"""The directory layout of a lake, and its atomic changes.

    lake.json                         version of this layout, and table format
    payloads.toml                     the user's declaration of tables for JSON payloads
    bronze/<table>/batch=<n>/day=…    one directory per micro-batch, immutable
    checkpoint/<table>/               Spark's checkpoint of the stream
    tables -> generations/<n>         silver and gold, all built from the same bronze
    generations/<n>/<layer>/<table>/
    experiments/                      a table of simulations, written by `hansa.experiments`
    staging/<writer>/                 unfinished data

Batches and generations are written in `staging` and published by one rename; `tables` is a symbolic
link that is replaced by one rename. Readers therefore always see complete, consistent tables, and a
failure changes nothing. All files are Parquet, in every table format.
"""

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from hansa.errors import UsageError

VERSION = 2
PARQUET = "parquet"
"""The default format; `formats` has the others."""
GENERATIONS_KEPT = 2
"""The current one, and the previous one for readers that still use it."""

CREATE_HINT = "`hansa pipeline run --lake {} SOURCE` creates one"

BRONZE = ("messages", "events")
EXPERIMENTS = "experiments"
"""Directory that `hansa experiment run` writes, perhaps before the lake exists."""


@dataclass(frozen=True, slots=True)
class TableEntry:
    """Description of a table in its generation."""

    name: str
    layer: str
    grain: str
    rows: int
    columns: str = ""
    """Names and types as Spark DDL; empty in old lakes."""


class Lake:
    """An open lake."""

    def __init__(self, path: Path) -> None:
        """Open an existing lake; raise UsageError if it is not one, or of another version."""
        self.path = path.absolute()
        # The JVM of a killed pipeline may still write for a moment: use a directory of our own.
        self._staging = self.path / "staging" / secrets.token_hex(8)
        try:
            description = json.loads((path / "lake.json").read_text(encoding="utf-8"))
            version, self.format = description["version"], description.get("format", PARQUET)
        except FileNotFoundError:
            is_in_use = path.is_dir() and any(path.iterdir())
            hint = "name a new directory for one" if is_in_use else CREATE_HINT.format(path)
            raise UsageError(f"{path} is not a lake; {hint}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path / 'lake.json'} cannot be read: {error}") from None
        if version != VERSION:
            raise UsageError(
                f"{path} is a lake of version {version}, this Hansa has version {VERSION}: use the"
                " Hansa that made it, or a new directory"
            )

    @classmethod
    def open_or_create(cls, path: Path, table_format: str | None = None) -> "Lake":
        """Open a lake, or create it; its format cannot change later."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not set(os.listdir(path)) - {EXPERIMENTS}:
                description = {"version": VERSION, "format": table_format or PARQUET}
                _write(path / "lake.json", json.dumps(description))
        except OSError as error:
            raise UsageError(f"cannot create a lake at {path}: {error.strerror}") from error
        lake = cls(path)
        if table_format not in (None, lake.format):
            raise UsageError(
                f"{path} is a lake of format {lake.format}, not {table_format}: use it as it is, or"
                " a new directory"
            )
        return lake

    @contextmanager
    def write_lock(self) -> Iterator[None]:
        """Lock the lake against other writers, and remove the staging data of killed ones."""
        with (self.path / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"another pipeline is writing to {self.path}; wait for it, or stop it"
                ) from None
            shutil.rmtree(self.path / "staging", ignore_errors=True)
            for table in BRONZE:
                (self.path / "bronze" / table).mkdir(parents=True, exist_ok=True)
                self._check_checkpoint(table)
            yield

    # ------------------------------------------------------------ bronze

    def checkpoint(self, table: str) -> Path:
        """Return the directory of Spark's checkpoint."""
        return self.path / "checkpoint" / table

    def batch_path(self, table: str, number: int) -> Path:
        """Return the directory of a micro-batch."""
        return self.path / "bronze" / table / f"batch={number:08d}"

    def batch_count(self, table: str) -> int:
        """Return the number of micro-batches."""
        return len(list((self.path / "bronze" / table).glob("batch=*")))

    def has_rows(self, table: str) -> bool:
        """Return whether any batch of a table has rows: a stream begins with an empty batch."""
        path = self.path / "bronze" / table
        return next(path.glob("batch=*/day=*/*.parquet"), None) is not None

    def _check_checkpoint(self, table: str) -> None:
        """Raise UsageError if bronze and checkpoint do not match: restoring one loses rows."""
        commits = self.checkpoint(table) / "commits"
        names = os.listdir(commits) if commits.is_dir() else []
        last = max((int(name) for name in names if name.isdecimal()), default=None)
        count = self.batch_count(table)
        if (last is None and count > 1) or (
            last is not None and not self.batch_path(table, last).is_dir()
        ):
            raise UsageError(
                f"{self.path}: bronze/{table} and checkpoint/{table} do not match;"
                " restore both together, or create a new lake"
            )

    # ------------------------------------------------------------ silver and gold

    def staging(self, name: str) -> Path:
        """Return a new staging path; its parent exists."""
        path = self._staging / name
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def publish(self, staged: Path, entries: list[TableEntry]) -> None:
        """Make a staged generation the current one."""
        described = [asdict(entry) for entry in entries]
        _write(staged / "tables.json", json.dumps({"tables": described}, indent=1))
        generations = self.path / "generations"
        generations.mkdir(exist_ok=True)
        numbers = sorted(int(name) for name in os.listdir(generations) if name.isdecimal())
        path = generations / f"{(numbers[-1] + 1 if numbers else 0):08d}"
        staged.rename(path)
        link = self.staging("tables")
        link.symlink_to(path.relative_to(self.path))
        link.replace(self.path / "tables")
        for number in numbers[: -(GENERATIONS_KEPT - 1)]:
            shutil.rmtree(generations / f"{number:08d}", ignore_errors=True)

    @property
    def payloads(self) -> Path | None:
        """The last given declaration of payload tables, which later runs use again."""
        path = self.path / "payloads.toml"
        return path if path.exists() else None

    def save_payloads(self, given: Path) -> None:
        """Store a valid declaration of payload tables."""
        _write(self.path / "payloads.toml", given.read_text(encoding="utf-8").rstrip("\n"))

    def tables(self) -> list[TableEntry]:
        """Return the tables of the current generation, in the order in which they were built."""
        try:
            text = (self.path / "tables" / "tables.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            raise UsageError(
                f"{self.path} has no tables yet; `hansa pipeline run` builds them"
            ) from None
        known = {field.name for field in fields(TableEntry)}  # a newer version may add fields
        try:
            return [
                TableEntry(**{name: value for name, value in described.items() if name in known})
                for described in json.loads(text)["tables"]
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(
                f"{self.path / 'tables' / 'tables.json'} is corrupt; `hansa pipeline run` rebuilds"
                " the tables"
            ) from None

    @property
    def experiments(self) -> Path | None:
        """Directory of the simulations of sweeps, if there are any."""
        path = self.path / EXPERIMENTS
        return path if path.is_dir() else None

    @property
    def is_only_experiments(self) -> bool:
        """Whether the lake has simulations of sweeps and no tables."""
        return self.experiments is not None and not (self.path / "tables").exists()

    def table_path(self, entry: TableEntry) -> Path:
        """Return the directory of a table in the current generation."""
        return (self.path / "tables").resolve() / entry.layer / entry.name


def _write(path: Path, text: str) -> None:
    """Write a file atomically."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text + "\n", encoding="utf-8")
    new.replace(path)
