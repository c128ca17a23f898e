"""How Spark finds us: `format("hansa")` looks for a module `pyspark_hansa` with a DefaultSource."""

from hansa.pipeline.source import HansaSource as DefaultSource

__all__ = ["DefaultSource"]
