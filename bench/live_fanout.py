"""Deliveries at several interested brokers, compared with a broker with as many bridges."""

import asyncio
import statistics

from bench.console import say
from bench.live import bridged, federation, open_load

ROUNDS = 4
SECONDS = 1.0


def measure() -> dict[str, object]:
    """Deliveries per second at 4 brokers around the publisher's, against 4 bridges (goal 1.5)."""
    return asyncio.run(_measure(4))


def measure_16() -> dict[str, object]:
    """Deliveries per second at 16 brokers around the publisher's, against 16 bridges."""
    return asyncio.run(_measure(16))


async def _measure(leaves: int) -> dict[str, object]:
    rates: dict[str, list[float]] = {"hansa": [], "bridges": []}
    lost = 0
    bridges = [(0, leaf) for leaf in range(1, 1 + leaves)]
    async with federation(f"star:{1 + leaves}") as ours, bridged(bridges) as theirs:
        ports = [node.broker.port for node in ours.nodes]
        bridge_ports = [broker.port for broker in theirs]
        for _ in range(ROUNDS):
            for name, among in (("bridges", bridge_ports), ("hansa", ports)):
                with open_load(among[0], among[1:]) as load:
                    flow = await asyncio.to_thread(load.flood, SECONDS)
                rates[name].append(flow.per_second)
                lost += flow.lost
    best = {name: max(values) for name, values in rates.items()}
    ratio = best["hansa"] / best["bridges"]
    pairs = zip(rates["hansa"], rates["bridges"], strict=True)
    middle = statistics.median(a / b for a, b in pairs)
    say(f"a broker with {leaves} bridges", f"{best['bridges']:10,.0f} /s")
    say(f"Hansa, star:{1 + leaves}", f"{best['hansa']:10,.0f} /s  {ratio:.2f} of the bridges")
    say("the median of the rounds' ratios", f"{middle:13.2f}")
    say("publications lost", f"{lost:10,}")
    return {
        **{f"{name}_per_s": round(rate) for name, rate in best.items()},
        "ratio": round(ratio, 3),
        "ratio_median": round(middle, 3),
        "lost": lost,
    }
