"""Delay of a publication over one hop and over five, compared with as many bridges."""

import asyncio
import statistics

from bench.console import say
from bench.live import bridged, federation, open_load

ROUNDS = 3
PER_SECOND = 400
COUNT = 400


def measure() -> dict[str, object]:
    """Median delay at 400 messages/s against bridges: 1 hop (goal 1.3), 5 hops (goal 0.8)."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, object]:
    answers: dict[str, object] = {}
    chain = [(number, number + 1) for number in range(5)]
    async with federation("line:6") as ours, bridged(chain) as theirs:
        ports = [node.broker.port for node in ours.nodes]
        bridge_ports = [broker.port for broker in theirs]
        alone = await median_delay(ports[0], ports[0])
        say("one broker", f"{alone:8.3f} ms")
        for hops in (1, 5):
            medians: dict[str, list[float]] = {"hansa": [], "bridge": []}
            for _ in range(ROUNDS):
                medians["bridge"].append(await median_delay(bridge_ports[0], bridge_ports[hops]))
                medians["hansa"].append(await median_delay(ports[0], ports[hops]))
            best = {name: min(values) for name, values in medians.items()}
            ratio = best["hansa"] / best["bridge"]
            say(f"bridges, {hops} hops", f"{best['bridge']:8.3f} ms")
            say(f"Hansa, {hops} hops", f"{best['hansa']:8.3f} ms  {ratio:.2f} of the bridges")
            answers |= {f"{name}_{hops}_hops_ms": round(ms, 3) for name, ms in best.items()}
            answers[f"ratio_{hops}_hops"] = round(ratio, 2)
    return answers


async def median_delay(source: int, target: int) -> float:
    """Return the median of one round; the first tenth only warms up."""
    with open_load(source, [target]) as load:
        delays = await asyncio.to_thread(load.delays, COUNT, PER_SECOND)
    return statistics.median(delays[COUNT // 10 :])
