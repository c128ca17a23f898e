"""Hours as texts in UTC, such as `2026-01-31 23:00:00`, and as SQL.

PySpark would convert timestamps to the time zone of this machine.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from pyspark.sql import Column
from pyspark.sql import functions as F

FORMAT = "%Y-%m-%d %H:%M:%S"


def hour_text(hour: Column) -> Column:
    """Return a timestamp as a text in the time zone of the session, which is UTC."""
    return F.date_format(hour, "yyyy-MM-dd HH:mm:ss").alias("hour")


def shift_hour(hour: str, hours: int) -> str:
    moved = datetime.strptime(hour, FORMAT).replace(tzinfo=UTC) + timedelta(hours=hours)
    return moved.strftime(FORMAT)


def timestamp_literals(hours: Iterable[str]) -> str:
    """Return a list of hours for SQL."""
    return ", ".join(f"TIMESTAMP'{hour}'" for hour in sorted(hours))


def bucket_condition(hours_by_run: Mapping[str, Iterable[str]]) -> str:
    """Return the SQL condition that selects some hours of each run."""
    return " OR ".join(
        f"(run = '{run}' AND hour IN ({timestamp_literals(hours)}))"
        for run, hours in sorted(hours_by_run.items())
    )
