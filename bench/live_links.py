"""Cost of a link through a broker, compared with TCP."""

import asyncio
import statistics

from bench.console import say
from bench.live import CpuMeter, federation, open_load, pids_of
from bench.live_delay import median_delay
from hansa.testbed.federation import LinkProfile

ROUNDS = 4
SECONDS = 0.8
HOPS = 3


def measure() -> dict[str, object]:
    """Links of mqtt against links of tcp: throughput over one, delay over 1 and 3, CPU."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, object]:
    rates: dict[str, list[float]] = {"tcp": [], "mqtt": []}
    costs: dict[str, list[float]] = {"tcp": [], "mqtt": []}
    delays: dict[tuple[str, int], list[float]] = {}
    lost = 0
    topology = f"line:{HOPS + 1}"
    async with federation(topology) as tcp, federation(topology, LinkProfile("mqtt")) as mqtt:
        for _ in range(ROUNDS):
            for name, running in (("tcp", tcp), ("mqtt", mqtt)):
                ports = [node.broker.port for node in running.nodes]
                with open_load(ports[0], [ports[1]]) as load:
                    meter = CpuMeter(pids_of(running))
                    flow = await asyncio.to_thread(load.flood, SECONDS)
                    costs[name].append(sum(meter.micros(flow.arrived).values()))
                rates[name].append(flow.per_second)
                lost += flow.lost
                for hops in (1, HOPS):
                    delay = await median_delay(ports[0], ports[hops])
                    delays.setdefault((name, hops), []).append(delay)
    return _report(rates, costs, delays, lost)


def _report(
    rates: dict[str, list[float]],
    costs: dict[str, list[float]],
    delays: dict[tuple[str, int], list[float]],
    lost: int,
) -> dict[str, object]:
    answers: dict[str, object] = {"lost": lost}
    rate = {name: max(found) for name, found in rates.items()}
    pairs = zip(rates["mqtt"], rates["tcp"], strict=True)
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    say("one link, tcp", f"{rate['tcp']:10,.0f} /s")
    say("one link, mqtt", f"{rate['mqtt']:10,.0f} /s  {rate['mqtt'] / rate['tcp']:.2f} of tcp")
    say("the median of the rounds' ratios", f"{ratio:13.2f}")
    answers |= {f"{name}_per_s": round(found) for name, found in rate.items()}
    answers |= {"throughput_ratio": round(rate["mqtt"] / rate["tcp"], 2)}
    answers |= {"throughput_ratio_median": round(ratio, 2)}
    for hops in (1, HOPS):
        tcp, mqtt = (min(delays[name, hops]) for name in ("tcp", "mqtt"))
        say(f"median delay over {hops}, tcp", f"{tcp:10.3f} ms")
        say(f"median delay over {hops}, mqtt", f"{mqtt:10.3f} ms  {mqtt / tcp:.2f} of tcp")
        answers |= {f"tcp_{hops}_hops_ms": round(tcp, 3), f"mqtt_{hops}_hops_ms": round(mqtt, 3)}
        answers[f"delay_ratio_{hops}_hops"] = round(mqtt / tcp, 2)
    for name, found in costs.items():
        say(f"CPU of all brokers and agents, {name}", f"{min(found):8.1f} µs per publication")
        answers[f"cpu_us_{name}"] = round(min(found), 1)
    say("publications lost", f"{lost:10,}")
    return answers
