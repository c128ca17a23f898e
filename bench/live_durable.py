"""Durable publications across one link: QoS 1 and 2 with journals at both ends, beside a bridge."""

import asyncio
from collections import Counter

from bench.console import say
from bench.live import CpuMeter, bridged, federation, pids_of
from hansa.agent.broker.connection import BrokerAddress
from hansa.testbed.chaos.clients import HistoryPublisher, HistorySubscriber
from hansa.testbed.chaos.history import HistoryEvent, HistoryOperation
from hansa.testbed.chaos.verdict import judge_history
from hansa.testbed.clients import wait_until

ROUNDS = 3
COUNT = 3_000
AS_FAST_AS_IT_GOES = 100_000.0
READY_S = 20.0
TIMEOUT_S = 60.0
QUIET_S = 5.0
"""Seconds without an arrival after which no more is expected: a bridge may have lost the rest."""


def measure() -> dict[str, object]:
    """QoS 1 and 2 per second over one link, acknowledged and arrived, of a bridge (goal 1.0)."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, object]:
    answers: dict[str, object] = {}
    async with (
        federation("line:2", persistent=True) as running,
        bridged([(0, 1)], qos=2, is_persistent=True) as brokers,
    ):
        near, far = running.nodes
        ours = near.broker.port, far.broker.port
        theirs = brokers[0].port, brokers[1].port
        for qos in (1, 2):
            cpu: Counter[str] = Counter()
            rates: dict[str, list[float]] = {"bridge": [], "hansa": []}
            lost = dict.fromkeys(rates, 0)
            for number in range(ROUNDS):
                for name, ports in (("bridge", theirs), ("hansa", ours)):
                    meter = CpuMeter(pids_of(running) if name == "hansa" else {})
                    rate, missing = await _round(ports, qos, f"{name}{qos}{number}")
                    cpu.update(meter.micros(COUNT * ROUNDS))
                    rates[name].append(rate)
                    lost[name] += missing
            ratio = max(rates["hansa"]) / max(rates["bridge"])
            for name, found in rates.items():
                say(f"QoS {qos}, {name}", f"{max(found):10,.0f} /s  lost {lost[name]}")
            say(f"QoS {qos}, of a bridge", f"{ratio:13.2f}")
            say(f"QoS {qos}, CPU", ", ".join(f"{each} {us:.0f} µs" for each, us in cpu.items()))
            answers[f"qos_{qos}"] = {
                "ratio": round(ratio, 3),
                **{f"{name}_per_s": round(max(found)) for name, found in rates.items()},
                **{f"{name}_lost": count for name, count in lost.items()},
                "cpu_us": {name: round(us, 1) for name, us in cpu.items()},
            }
    return answers


async def _round(ports: tuple[int, int], qos: int, name: str) -> tuple[float, int]:
    """Publish as fast as acknowledgements allow; return the rate of arrivals and the losses."""
    loop = asyncio.get_running_loop()
    history: list[HistoryEvent] = []
    arrived, last = 0, 0.0

    def note(event: HistoryEvent) -> None:
        nonlocal arrived, last
        if event.stream.publisher == f"pub-{name}":
            history.append(event)
            if event.op is HistoryOperation.DELIVER:
                arrived, last = arrived + 1, event.at

    topic = f"bench/{name}"
    near, far = (BrokerAddress("127.0.0.1", port) for port in ports)
    subscriber = HistorySubscriber(far, f"sub-{name}", (topic,), note)
    probe = HistoryPublisher(near, f"probe-{name}", {topic: 1}, 50.0, lambda _: None)
    publisher = HistoryPublisher(near, f"pub-{name}", {topic: qos}, AS_FAST_AS_IT_GOES, note, COUNT)
    try:
        await asyncio.gather(subscriber.start(), probe.start(), publisher.start())
        probe.start_publishing()
        await wait_until(lambda: subscriber.arrival_count > 0, READY_S)
        await probe.stop_publishing()
        await wait_until(lambda: probe.is_idle, READY_S)
        began = last = loop.time()
        publisher.start_publishing()
        await wait_until(lambda: arrived >= COUNT or loop.time() - last > QUIET_S, TIMEOUT_S)
    finally:
        await asyncio.gather(probe.stop(), publisher.stop(), subscriber.stop())
    return arrived / max(last - began, 1e-6), judge_history(
        history, {f"sub-{name}": [topic]}
    ).fates["lost"]
