"""A lake is a directory. What is where in it, and how it changes without ever being half-changed.

    lake.json                         which version of this layout it is, and its table format
    payloads.toml                     the user's file that says which payloads become columns
    bronze/<table>/batch=<n>/day=…    one directory per micro-batch, never changed again
    checkpoint/<table>/               Spark's: how far the stream has come
    tables -> generations/<n>         silver and gold, all made from the same bronze
    generations/<n>/<layer>/<table>/
    experiments/                      a table of simulations; `hansa.experiments` keeps it
    staging/<writer>/                 what is being written; of no use to anybody else

A batch and a generation are written in `staging` and get their name by one rename; `tables` is a
link that is replaced by one rename. So every other program, and Spark, sees whole tables that
agree with one another, and what fails on the way changes nothing. All files are Parquet, in every
format.
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
"""The format that needs nothing else; `formats` knows the others."""
GENERATIONS_KEPT = 2
"""The one in use, and the one before it for those who are still reading that."""

CREATE_HINT = "`hansa pipeline run --lake {} SOURCE` makes one"

BRONZE = ("messages", "events")
EXPERIMENTS = "experiments"
"""What `hansa experiment run` keeps in a lake, which may come before all else."""


@dataclass(frozen=True, slots=True)
class TableEntry:
    """What a generation says of one of its tables."""

    name: str
    layer: str
    grain: str
    rows: int
    columns: str = ""
    """Their names and types in Spark's words; earlier versions did not say."""


class Lake:
    """A directory that holds tables."""

    def __init__(self, path: Path) -> None:
        """Open one that is there; raise UsageError if it is none, or of another version."""
        self.path = path.absolute()
        # A killed pipeline's JVM may write on for a moment: never where another one writes.
        self._staging = self.path / "staging" / secrets.token_hex(8)
        try:
            said = json.loads((path / "lake.json").read_text(encoding="utf-8"))
            version, self.format = said["version"], said.get("format", PARQUET)
        except FileNotFoundError:
            full = path.is_dir() and any(path.iterdir())
            how = "name a new directory for one" if full else CREATE_HINT.format(path)
            raise UsageError(f"{path} is no lake; {how}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path / 'lake.json'} cannot be read: {error}") from None
        if version != VERSION:
            raise UsageError(
                f"{path} is a lake of version {version}, this Hansa has version {VERSION}: use the"
                " Hansa that made it, or a new directory"
            )

    @classmethod
    def open_or_create(cls, path: Path, table_format: str | None = None) -> "Lake":
        """Open a lake; make one if there is nothing yet. Its format is for ever."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not set(os.listdir(path)) - {EXPERIMENTS}:
                said = {"version": VERSION, "format": table_format or PARQUET}
                _write(path / "lake.json", json.dumps(said))
        except OSError as error:
            raise UsageError(f"cannot make a lake at {path}: {error.strerror}") from error
        lake = cls(path)
        if table_format not in (None, lake.format):
            raise UsageError(
                f"{path} is a lake of format {lake.format}, not {table_format}: use it as it is, or"
                " a new directory"
            )
        return lake

    @contextmanager
    def write_lock(self) -> Iterator[None]:
        """Be the only one who writes; clear away what a killed writer left."""
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
        """Return where Spark keeps how far a stream has come."""
        return self.path / "checkpoint" / table

    def batch_path(self, table: str, number: int) -> Path:
        """Return where a micro-batch is, or will be."""
        return self.path / "bronze" / table / f"batch={number:08d}"

    def batch_count(self, table: str) -> int:
        """Return how many micro-batches there are."""
        return len(list((self.path / "bronze" / table).glob("batch=*")))

    def has_rows(self, table: str) -> bool:
        """Return whether a batch of a table ever had any: a stream begins with one that has not."""
        place = self.path / "bronze" / table
        return next(place.glob("batch=*/day=*/*.parquet"), None) is not None

    def _check_checkpoint(self, table: str) -> None:
        """Bronze and checkpoint belong together: with one of them restored, rows would be lost."""
        commits = self.checkpoint(table) / "commits"
        names = os.listdir(commits) if commits.is_dir() else []
        last = max((int(name) for name in names if name.isdecimal()), default=None)
        have = self.batch_count(table)
        if (last is None and have > 1) or (
            last is not None and not self.batch_path(table, last).is_dir()
        ):
            raise UsageError(
                f"{self.path}: bronze/{table} and checkpoint/{table} are not of the same time;"
                " restore both together, or begin a new lake"
            )

    # ------------------------------------------------------------ silver and gold

    def staging(self, name: str) -> Path:
        """Return an empty place to write to."""
        place = self._staging / name
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def publish(self, staged: Path, kept: list[TableEntry]) -> None:
        """Make a written generation the one that is read."""
        described = [asdict(table) for table in kept]
        _write(staged / "tables.json", json.dumps({"tables": described}, indent=1))
        generations = self.path / "generations"
        generations.mkdir(exist_ok=True)
        numbers = sorted(int(name) for name in os.listdir(generations) if name.isdecimal())
        place = generations / f"{(numbers[-1] + 1 if numbers else 0):08d}"
        staged.rename(place)
        link = self.staging("tables")
        link.symlink_to(place.relative_to(self.path))
        link.replace(self.path / "tables")
        for number in numbers[: -(GENERATIONS_KEPT - 1)]:
            shutil.rmtree(generations / f"{number:08d}", ignore_errors=True)

    @property
    def payloads(self) -> Path | None:
        """The file that was last given, if there was one: whoever brings the lake up to date makes
        the same tables."""
        place = self.path / "payloads.toml"
        return place if place.exists() else None

    def save_payloads(self, given: Path) -> None:
        """Remember a file that was found good."""
        _write(self.path / "payloads.toml", given.read_text(encoding="utf-8").rstrip("\n"))

    def tables(self) -> list[TableEntry]:
        """Return what can be read, in the order in which it was made."""
        try:
            text = (self.path / "tables" / "tables.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            raise UsageError(
                f"{self.path} has no tables yet; `hansa pipeline run` makes them"
            ) from None
        known = {field.name for field in fields(TableEntry)}  # a newer Hansa may say more
        try:
            return [
                TableEntry(**{name: said for name, said in described.items() if name in known})
                for described in json.loads(text)["tables"]
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(
                f"{self.path / 'tables' / 'tables.json'} is damaged; `hansa pipeline run` makes the"
                " tables anew"
            ) from None

    @property
    def experiments(self) -> Path | None:
        """Where simulations of sweeps are, if there are any."""
        place = self.path / EXPERIMENTS
        return place if place.is_dir() else None

    @property
    def is_only_experiments(self) -> bool:
        """Whether they are all that there is to read."""
        return self.experiments is not None and not (self.path / "tables").exists()

    def table_path(self, kept: TableEntry) -> Path:
        """Return where the files of a table are now."""
        return (self.path / "tables").resolve() / kept.layer / kept.name


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text + "\n", encoding="utf-8")
    new.replace(path)
