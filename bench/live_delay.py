"""Delay of a publication over one hop and over five, compared with bridges and with relays in C."""

import asyncio
import statistics
from contextlib import AsyncExitStack

from bench.console import say
from bench.live import bridged, federation, open_load
from bench.peer_kinds import Unavailable
from bench.relay_chain import relayed

ROUNDS = 3
PER_SECOND = 400
COUNT = 400


def measure() -> dict[str, object]:
    """Median delay at 400 messages/s: 1 hop (goal 1.3 of relays in C), 5 hops (1.5 of bridges)."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, object]:
    answers: dict[str, object] = {}
    async with federation("line:6") as running:
        ports = [node.broker.port for node in running.nodes]
        alone = await median_delay(ports[0], ports[0])
        say("one broker", f"{alone:8.3f} ms")
        for hops in (1, 5):
            async with AsyncExitStack() as stack:
                answers |= await _compare(stack, hops, (ports[0], ports[hops]))
    return answers


async def _compare(
    stack: AsyncExitStack, hops: int, our_ports: tuple[int, int]
) -> dict[str, object]:
    """Measure Hansa and, over as many hops, bridges and relays, by turns."""
    chain = [(number, number + 1) for number in range(hops)]
    bridges = await stack.enter_async_context(bridged(chain))
    places = {"bridges": (bridges[0].port, bridges[hops].port)}
    try:
        places["relays in C"] = await stack.enter_async_context(relayed(hops))
    except Unavailable as reason:
        say("relays in C: skipped", str(reason))
    places["hansa"] = our_ports
    medians: dict[str, list[float]] = {name: [] for name in places}
    for _ in range(ROUNDS):
        for name, (source, target) in places.items():
            medians[name].append(await median_delay(source, target))
    best = {name: min(values) for name, values in medians.items()}
    answers: dict[str, object] = {f"{name}_{hops}_hops_ms": round(best[name], 3) for name in best}
    for name, ms in best.items():
        say(f"{name}, {hops} hops", f"{ms:8.3f} ms")
    for name in places:
        if name != "hansa":
            ratio = best["hansa"] / best[name]
            say(f"Hansa of {name}, {hops} hops", f"{ratio:8.2f}")
            answers[f"hansa_of_{name}_{hops}_hops"] = round(ratio, 2)
    return answers


async def median_delay(source: int, target: int) -> float:
    """Return the median of one round; the first tenth only warms up."""
    with open_load(source, [target]) as load:
        delays = await asyncio.to_thread(load.delays, COUNT, PER_SECOND)
    return statistics.median(delays[COUNT // 10 :])
