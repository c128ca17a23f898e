"""Reads a small Delta table without Spark: the files that its log names, with pyarrow."""

import importlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote


def read_delta(path: Path) -> list[dict[str, Any]]:
    """Read the present files of a Delta table, according to its log, without a second start of
    Spark; the values of partition columns are texts. pyarrow may have been installed since this
    process started."""
    importlib.invalidate_caches()
    parquet = importlib.import_module("pyarrow.parquet")
    present: dict[str, dict[str, str]] = {}
    columns: set[str] = set()
    for commit in sorted((path / "_delta_log").glob("*.json")):
        for line in commit.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            if "add" in action:
                present[action["add"]["path"]] = action["add"]["partitionValues"]
            elif "remove" in action:
                present.pop(action["remove"]["path"], None)
            elif "metaData" in action:  # files of a merge have more columns
                fields = json.loads(action["metaData"]["schemaString"])["fields"]
                columns = {field["name"] for field in fields}
    return [
        {key: value for key, value in {**row, **partition}.items() if key in columns}
        for name, partition in present.items()
        for row in parquet.ParquetFile(path / unquote(name)).read().to_pylist()
    ]
