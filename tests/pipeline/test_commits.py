"""Run and hour of new rows, from the commits of a table."""

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

from hansa.pipeline.commits import added_buckets
from hansa.pipeline.lake import TablePlace

NINE, TEN = "2026-01-31T09:00:00.000Z", "2026-01-31T10:00:00.000Z"


def lake_with(*commits):
    """Return a lake whose table has these commits after the first one."""
    texts = {
        f"silver/t/_delta_log/{number:020d}.json": "\n".join(map(json.dumps, actions))
        for number, actions in enumerate(commits, 1)
    }
    return SimpleNamespace(storage=SimpleNamespace(read=texts.get))


def add(least, most):
    return {"add": {"stats": json.dumps({"minValues": least, "maxValues": most})}}


def one(hour, run="live"):
    return add({"run": run, "hour": hour}, {"run": run, "hour": hour})


LIVE_NINE = ("live", "2026-01-31 09:00:00")
LIVE_TEN = ("live", "2026-01-31 10:00:00")


@pytest.mark.parametrize(
    ("commits", "found"),
    [
        ([[one(NINE), {"commitInfo": {}}], [one(TEN), one(NINE)]], {LIVE_NINE, LIVE_TEN}),
        ([[{"commitInfo": {}}], []], set()),
        ([[one(NINE)], [add({"run": "a", "hour": NINE}, {"run": "b", "hour": NINE})]], None),
        ([[one(NINE)], [add({"run": "a", "hour": NINE}, {"run": "a", "hour": TEN})]], None),
        ([[one(NINE)], [one(NINE), {"remove": {}}]], None),
        ([[one(NINE)], [{"cdc": {}}]], None),
        ([[one(NINE)], [{"add": {"path": "without statistics"}}]], None),
        ([[one(NINE)]], None),  # the log was cleaned
    ],
)
def test_hours_are_known_if_every_file_has_one(commits, found):
    place = TablePlace("t", "silver")
    assert added_buckets(lake_with(*commits), place, 1, 2, None) == found


def test_table_without_runs_has_the_given_one():
    lake = lake_with([add({"hour": NINE}, {"hour": NINE})])
    assert added_buckets(lake, TablePlace("t", "silver"), 1, 1, "live") == {LIVE_NINE}
