"""Throughput over one link and its cost, compared with a Mosquitto bridge."""

import asyncio
import statistics

from bench.console import say
from bench.live import CpuMeter, bridged, federation, open_load, pids_of

ROUNDS = 6
SECONDS = 0.8


def measure() -> dict[str, object]:
    """QoS 0, 64 B, one link, against a bridge (goal 0.85), and CPU of a broker's (0.3)."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, object]:
    async with federation("line:3") as ours, bridged([(0, 1)]) as theirs:
        ports = [node.broker.port for node in ours.nodes]
        pids = pids_of(ours)
        assert all(broker.process for broker in theirs)
        bridge_pids = {f"bridged {n}": b.process.pid for n, b in enumerate(theirs) if b.process}
        rates: dict[str, list[float]] = {"hansa": [], "bridge": []}
        costs: dict[str, list[float]] = {}
        lost = 0
        for _ in range(ROUNDS):
            for name, source, target, watched in (
                ("bridge", theirs[0].port, theirs[1].port, bridge_pids),
                ("hansa", ports[0], ports[1], pids),
            ):
                with open_load(source, [target]) as load:
                    meter = CpuMeter(watched)
                    flow = await asyncio.to_thread(load.flood, SECONDS)
                    spent = meter.micros(flow.arrived)
                rates[name].append(flow.per_second)
                lost += flow.lost
                for process, micros in spent.items():
                    costs.setdefault(process, []).append(micros)
            with open_load(ports[0], [ports[2]]) as load:
                meter = CpuMeter({"relay": pids["agent 1"]})
                flow = await asyncio.to_thread(load.flood, SECONDS)
                costs.setdefault("relay", []).append(meter.micros(flow.arrived)["relay"])
    return _report(rates, costs, lost)


def _report(
    rates: dict[str, list[float]], costs: dict[str, list[float]], lost: int
) -> dict[str, object]:
    ours, theirs = max(rates["hansa"]), max(rates["bridge"])
    say("a Mosquitto bridge", f"{theirs:10,.0f} /s")
    say("Hansa, one link", f"{ours:10,.0f} /s  {ours / theirs:.2f} of the bridge")
    pairs = zip(rates["hansa"], rates["bridge"], strict=True)
    ratio = statistics.median(a / b for a, b in pairs)
    say("the median of the rounds' ratios", f"{ratio:13.2f}")
    say("publications lost", f"{lost:10,}")
    best = {name: min(values) for name, values in costs.items()}
    broker = statistics.mean((best["broker 0"], best["broker 1"]))
    answers: dict[str, object] = {
        "hansa_per_s": round(ours),
        "bridge_per_s": round(theirs),
        "ratio": round(ours / theirs, 3),
        "ratio_median": round(ratio, 3),
        "lost": lost,
    }
    for title, process in (
        ("broker where it is published", "broker 0"),
        ("broker where it is received", "broker 1"),
        ("the same with a bridge, first", "bridged 0"),
        ("the same with a bridge, second", "bridged 1"),
        ("agent that captures", "agent 0"),
        ("agent that injects", "agent 1"),
        ("agent that relays (line:3, the middle one)", "relay"),
    ):
        share = best[process] / broker
        say(f"CPU of {title}", f"{best[process]:8.1f} µs  {share:.2f} of a broker")
        answers[f"cpu_us_{process.replace(' ', '_')}"] = round(best[process], 1)
    return answers
