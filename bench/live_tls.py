"""What TLS costs: the same federation with and without certificates, in turn."""

import asyncio
import statistics
import time

from bench.console import say
from bench.live import CpuMeter, federation, open_load, pids_of
from bench.live_delay import median_delay
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LinkProfile, LocalFederation

ROUNDS = 7
SECONDS = 0.8
START_ROUNDS = 2
START_TOPOLOGY = "grid:3x3"

PROFILES = {"plain": LinkProfile(is_secure=False), "tls": LinkProfile()}


def measure() -> dict[str, object]:
    """TLS against plain links: throughput (goal 0.9), delay of one hop (goal 1.3), CPU, start."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, object]:
    rates: dict[str, list[float]] = {name: [] for name in PROFILES}
    delays: dict[str, list[float]] = {name: [] for name in PROFILES}
    relay_cpu: dict[str, list[float]] = {name: [] for name in PROFILES}
    async with (
        federation("line:3", PROFILES["plain"]) as plain,
        federation("line:3", PROFILES["tls"]) as secure,
    ):
        for _ in range(ROUNDS):
            for name, running in (("plain", plain), ("tls", secure)):
                ports = [node.broker.port for node in running.nodes]
                with open_load(ports[0], [ports[1]]) as load:
                    flow = await asyncio.to_thread(load.flood, SECONDS)
                rates[name].append(flow.per_second)
                delays[name].append(await median_delay(ports[0], ports[1]))
                with open_load(ports[0], [ports[2]]) as load:
                    meter = CpuMeter({"relay": pids_of(running)["agent 1"]})
                    flow = await asyncio.to_thread(load.flood, SECONDS)
                    relay_cpu[name].append(meter.micros(flow.arrived)["relay"])
    starts: dict[str, list[float]] = {name: [] for name in PROFILES}
    for _ in range(START_ROUNDS):
        for name, profile in PROFILES.items():
            starts[name].append(await _start_seconds(profile))
    return _report(rates, delays, relay_cpu, starts)


async def _start_seconds(profile: LinkProfile) -> float:
    running = LocalFederation(parse_topology(START_TOPOLOGY, 1), {}, link_profile=profile)
    began = time.monotonic()
    try:
        await running.start()
        await running.wait_until_converged()
        return time.monotonic() - began
    finally:
        await running.stop()


def _report(
    rates: dict[str, list[float]],
    delays: dict[str, list[float]],
    relay_cpu: dict[str, list[float]],
    starts: dict[str, list[float]],
) -> dict[str, object]:
    answers: dict[str, object] = {}
    for title, key, unit, values, best in (
        ("throughput over one link", "throughput", "/s", rates, max),
        ("delay of one hop", "delay", "ms", delays, min),
        ("CPU of a relaying agent", "relay_cpu", "µs", relay_cpu, min),
        (f"start of {START_TOPOLOGY}", "start", "s", starts, min),
    ):
        found = {name: best(values[name]) for name in PROFILES}
        pairs = zip(values["tls"], values["plain"], strict=True)
        ratio = statistics.median(tls / plain for tls, plain in pairs)
        for name, value in found.items():
            say(f"{title}, {name}", f"{value:12,.3f} {unit}")
            answers[f"{key}_{name}"] = round(value, 3)
        say(
            f"{title}, TLS of plain",
            f"{ratio:12.2f} median, {found['tls'] / found['plain']:.2f} best",
        )
        answers[f"{key}_ratio"] = round(found["tls"] / found["plain"], 3)
        answers[f"{key}_ratio_median"] = round(ratio, 3)
    return answers
