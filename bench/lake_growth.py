"""Cost of keeping a lake up to date: equal increments, each in an hour of its own."""

import tempfile
from pathlib import Path

from bench.console import say
from bench.cost import cost_of
from hansa.experiments.bar_chart import draw_bars
from hansa.journal.records import CapturedRecord
from hansa.journal.writer import JournalWriter
from hansa.telemetry import schema
from hansa.telemetry.writer import NodeRecorder, TelemetryLog

INCREMENTS = 10
MESSAGES = 100_000
WARM_UP = 2_000
HOUR_NS = 3_600_000_000_000
PAYLOAD = b"x" * 100
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "lake-growth.svg"
TABLES = ("bronze/messages", "bronze/events", "silver/deliveries", "silver/copies", "gold/delay")


def measure() -> dict[str, object]:
    """Ten increments of 100,000 messages between two nodes, with telemetry of each."""
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-growth-") as directory:
        return _measure(Path(directory))


def _measure(path: Path) -> dict[str, object]:
    from hansa.pipeline.bronze import PipelineJob
    from hansa.pipeline.lake import Lake
    from hansa.pipeline.runner import run_once
    from hansa.pipeline.session import session

    spark = session()
    # The first updates would include the start of Java and Python, and the merge of a table that
    # has no rows yet.
    for number in range(2):
        record_hour(path / "warm-source", number, WARM_UP)
        warm_lake = Lake.open_or_create(spark, str(path / "warm-lake"))
        run_once(warm_lake, PipelineJob([str(path / "warm-source")]))
    lake = Lake.open_or_create(spark, str(path / "lake"))
    job = PipelineJob([str(path / "source")])
    costs, files = [], []
    for number in range(INCREMENTS):
        record_hour(path / "source", number, MESSAGES)
        _, cpu_s = cost_of(lambda: run_once(lake, job))
        costs.append(round(cpu_s, 1))
        present = [
            len(spark.read.format("delta").load(f"{lake.uri}/{t}").inputFiles()) for t in TABLES
        ]
        files.append(present)
        counts = ", ".join(f"{t} {n}" for t, n in zip(TABLES, present, strict=True))
        say(f"increment {number + 1}", f"CPU {cpu_s:6.1f} s   files: {counts}")
    spark.stop()
    PICTURE.write_text(_draw(costs, files), encoding="utf-8")
    say("largest of the first", f"{max(costs) / costs[0]:6.2f}")
    return {"increment_cpu_s": costs, "files": files}


def _draw(costs: list[float], files: list[list[int]]) -> str:
    numbers = [str(number) for number in range(1, len(costs) + 1)]
    panels = {"CPU seconds per increment": dict(zip(numbers, costs, strict=True))}
    for table, counts in zip(TABLES, zip(*files, strict=True), strict=True):
        panels[f"files of {table}"] = dict(zip(numbers, map(float, counts), strict=True))
    return draw_bars(f"{len(costs)} increments of {MESSAGES:,} messages, each an hour", panels)


def record_hour(path: Path, number: int, messages: int) -> None:
    """Append an hour of messages from node 1 to node 2, as both agents record it."""
    start = (number + 1) * HOUR_NS
    step = HOUR_NS // (messages + 1)
    first = number * messages + 1
    logs = {node: TelemetryLog(path / f"telemetry-{node}") for node in (1, 2)}
    recorders = {node: NodeRecorder(log, node, number + 1) for node, log in logs.items()}
    with JournalWriter(path / "journal", 1, 1) as writer:
        for sequence in range(first, first + messages):
            at = start + (sequence - first) * step
            topic = f"plant/{sequence % 100}/temp"
            key = (1, 1, sequence, 1, topic, len(PAYLOAD))
            writer.append(CapturedRecord(sequence, 1, topic, PAYLOAD, False, b"", (), 1, at, True))
            recorders[1].put(schema.Captured(at, *key))
            recorders[1].put(schema.CopySent(at + 1_000, *key, 140, 1, 2))
            recorders[2].put(schema.CopyReceived(at + 500_000, *key, 140, 1, 1))
            recorders[2].put(schema.Delivered(at + 900_000, *key, 1))
            if sequence % 20_000 == 0:
                writer.commit()
                for log in logs.values():
                    log.commit()
        writer.commit()
    for node, log in logs.items():
        recorders[node].flush()
        log.close()
