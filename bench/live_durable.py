"""Durable publications across one link: QoS 1 and 2 with journals at both ends, beside a bridge."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.console import say
from hansa.agent.brokers.connection import BrokerAddress
from hansa.chaos.bridges import Pair
from hansa.chaos.clients import Publisher, Subscriber
from hansa.chaos.history import Event, Op
from hansa.chaos.verdict import judge
from hansa.cli.clients import until
from hansa.local.federation import LocalFederation
from hansa.simulator.topologies import parse

ROUNDS = 3
COUNT = 3_000
AS_FAST_AS_IT_GOES = 100_000.0
READY_S = 20.0
TIMEOUT_S = 60.0


def measure() -> dict[str, object]:
    """QoS 1 and 2 per second over one link, all acknowledged and arrived, against a bridge."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, object]:
    answers: dict[str, object] = {}
    async with _hansa() as ours, _bridge() as theirs:
        for qos in (1, 2):
            rates: dict[str, list[float]] = {"bridge": [], "hansa": []}
            lost = dict.fromkeys(rates, 0)
            for number in range(ROUNDS):
                for name, ports in (("bridge", theirs), ("hansa", ours)):
                    rate, missing = await _round(ports, qos, f"{name}{qos}{number}")
                    rates[name].append(rate)
                    lost[name] += missing
            ratio = max(rates["hansa"]) / max(rates["bridge"])
            for name, found in rates.items():
                say(f"QoS {qos}, {name}", f"{max(found):10,.0f} /s  lost {lost[name]}")
            say(f"QoS {qos}, of a bridge", f"{ratio:13.2f}")
            answers[f"qos_{qos}"] = {
                "ratio": round(ratio, 3),
                **{f"{name}_per_s": round(max(found)) for name, found in rates.items()},
                **{f"{name}_lost": count for name, count in lost.items()},
            }
    return answers


async def _round(ports: tuple[int, int], qos: int, name: str) -> tuple[float, int]:
    """Publish as fast as acknowledgements allow; return the rate of arrivals, and what is lost."""
    loop = asyncio.get_running_loop()
    history: list[Event] = []
    arrived = 0

    def note(event: Event) -> None:
        nonlocal arrived
        if event.stream.publisher == f"pub-{name}":
            history.append(event)
            arrived += event.op is Op.DELIVER

    topic = f"bench/{name}"
    near, far = (BrokerAddress("127.0.0.1", port) for port in ports)
    subscriber = Subscriber(far, f"sub-{name}", (topic,), note)
    probe = Publisher(near, f"probe-{name}", {topic: 1}, 50.0, lambda _: None)
    publisher = Publisher(near, f"pub-{name}", {topic: qos}, AS_FAST_AS_IT_GOES, note, COUNT)
    try:
        await asyncio.gather(subscriber.start(), probe.start(), publisher.start())
        probe.go()
        await until(lambda: subscriber.arrivals > 0, READY_S)
        await probe.pause()
        await until(lambda: probe.is_quiet, READY_S)
        began = loop.time()
        publisher.go()
        await until(lambda: arrived >= COUNT, TIMEOUT_S)
        seconds = loop.time() - began
    finally:
        await asyncio.gather(probe.stop(), publisher.stop(), subscriber.stop())
    return COUNT / seconds, judge(history, {f"sub-{name}": [topic]}).fates["lost"]


@asynccontextmanager
async def _hansa() -> AsyncIterator[tuple[int, int]]:
    federation = LocalFederation(parse("line:2", 1), {}, persistent=True)
    try:
        await federation.start()
        await federation.wait_until_converged()
        yield federation.nodes[0].broker.port, federation.nodes[1].broker.port
    finally:
        await federation.stop()


@asynccontextmanager
async def _bridge() -> AsyncIterator[tuple[int, int]]:
    pair = Pair()
    try:
        await pair.start()
        assert pair.near is not None
        yield pair.near.port, pair.far.port
    finally:
        await pair.stop()
