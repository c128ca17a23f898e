"""Experiments: sweeps over simulation options, run on Spark, with the results in a lake."""
