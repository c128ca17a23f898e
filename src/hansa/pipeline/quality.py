"""Checks key and rules of a table before it is published."""

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from hansa.errors import TableBroken
from hansa.pipeline.tables import LakeTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check_table(table: LakeTable, frame: "DataFrame") -> int:
    """Return the number of rows; raise TableBroken if a key or rule is violated."""
    key = [F.col(name) for name in table.key]
    has_null = F.lit(False)
    for column in key:
        has_null = has_null | column.isNull()
    violations = [
        F.count_if(~F.expr(rule)).alias(f"rule{number}") for number, rule in enumerate(table.rules)
    ]
    (found,) = frame.agg(
        F.count("*").alias("rows"),
        F.countDistinct(F.xxhash64(*key)).alias("keys"),
        F.count_if(has_null).alias("without_key"),
        *violations,
    ).collect()
    name, columns = f"{table.layer}.{table.name}", ", ".join(table.key)
    if found["without_key"]:
        raise TableBroken(f"{name}: {found['without_key']} rows without a key ({columns})")
    if found["keys"] != found["rows"]:  # compared by hash, which is faster but may collide
        repeated = found["rows"] - frame.select(*key).distinct().count()
        if repeated:
            raise TableBroken(f"{name}: {repeated} rows have the same key ({columns}) as another")
    for number, rule in enumerate(table.rules):
        count = found[f"rule{number}"]
        if count:
            raise TableBroken(f"{name}: {count} of {found['rows']} rows violate the rule `{rule}`")
    return int(found["rows"])
