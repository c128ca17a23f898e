"""A live federation: publications at one broker reach the others."""

import asyncio
import shutil
from typing import Any

import pytest
from tests.identity.certified import write_https_certificate

from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation

TIMEOUT_S = 60.0


async def _subscribe(port: int, *filters: str) -> asyncio.subprocess.Process:
    wishes = [word for name in filters for word in ("-t", name)]
    return await asyncio.create_subprocess_exec(
        "mosquitto_sub", "-p", str(port), "-v", *wishes, stdout=asyncio.subprocess.PIPE
    )


async def _publish(port: int, topic: str, payload: str) -> None:
    client = await asyncio.create_subprocess_exec(
        "mosquitto_pub", "-p", str(port), "-t", topic, "-m", payload
    )
    await client.wait()


async def _lines_until(client: asyncio.subprocess.Process, last: str) -> list[str]:
    """Read the deliveries of a subscriber up to the last publication."""
    assert client.stdout is not None
    lines: list[str] = []
    while last not in lines:
        lines.append((await client.stdout.readline()).decode().strip())
    client.terminate()
    await client.wait()
    return lines


async def _interest(federation: LocalFederation) -> list[Any]:
    pages = [await asyncio.to_thread(node.status) for node in federation.nodes]
    return [page["interest"] for page in pages]


async def _wait_for(federation: LocalFederation, filters: int) -> None:
    """Wait until this number of filters is known at every node, and installed."""
    while True:
        known = await _interest(federation)
        counts = [sum(map(len, interest["remote"].values())) for interest in known]
        if counts == [filters] * len(counts):
            break
        await asyncio.sleep(0.05)
    await federation.wait_until_converged()


async def _ring() -> list[list[str]]:
    federation = LocalFederation(parse_topology("ring:3", seed=1), {})
    try:
        await federation.start()
        await federation.wait_until_converged()
        ports = [node.broker.port for node in federation.nodes]
        clients = [
            await _subscribe(ports[0], "plant/#"),
            await _subscribe(ports[1], "plant/+", "+/temp"),
            await _subscribe(ports[2], "plant/temp"),
        ]
        await _wait_for(federation, filters=4)
        for number in (1, 2):
            await _publish(ports[2], "plant/temp", str(number))
        await _publish(ports[2], "other/topic", "unwanted")
        await _publish(ports[2], "plant/temp", "end")
        return [await _lines_until(client, "plant/temp end") for client in clients]
    finally:
        await federation.stop()


@pytest.mark.usefixtures("mosquitto")
@pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="mosquitto_sub is not installed")
def test_ring_delivers_each_publication_once_per_broker():
    received = asyncio.run(asyncio.wait_for(_ring(), TIMEOUT_S))
    once = ["plant/temp 1", "plant/temp 2", "plant/temp end"]
    # MQTT allows one copy per matching subscription of a client; Mosquitto 2.0 sends one.
    assert [sorted(set(lines)) for lines in received] == [once] * 3
    assert received[0] == once
    assert received[2] == once


@pytest.mark.usefixtures("mosquitto")
def test_federation_with_https_endpoints_and_a_token_converges(tmp_path):
    async def run() -> str:
        settings = {
            "HANSA_ADMIN_TLS_CERTIFICATE": str(write_https_certificate(tmp_path / "https.pem")),
            "HANSA_ADMIN_READ_TOKEN": "secret",
        }
        federation = LocalFederation(parse_topology("line:2", seed=1), settings)
        try:
            await federation.start()
            await federation.wait_until_converged()
            return federation.nodes[0].admin_url
        finally:
            await federation.stop()

    assert asyncio.run(run()).startswith("https://127.0.0.1:")
