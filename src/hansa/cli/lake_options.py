"""The options of every command that uses a lake, and how they open it."""

import argparse
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hansa.cli.arguments import Parser
from hansa.console.progress import ConsoleProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hansa.pipeline.lake import Lake


def add_lake(parser: Parser) -> None:
    """Add the options of every command that uses a lake."""
    parser.add_argument(
        "--lake", required=True, metavar="LOCATION",
        help="the tables: a directory, or s3a://, abfss://, hdfs:// …",
    )  # fmt: skip
    parser.add_argument("--master", metavar="URL", help="a Spark cluster (default: this machine)")
    parser.add_argument(
        "--jars", metavar="DIR", help="the jars of Delta, if Maven Central cannot be reached"
    )


def start_spark(
    args: argparse.Namespace,
    progress: ConsoleProgress,
    sources: Sequence[str] = (),
    is_endless: bool = False,
) -> "SparkSession":
    from hansa.pipeline import jars
    from hansa.pipeline.class_archive import CommandKind
    from hansa.pipeline.location import are_small, is_local
    from hansa.pipeline.session import OBJECT_STORE, session

    # PySpark returns timestamps in the time zone of the process. Everything here is in UTC.
    os.environ["TZ"] = "UTC"
    time.tzset()
    if args.jars:
        os.environ[jars.DIRECTORY] = args.jars
    is_brief = not is_endless and are_small([args.lake, *sources])
    settings = {} if is_local(args.lake) else OBJECT_STORE
    kind = CommandKind.UPDATE if sources else CommandKind.QUERY
    return session(args.master, settings, say=progress.show, is_brief=is_brief, kind=kind)


def open_lake(args: argparse.Namespace, progress: ConsoleProgress, create: bool = False) -> "Lake":
    """Start Spark, unless it runs, and open the lake."""
    spark = start_spark(args, progress)
    from hansa.pipeline.lake import Lake

    return Lake.open_or_create(spark, args.lake) if create else Lake(spark, args.lake)
