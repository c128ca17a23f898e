"""The data pipeline on Spark: what federations recorded becomes tables and reports.

Needs the extra `hansa[spark]`; no other part does. Runs locally or on a cluster.
"""
