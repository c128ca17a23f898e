"""The data pipeline on Spark: what federations recorded becomes tables and reports.

Needs the extra `spark`; no other part does. Runs locally or on a cluster.

    from hansa.pipeline import spark_session

    spark = spark_session()     # finds Java, and starts workers with this Python
    spark.read.format("hansa").load("/var/lib/hansa")
"""

from hansa.pipeline.session import session as spark_session

__all__ = ["spark_session"]
