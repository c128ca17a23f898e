"""A live federation records a thousand messages a second; pipeline and agents are killed with -9.

Afterwards bronze has every recorded message once, as counted in the journals and by the publishers,
and the tables are those of one undisturbed run over the same input.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hansa.agent.broker.connection import BrokerAddress
from hansa.journal.reader import JournalReader
from hansa.journal.records import CapturedRecord
from hansa.pipeline.lake import Lake
from hansa.simulator.topologies import parse_topology
from hansa.testbed.chaos.clients import HistoryPublisher, HistorySubscriber
from hansa.testbed.chaos.history import (
    HistoryEvent,
    HistoryOperation,
    PublisherStream,
    parse_payload,
)
from hansa.testbed.clients import wait_until
from hansa.testbed.federation import LocalFederation

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

from hansa.pipeline.gold import GOLD
from hansa.pipeline.tables import LakeTable

NODES = 3
RATE = 1_000.0
"""Publications a second, of all nodes together."""
TIMEOUT_S = 600.0
RUN = [sys.executable, "-m", "hansa.cli", "pipeline", "run", "--lake"]
SETTINGS = {"HANSA_RECORD": "load/#", "HANSA_TELEMETRY_SAMPLE": "all", "HANSA_LOG": "warning"}


class Pipeline:
    """A process `hansa pipeline run --stream` that can be killed and restarted."""

    def __init__(self, lake: Path, source: Path) -> None:
        self.lake, self.source = lake, source
        self.process: subprocess.Popen[bytes] | None = None
        self.unfinished: set[Path] = set()
        """Unfinished data of the killed process."""

    def start(self) -> None:
        self.unfinished = set(self.staged_tables())
        command = [*RUN, str(self.lake), "--stream", "--every", "1", str(self.source)]
        self.process = subprocess.Popen(command, start_new_session=True)

    async def kill(self, when: Callable[[], bool], with_java: bool) -> None:
        """Kill it when a condition holds; without `with_java`, its JVM may continue briefly."""
        assert self.process is not None
        assert await wait_until(lambda: when() or self.process.poll() is not None, TIMEOUT_S)  # type: ignore[union-attr]
        assert self.process.poll() is None, "the pipeline ended early"
        if with_java:
            os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait()

    def batches(self) -> int:
        return len(list(self.lake.glob("bronze/messages/batch=*")))

    def staged_tables(self) -> list[Path]:
        return list(self.lake.glob("staging/*/generation/silver/*"))

    def is_building_tables(self) -> bool:
        return not self.unfinished.issuperset(self.staged_tables())


async def kill_agent(running: LocalFederation, number: int) -> None:
    agent = running.nodes[number].agent
    assert agent is not None
    agent.kill()
    await agent.wait()
    await running.start_agent(number)


async def live(source: Path, lake: Path) -> Counter[tuple[PublisherStream, int]]:
    """Run a federation and the pipeline, kill both; return the acknowledged publications."""
    acknowledged: Counter[tuple[PublisherStream, int]] = Counter()

    def note(event: HistoryEvent) -> None:
        if event.op is HistoryOperation.OK:
            acknowledged[event.stream, event.counter] += 1

    running = LocalFederation(
        parse_topology("line:3", 1), SETTINGS, persistent=True, directory=source
    )
    pipeline = Pipeline(lake, source)
    addresses = [BrokerAddress("127.0.0.1", node.broker.port) for node in running.nodes]
    publishers = [
        HistoryPublisher(address, f"pub{n}", {f"load/{n}": 1}, RATE / NODES, note)
        for n, address in enumerate(addresses)
    ]
    subscriber = HistorySubscriber(addresses[2], "sub", ("load/0",), lambda event: None)
    try:
        await running.start()
        await asyncio.gather(subscriber.start(), *(each.start() for each in publishers))
        await running.wait_until_converged()
        for publisher in publishers:
            publisher.start_publishing()
        pipeline.start()
        await pipeline.kill(lambda: pipeline.batches() > 0, with_java=True)
        await kill_agent(running, 0)
        pipeline.start()
        await pipeline.kill(pipeline.is_building_tables, with_java=True)
        await kill_agent(running, 1)
        before = pipeline.batches()
        pipeline.start()
        await pipeline.kill(lambda: pipeline.batches() > before + 1, with_java=False)
        for publisher in publishers:
            await publisher.stop_publishing()
        assert await wait_until(lambda: all(each.is_idle for each in publishers), TIMEOUT_S)
        expected = len(acknowledged)
        assert await wait_until(lambda: len(journalled(source)) >= expected, TIMEOUT_S)
    finally:
        if pipeline.process is not None and pipeline.process.poll() is None:
            os.killpg(pipeline.process.pid, signal.SIGKILL)
        await asyncio.gather(subscriber.stop(), *(each.stop() for each in publishers))
        await running.stop()
    return acknowledged


def journalled(source: Path) -> Counter[tuple[int, int, int, bytes]]:
    """Count the recorded messages in the journals by origin, epoch and sequence."""
    found: Counter[tuple[int, int, int, bytes]] = Counter()
    for path in source.glob("*/agent/journal/*"):
        reader = JournalReader(path)
        for header in reader.headers()[:1]:
            for _, record in reader.read():
                if isinstance(record, CapturedRecord) and record.recorded:
                    found[header.node, header.epoch, record.sequence, record.payload] += 1
    return found


def in_bronze(lake: Path) -> Counter[tuple[int, int, int, bytes]]:
    """The same as any reader of Parquet finds it."""
    from pyarrow.parquet import ParquetFile

    columns = ["origin_id", "epoch", "sequence", "payload"]
    found: Counter[tuple[int, int, int, bytes]] = Counter()
    for path in lake.glob("bronze/messages/batch=*/day=*/*.parquet"):
        values = [column.to_pylist() for column in ParquetFile(path).read(columns).columns]
        found.update((int(origin, 16), *rest) for origin, *rest in zip(*values, strict=True))
    return found


def rows(lake: Path, made: LakeTable) -> dict[tuple[Any, ...], dict[str, Any]]:
    from pyarrow.parquet import read_table

    found = read_table(lake / "tables" / made.layer / made.name).to_pylist()
    return {tuple(row[name] for name in made.key): row for row in found}


def counts(lake: Path) -> dict[str, int]:
    return {entry.name: entry.rows for entry in Lake(lake).tables()}


def once(lake: Path, source: Path) -> None:
    subprocess.run([*RUN, str(lake), str(source)], check=True, timeout=TIMEOUT_S)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_every_recorded_message_is_stored_once_although_pipeline_and_agents_are_killed(
    mosquitto, tmp_path
):
    source, lake, other = tmp_path / "nodes", tmp_path / "lake", tmp_path / "other"
    source.mkdir()
    acknowledged = asyncio.run(live(source, lake))
    once(lake, source)
    once(other, source)

    recorded = journalled(source)
    assert set(recorded.values()) == {1}
    assert in_bronze(lake) == recorded
    published = Counter(parse_payload(payload) for _, _, _, payload in recorded)
    assert published == acknowledged

    assert counts(lake) == counts(other)
    assert counts(lake)["messages"] == len(recorded)
    for each in GOLD.tables:
        streamed, rebuilt = rows(lake, each), rows(other, each)
        assert streamed.keys() == rebuilt.keys()
        for key, row in streamed.items():
            for column, value in row.items():
                other_value = rebuilt[key][column]
                if isinstance(value, float):  # sums of floats depend on their order
                    other_value = pytest.approx(other_value)
                assert value == other_value, (each.name, key, column)
