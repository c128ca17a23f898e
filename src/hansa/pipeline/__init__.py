"""The data pipeline on Spark: builds tables and reports from recorded messages and telemetry.

Needs the extra `spark`. Runs locally or on a cluster.

    from hansa.pipeline import spark_session

    spark = spark_session()     # finds Java and starts workers with this Python
    spark.read.format("hansa").load("/var/lib/hansa")
"""

from hansa.pipeline.session import session as spark_session

__all__ = ["spark_session"]
