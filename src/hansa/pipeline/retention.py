"""Deletes the old rows of tables that have a retention.

    _hansa/retention.json     days by table, as the user chose them
    _hansa/removed.json       what was removed: the first hour by table that is still complete

Retention is in whole days of UTC, so that the first run of a day deletes, and the others cost
nothing. Hours of gold whose sources were removed are never computed again: they stay as they are.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from hansa.errors import UsageError
from hansa.pipeline.bronze import ProgressCallback
from hansa.pipeline.catalog import places_of
from hansa.pipeline.hours import FORMAT
from hansa.pipeline.lake import Lake, TablePlace
from hansa.pipeline.silver import LIVE, MEMBERSHIP_BEGINS, MEMBERSHIP_ENDS
from hansa.pipeline.tables import LakeTable

RETENTION = "_hansa/retention.json"
REMOVED = "_hansa/removed.json"
LAYERS = ("bronze", "silver", "gold")

MEMBERSHIP_KINDS = sorted((*MEMBERSHIP_BEGINS, *MEMBERSHIP_ENDS))
IS_NO_MEMBERSHIP = f"kind NOT IN ({', '.join(map(repr, MEMBERSHIP_KINDS))})"
"""Condition on `control_events`: the others begin or end memberships that may last until today."""


def retention_days(lake: Lake) -> dict[str, int]:
    """Return for how many days the rows of tables are kept, by name in SQL."""
    return {name: int(days) for name, days in _read(lake, RETENTION).items()}


def retain(lake: Lake, name: str, days: int | None) -> list[str]:
    """Choose the retention of a table, or of all tables of a layer; None ends it.
    Return the names of the tables."""
    places = {place.view: place for place in places_of(lake)}
    chosen = [places[name]] if name in places else []
    if name in LAYERS:
        chosen = [place for place in places.values() if place.layer == name]
    if not chosen:
        known = ", ".join((*LAYERS, *sorted(places)))
        raise UsageError(f"{lake.uri} has no table or layer {name!r}; there are {known}")
    dated = [place.view for place in chosen if _time_column(lake, place)]
    if not dated:
        raise UsageError(f"the rows of {name} have no time: it is a state, and stays small")
    kept = {table: each for table, each in retention_days(lake).items() if table not in dated}
    if days is not None:
        kept |= dict.fromkeys(dated, days)
    lake.storage.write(RETENTION, json.dumps(kept, sort_keys=True))
    return dated


def _time_column(lake: Lake, place: TablePlace) -> str | None:
    if place.layer == "bronze":
        return "time"
    return "hour" if "hour" in lake.read(place).columns else None


@dataclass(frozen=True, slots=True)
class RemovedRows:
    """What retention has removed."""

    before: Mapping[str, str]
    """Hour by table, in UTC: rows of earlier hours are removed."""
    is_complete: bool = True
    """Whether the rows are removed, and not only going to be."""

    @classmethod
    def of(cls, lake: Lake) -> "RemovedRows":
        return cls(**_read(lake, REMOVED)) if lake.storage.exists(REMOVED) else cls({})

    def save(self, lake: Lake) -> None:
        content = {"before": dict(self.before), "is_complete": self.is_complete}
        lake.storage.write(REMOVED, json.dumps(content, sort_keys=True))

    def frozen_before(self, table: LakeTable) -> str:
        """Return the first hour of a gold table whose sources are complete; empty if all are."""
        return max(self.before.get(name, "") for name in (table.name, *table.inputs))


def remove_old_rows(lake: Lake, on_progress: ProgressCallback, now: datetime | None = None) -> bool:
    """Delete the rows that are older than the retention of their tables, once a day; return whether
    there was something to do. All rows of bronze have to be in silver, and those in gold."""
    days = retention_days(lake)
    if not days:
        return False
    removed = RemovedRows.of(lake)
    today = (now or datetime.now(UTC)).replace(hour=0, minute=0, second=0, microsecond=0)
    before = {name: (today - timedelta(count)).strftime(FORMAT) for name, count in days.items()}
    if removed.is_complete:
        before = {
            name: hour for name, hour in before.items() if hour > removed.before.get(name, "")
        }
    if not before:
        return False
    merged = {
        name: max(removed.before.get(name, ""), before.get(name, ""))
        for name in {**removed.before, **before}
    }
    # Stored first: after a crash, gold must not follow the deletions.
    RemovedRows(merged, is_complete=False).save(lake)
    for place in places_of(lake):
        if place.view in before:
            on_progress(place.layer, place.name, None)
            _delete(lake, place, merged[place.view])
    RemovedRows(merged).save(lake)
    return True


def _delete(lake: Lake, place: TablePlace, before: str) -> None:
    names = lake.read(place).columns
    parts = [f"{_time_column(lake, place)} < TIMESTAMP'{before}'"]
    if "run" in names:  # simulations have no dates
        parts.append(f"run = '{LIVE}'")
    if place.view == "control_events":
        parts.append(IS_NO_MEMBERSHIP)
    version = lake.version(place)
    lake.spark.sql(
        f"DELETE FROM delta.`{lake.location(place)}` WHERE {' AND '.join(parts)}"
    ).collect()
    progress = lake.progress()
    if progress.get(place.view) == version:
        # Nothing follows from the deletion.
        lake.save_progress({**progress, place.view: lake.version(place)})


def _read(lake: Lake, name: str) -> dict[str, Any]:
    try:
        found = json.loads(lake.storage.read(name) or "{}")
    except ValueError:
        raise UsageError(f"{lake.uri}/{name} is corrupt") from None
    return dict(found)
