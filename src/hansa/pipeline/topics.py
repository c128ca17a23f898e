"""Topics and filters as MQTT matches them, in Spark's own words: no Python is called per row."""

from pyspark.sql import Column
from pyspark.sql import functions as F


def filter_matches(topic_filter: str, topic: str) -> Column:
    """Return whether a filter matches a topic name; both are expressions in SQL."""
    levels, names = f"split({topic_filter}, '/', -1)", f"split({topic}, '/', -1)"
    any_below = f"element_at({levels}, -1) = '#'"
    fixed = f"slice({levels}, 1, size({levels}) - int({any_below}))"
    as_long = f"if({any_below}, size({names}) >= size({fixed}), size({names}) = size({fixed}))"
    same = (
        f"forall(zip_with({fixed}, slice({names}, 1, size({fixed})),"
        " (level, name) -> level = '+' or level = name), fits -> coalesce(fits, false))"
    )
    # A wildcard at the front does not match what a server keeps for itself.
    hidden = f"startswith({topic}, '$') and element_at({levels}, 1) in ('+', '#')"
    return F.expr(f"{as_long} and {same} and not ({hidden})")
