"""Registers the data source: `format("hansa")` imports `pyspark_hansa` and its DefaultSource."""

from hansa.pipeline.source import HansaSource as DefaultSource

__all__ = ["DefaultSource"]
