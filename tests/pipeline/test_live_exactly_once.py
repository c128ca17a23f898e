"""A live federation records a thousand messages a second; pipeline and agents are killed with -9.

Afterwards bronze has every recorded message once, as counted in the journals and by the publishers,
and the tables are those of one undisturbed run over the same input.
"""

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from hansa.agent.broker.connection import BrokerAddress
from hansa.journal.reader import JournalReader
from hansa.journal.records import CapturedRecord
from hansa.simulator.topologies import parse_topology
from hansa.testbed.chaos.clients import HistoryPublisher, HistorySubscriber
from hansa.testbed.chaos.history import (
    HistoryEvent,
    HistoryOperation,
    PublisherStream,
    parse_payload,
)
from hansa.testbed.clients import wait_until
from hansa.testbed.demo.delta_files import read_delta
from hansa.testbed.federation import LocalFederation

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

from pyspark.sql import functions as F
from tests.pipeline.kill_phases import PHASES, LakeFiles, Phase, kill, kill_in_phase
from tests.pipeline.test_lake import rows_of

from hansa.pipeline.catalog import PLACES
from hansa.pipeline.lake import BRONZE_PLACES, Lake, TablePlace

LOG = logging.getLogger(__name__)
"""Shown by `./run test -m long --log-cli-level=INFO …`: the phase of every kill."""
NODES = 2
RATE = 1_000.0
"""Publications a second, of all nodes together."""
ROUND_S = 8.0
"""How long messages are published in each round; the pipeline is killed once in a round."""
TIMEOUT_S = 600.0
PIPELINE = [sys.executable, "-m", "hansa.cli", "pipeline"]
SETTINGS = {"HANSA_RECORD": "load/#", "HANSA_TELEMETRY_SAMPLE": "all", "HANSA_LOG": "warning"}


FAST_START = {
    "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions"
    " -XX:-BytecodeVerificationRemote"
}
"""Java compiles fast rather than well: each pipeline runs for less than a minute."""
ATTEMPTS = 3
"""For a phase that ended while the pipeline was being stopped."""


def stream_and_kill(lake: Path, source: Path, phase: Phase) -> bool:
    """Start `hansa pipeline stream` and kill it; return whether it was in the phase."""
    command = [*PIPELINE, "stream", "--lake", str(lake), "--every", "1", str(source)]
    files = LakeFiles(lake)
    pipeline = subprocess.Popen(command, env={**os.environ, **FAST_START}, start_new_session=True)
    try:
        return kill_in_phase(pipeline, files, phase, TIMEOUT_S)
    finally:
        kill(pipeline)


async def kill_agent(running: LocalFederation, number: int) -> None:
    agent = running.nodes[number].agent
    assert agent is not None
    agent.kill()
    await agent.wait()
    await running.start_agent(number)


async def publish(publishers: Sequence[HistoryPublisher]) -> None:
    """Publish for a while."""
    before, began = sum(each.count for each in publishers), time.monotonic()
    for publisher in publishers:
        publisher.start_publishing()
    await asyncio.sleep(ROUND_S)
    for publisher in publishers:
        await publisher.stop_publishing()
    count = sum(each.count for each in publishers) - before
    LOG.info("published %d messages, %.0f/s", count, count / (time.monotonic() - began))


async def live(source: Path, lake: Path) -> Counter[tuple[PublisherStream, int]]:
    """Run a federation and the pipeline, kill both; return the acknowledged publications."""
    acknowledged: Counter[tuple[PublisherStream, int]] = Counter()

    def note(event: HistoryEvent) -> None:
        if event.op is HistoryOperation.OK:
            acknowledged[event.stream, event.counter] += 1

    running = LocalFederation(
        parse_topology("line:2", 1), SETTINGS, persistent=True, directory=source
    )
    addresses = [BrokerAddress("127.0.0.1", node.broker.port) for node in running.nodes]
    publishers = [
        HistoryPublisher(address, f"pub{n}", {f"load/{n}": 1}, RATE / NODES, note)
        for n, address in enumerate(addresses)
    ]
    subscriber = HistorySubscriber(addresses[1], "sub", ("load/0",), lambda event: None)
    try:
        await running.start()
        await asyncio.gather(subscriber.start(), *(each.start() for each in publishers))
        await running.wait_until_converged()
        await publish(publishers)
        await asyncio.to_thread(once, lake, source)
        for number, (name, phase) in enumerate(PHASES.items(), 1):
            for attempt in range(1, ATTEMPTS + 1):
                publishing = asyncio.create_task(publish(publishers))
                is_in_phase = asyncio.create_task(
                    asyncio.to_thread(stream_and_kill, lake, source, phase)
                )
                if number in (3, 6) and attempt == 1:
                    await kill_agent(running, 0)
                await publishing
                if await is_in_phase:
                    LOG.info("kill %d: %s", number, name)
                    break
                assert attempt < ATTEMPTS, name
        assert await wait_until(lambda: all(each.is_idle for each in publishers), TIMEOUT_S)
        expected = len(acknowledged)
        assert await wait_until(lambda: len(journalled(source)) >= expected, TIMEOUT_S)
    finally:
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
    """The same as a reader of Delta finds it."""
    return Counter(
        (int(row["origin_id"], 16), row["epoch"], row["sequence"], row["payload"])
        for row in read_delta(lake / "bronze" / "messages")
    )


def once(lake: Path, source: Path) -> None:
    command = [*PIPELINE, "run", "--lake", str(lake), str(source)]
    subprocess.run(command, check=True, timeout=TIMEOUT_S)


def differing_rows(one: Lake, two: Lake, place: TablePlace) -> list[object]:
    """Return some rows that one of the lakes has more often."""
    texts = [
        lake.read(place).select(F.to_json(F.struct("*")).alias("row"), F.lit(sign).alias("sign"))
        for lake, sign in ((one, 1), (two, -1))
    ]
    rows = texts[0].unionAll(texts[1]).groupBy("row").agg(F.sum("sign").alias("more"))
    return list(rows.where("more <> 0").limit(5).collect())


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_every_recorded_message_is_stored_once_although_pipeline_and_agents_are_killed(
    mosquitto, tmp_path, request
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

    spark = request.getfixturevalue("spark")  # not before: it needs memory, and the machine is busy
    one, two = Lake(spark, str(lake)), Lake(spark, str(other))
    for place in (*BRONZE_PLACES.values(), *PLACES.values()):
        if place.layer == "gold":
            assert rows_of(one, place.name) == rows_of(two, place.name), place
        else:
            assert differing_rows(one, two, place) == [], place
