"""The least that agents beside brokers could cost: one minimal relay in C in place of each agent.

A publication over n hops passes two brokers and n + 1 relays, as with Hansa. The pairs of relays of
`peers` pass every broker of their line instead.
"""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.peer_kinds import compile_relay
from hansa.testbed.mosquitto import Mosquitto, free_port


@asynccontextmanager
async def relayed(hops: int) -> AsyncIterator[tuple[int, int]]:
    """Ports of two brokers that are this many hops apart. Raise `Unavailable` without a C
    compiler."""
    directory = Path(tempfile.mkdtemp(prefix="hansa-bench-"))
    brokers = [Mosquitto(directory / str(number), free_port()) for number in range(2)]
    relays: list[subprocess.Popen[bytes]] = []
    try:
        program = compile_relay("relay", directory)
        for broker in brokers:
            await broker.start()
        ports = [str(free_port()) for _ in range(hops)]
        source, target = (str(broker.port) for broker in brokers)
        middle = [("mid", near, far) for near, far in zip(ports, ports[1:], strict=False)]
        for words in (("in", source, ports[0]), *middle, ("out", ports[-1], target)):
            relays.append(subprocess.Popen([program, *words], process_group=0))
        yield brokers[0].port, brokers[1].port
    finally:
        for relay in relays:
            relay.kill()
            relay.wait()
        await asyncio.gather(*(broker.stop() for broker in brokers))
        shutil.rmtree(directory, ignore_errors=True)
