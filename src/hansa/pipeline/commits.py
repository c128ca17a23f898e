"""Reads commits of a Delta table from its log, without Spark: a small file each."""

import json
from datetime import datetime

from hansa.pipeline.hours import FORMAT
from hansa.pipeline.lake import Lake, TablePlace


def commit_time(lake: Lake, place: TablePlace, version: int) -> int | None:
    """Return when a version was made, in milliseconds since 1970; None if its commit is gone."""
    text = lake.storage.read(f"{place.path}/_delta_log/{version:020d}.json") or ""
    actions = (json.loads(line) for line in text.splitlines())
    return next((each["commitInfo"]["timestamp"] for each in actions if "commitInfo" in each), None)


def added_buckets(
    lake: Lake, place: TablePlace, first: int, last: int, run: str | None
) -> set[tuple[str, str]] | None:
    """Return run and hour of the rows that some versions added; None if the commits do not say it.

    They say it if rows were only added, and every file has rows of one run and hour: so it is for
    recent records of a federation. `run` is that of all rows, if the table has no such column."""
    found = set()
    for version in range(first, last + 1):
        text = lake.storage.read(f"{place.path}/_delta_log/{version:020d}.json")
        if text is None:
            return None
        for line in text.splitlines():
            action = json.loads(line)
            if "remove" in action or "cdc" in action:
                return None
            if "add" in action:
                bucket = _bucket(json.loads(action["add"].get("stats") or "{}"), run)
                if bucket is None:
                    return None
                found.add(bucket)
    return found


def _bucket(stats: dict[str, dict[str, str]], run: str | None) -> tuple[str, str] | None:
    """Return run and hour of a file's rows, if they are the same in all."""
    least, most = stats.get("minValues", {}), stats.get("maxValues", {})
    columns = ("hour",) if run is not None else ("run", "hour")
    if any(name not in least or least[name] != most.get(name) for name in columns):
        return None
    hour = datetime.fromisoformat(least["hour"]).strftime(FORMAT)
    return run if run is not None else least["run"], hour
