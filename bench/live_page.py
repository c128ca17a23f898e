"""What an open page costs: throughput of nine nodes with and without a client that follows it."""

import asyncio
import statistics
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from bench.console import say
from bench.live import federation, open_load

TOPOLOGY = "grid:3x3"
ROUNDS = 5
SECONDS = 4.0
PER_SECOND = 5_000
DOCUMENTS = "overview,federation"
"""What the view of the graph follows."""

READ_BYTES = 1 << 16


def measure() -> dict[str, object]:
    """Throughput of nine nodes at 5,000 messages/s and at most, with one page open (goal 0.97)."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, object]:
    rates: dict[str, dict[str, list[float]]] = {
        load: {"without": [], "with": []} for load in ("steady", "most")
    }
    async with federation(TOPOLOGY) as running:
        ports = [node.broker.port for node in running.nodes]
        url = running.nodes[0].admin_url  # the busiest agent: it captures everything
        with open_load(ports[0], [ports[4], ports[8]]) as load:
            for _ in range(ROUNDS):
                for page in ("without", "with"):
                    with open_page(url) if page == "with" else nullcontext():
                        for name, limit in (("steady", PER_SECOND), ("most", None)):
                            flow = await asyncio.to_thread(load.flood, SECONDS, limit)
                            rates[name][page].append(flow.per_second)
    answers: dict[str, object] = {}
    titles = {"steady": f"at {PER_SECOND:,} messages/s", "most": "as many as possible"}
    for name, found in rates.items():
        ratios = [
            shown / hidden for shown, hidden in zip(found["with"], found["without"], strict=True)
        ]
        ratio = statistics.median(ratios)
        for page, values in found.items():
            median = statistics.median(values)
            say(f"{titles[name]}, {page} a page", f"{median:12,.0f} deliveries/s at two brokers")
            answers[f"{name}_{page}_page"] = round(median)
        say(f"{titles[name]}, with a page of without", f"{ratio:12.3f} median")
        answers[f"{name}_ratio"] = round(ratio, 3)
    return answers


@contextmanager
def open_page(url: str) -> Iterator[None]:
    """Follow the documents of the page's first view, as a browser does; a browser itself would
    take CPU from the agents on this machine."""
    with urllib.request.urlopen(f"{url}/stream?documents={DOCUMENTS}", timeout=30.0) as stream:
        if not stream.read1(READ_BYTES):
            raise ConnectionError("the agent closed the stream of the page")
        stop = threading.Event()

        def follow() -> None:
            while not stop.is_set() and stream.read1(READ_BYTES):
                pass

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            yield
            if not thread.is_alive():
                raise ConnectionError("the agent closed the stream of the page")
        finally:
            stop.set()
            thread.join()  # the stream sends something every second
