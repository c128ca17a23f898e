"""Recording for the lake: QoS 1 at one broker, in its agent's journal, without a receiver."""

import asyncio
import tempfile
from pathlib import Path

from bench.console import say
from bench.live import CpuMeter, pids_of
from hansa.agent.broker.connection import BrokerAddress
from hansa.journal.reader import JournalReader
from hansa.journal.records import CapturedRecord
from hansa.simulator.topologies import parse_topology
from hansa.testbed.chaos.clients import HistoryPublisher
from hansa.testbed.clients import wait_until
from hansa.testbed.federation import LocalFederation

RATES = {"1,000 a second": (1_000.0, 10_000), "as fast as it goes": (100_000.0, 20_000)}
TIMEOUT_S = 60.0


def measure() -> dict[str, object]:
    """QoS 1 per second that are recorded, durable and acknowledged; how many are in the journal."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, object]:
    answers: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as directory:
        settings = {"HANSA_RECORD": "bench/#"}
        running = LocalFederation(
            parse_topology("line:2", 1), settings, persistent=True, directory=Path(directory)
        )
        try:
            await running.start()
            await running.wait_until_converged()
            for name, (rate, count) in RATES.items():
                answers[name] = await _round(running, name, rate, count)
        finally:
            await running.stop()
    return answers


async def _round(running: LocalFederation, name: str, rate: float, count: int) -> dict[str, object]:
    """Publish `count` messages; wait until the journal has them."""
    near = running.nodes[0]
    topic = f"bench/{count}"
    address = BrokerAddress("127.0.0.1", near.broker.port)
    publisher = HistoryPublisher(
        address, f"pub-{count}", {topic: 1}, rate, lambda event: None, count
    )
    loop = asyncio.get_running_loop()
    await publisher.start()
    meter = CpuMeter(pids_of(running))
    began = loop.time()
    publisher.start_publishing()
    followed = _Followed(near.directory / "agent" / "journal", topic)
    await wait_until(lambda: followed.count() >= count, TIMEOUT_S)
    seconds = loop.time() - began
    cpu = meter.micros(count)
    await publisher.stop()
    found = followed.count()
    say(f"recorded, {name}", f"{count / seconds:10,.0f} /s  {found} of {count} in the journal")
    say(f"recorded, {name}, CPU", ", ".join(f"{each} {us:.0f} µs" for each, us in cpu.items()))
    return {"per_s": round(count / seconds), "published": count, "in_journal": found}


class _Followed:
    """Counts what is recorded of one topic, reading on where it was."""

    def __init__(self, journals: Path, topic: str) -> None:
        (path,) = journals.iterdir()
        self._reader, self._topic = JournalReader(path), topic
        self._at, self._found = self._reader.bounds.start, 0

    def count(self) -> int:
        """Return the current number of recorded messages."""
        end = self._reader.bounds.end
        for _, record in self._reader.read(self._at, end):
            if isinstance(record, CapturedRecord) and record.recorded:
                self._found += record.topic == self._topic
        self._at = end
        return self._found
