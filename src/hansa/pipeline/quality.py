"""Whether a table is what its docstring and rules say; asked before anybody sees the table."""

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from hansa.errors import TableBroken
from hansa.pipeline.tables import LakeTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check_table(table: LakeTable, frame: "DataFrame") -> int:
    """Return how many rows there are; raise TableBroken if one of them should not be."""
    key = [F.col(name) for name in table.key]
    empty = F.lit(False)
    for column in key:
        empty = empty | column.isNull()
    broken = [
        F.count_if(~F.expr(rule)).alias(f"rule{number}") for number, rule in enumerate(table.rules)
    ]
    (found,) = frame.agg(
        F.count("*").alias("rows"),
        F.countDistinct(F.xxhash64(*key)).alias("keys"),
        F.count_if(empty).alias("empty"),
        *broken,
    ).collect()
    name, columns = f"{table.layer}.{table.name}", ", ".join(table.key)
    if found["empty"]:
        raise TableBroken(f"{name}: {found['empty']} rows without a key ({columns})")
    if found["keys"] != found["rows"]:  # by their hashes, which is quicker; two may be alike
        twice = found["rows"] - frame.select(*key).distinct().count()
        if twice:
            raise TableBroken(f"{name}: {twice} rows have the same key ({columns}) as another")
    for number, rule in enumerate(table.rules):
        count = found[f"rule{number}"]
        if count:
            raise TableBroken(f"{name}: {count} of {found['rows']} rows break the rule `{rule}`")
    return int(found["rows"])
