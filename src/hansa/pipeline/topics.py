"""MQTT topic matching as a Spark SQL expression, without Python per row."""

from pyspark.sql import Column
from pyspark.sql import functions as F


def text_literal(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def filter_matches(topic_filter: str, topic: str) -> Column:
    """Return whether a filter matches a topic; both arguments are SQL expressions."""
    return F.expr(filter_condition(topic_filter, topic))


def filter_condition(topic_filter: str, topic: str) -> str:
    """Return the same as SQL."""
    levels, names = f"split({topic_filter}, '/', -1)", f"split({topic}, '/', -1)"
    is_multi = f"element_at({levels}, -1) = '#'"
    fixed = f"slice({levels}, 1, size({levels}) - int({is_multi}))"
    length_fits = f"if({is_multi}, size({names}) >= size({fixed}), size({names}) = size({fixed}))"
    levels_fit = (
        f"forall(zip_with({fixed}, slice({names}, 1, size({fixed})),"
        " (level, name) -> level = '+' or level = name), fits -> coalesce(fits, false))"
    )
    # A leading wildcard does not match topics that begin with `$`.
    hidden = f"startswith({topic}, '$') and element_at({levels}, 1) in ('+', '#')"
    return f"{length_fits} and {levels_fit} and not ({hidden})"
