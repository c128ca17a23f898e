"""Cost of the proxy, compared with a direct connection to the same broker."""

import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.console import say
from bench.live import Client, open_load
from bench.live_delay import median_delay
from hansa.testbed.mosquitto import Mosquitto, free_port

ROUNDS = 5
SECONDS = 0.8
IDLE_CLIENTS = 5_000


def measure() -> dict[str, object]:
    """Throughput and delay through the proxy against a direct connection (goals 0.7 and 1.6)."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, object]:
    async with _broker_with_proxy() as (direct, proxy, pid):
        rates: dict[int, list[float]] = {direct: [], proxy: []}
        delays: dict[int, list[float]] = {direct: [], proxy: []}
        for _ in range(ROUNDS):
            for port in (direct, proxy):
                with open_load(port, [port]) as load:
                    flow = await asyncio.to_thread(load.flood, SECONDS)
                rates[port].append(flow.per_second)
                delays[port].append(await median_delay(port, port))
        idle = await asyncio.to_thread(_connect_many, proxy, pid)
    throughput = statistics.median(a / b for a, b in zip(rates[proxy], rates[direct], strict=True))
    delay = min(delays[proxy]) / min(delays[direct])
    say("direct, 64 B at QoS 0", f"{max(rates[direct]):10,.0f} /s")
    say("through the proxy", f"{max(rates[proxy]):10,.0f} /s  {throughput:.2f} of direct (median)")
    say("delay of one message, direct", f"{min(delays[direct]):8.3f} ms")
    say("through the proxy", f"{min(delays[proxy]):8.3f} ms  {delay:.2f} of direct")
    say("connections", f"{idle['connections_per_s']:10,} /s")
    say(f"memory for each of {IDLE_CLIENTS:,} idle clients", f"{idle['client_kb']:8} kB")
    return {"throughput_ratio": round(throughput, 2), "delay_ratio": round(delay, 2), **idle}


@asynccontextmanager
async def _broker_with_proxy() -> AsyncIterator[tuple[int, int, int]]:
    """Yield the ports of a broker and of the proxy in front of it, and the agent's process id."""
    with tempfile.TemporaryDirectory() as folder:
        port, proxy = free_port(), free_port()
        broker = Mosquitto(Path(folder) / "broker", port, ())
        await broker.start()
        environment = os.environ | {
            "HANSA_STATE": f"{folder}/state",
            "HANSA_BROKER_PORT": str(port),
            "HANSA_BROKER_OBSERVER": "proxy",
            "HANSA_PROXY_PORT": str(proxy),
            "HANSA_PROXY_NO_EARLIER_SESSIONS": "true",
            "HANSA_LINK_PORT": "0",
            "HANSA_ADMIN_PORT": "0",
        }
        command = [sys.executable, "-m", "hansa.cli", "agent"]
        agent = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            while agent.poll() is None and not _answers(proxy):
                await asyncio.sleep(0.05)
            yield port, proxy, agent.pid
        finally:
            agent.send_signal(signal.SIGTERM)
            agent.wait()
            await broker.stop()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def _connect_many(port: int, pid: int) -> dict[str, int]:
    before, began = _resident_kb(pid), time.perf_counter()
    clients = [Client(port, f"idle-{number}") for number in range(IDLE_CLIENTS)]
    seconds = time.perf_counter() - began
    grown = _resident_kb(pid) - before
    for client in clients:
        client.socket.close()
    return {
        "connections_per_s": round(IDLE_CLIENTS / seconds),
        "client_kb": round(grown / IDLE_CLIENTS),
    }


def _resident_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
