"""Interruption of traffic after a fault: nine brokers in the papers' grid, one fault per run.

A sensor at node 6 publishes numbers at a constant rate. Traffic is healed when the first
publication after the last lost one arrives, counted from the fault; if a further loss follows the
first arrival, that is later. The benchmark repairs the fault before the next run, as a service
manager would, and also measures the time to recover from the repair.
"""

import asyncio
import os
import signal
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.console import say
from hansa.agent.broker.connection import BrokerAddress
from hansa.simulator.topologies import parse_topology
from hansa.testbed.clients import NumberedStream, RecordingClient, wait_until
from hansa.testbed.demo.healing import OutageMeasurement
from hansa.testbed.demo.healing import measure_outage as measure_healing
from hansa.testbed.federation import LinkProfile, LocalFederation

TOPIC = "plant/line1/temp"
SOURCE = 6
SINKS = (4, 2, 8)
"""Where subscribers are; the first one to come makes its node the core."""
UPPER_ROW = ((0, 3), (1, 4), (2, 5))
"""Links whose loss parts 0, 1 and 2 from the others."""
INTERVAL_S = 0.005
BEFORE_S, AFTER_S = 0.5, 1.0
TIMEOUT_S = 30.0
PARTED_S = 5.0
"""Duration of a partition after its detection: until the redial interval has reached its
maximum."""
LATE_S = 0.3
"""Seconds to wait for publications in flight when the stream stops."""


@dataclass(slots=True)
class Scene:
    """The federation, its clients, and the measurements per fault."""

    federation: LocalFederation
    publisher: RecordingClient
    subscribers: dict[int, RecordingClient]
    found: dict[str, list[OutageMeasurement]] = field(default_factory=dict)

    async def status(self, number: int) -> dict[str, Any]:
        """The status of an agent."""
        return await asyncio.to_thread(self.federation.nodes[number].status)

    async def numbers(self) -> dict[str, int]:
        """Number of each node by id."""
        every = range(len(self.federation.nodes))
        return {(await self.status(number))["node"]: number for number in every}

    async def core(self) -> int:
        """The node that leads the topic's group."""
        core = (await self.status(SOURCE))["groups"][TOPIC]["core"]
        return (await self.numbers())[core]

    async def next_hop(self) -> int:
        """The neighbour that the publisher's agent hands its publications to."""
        before = await self.status(SOURCE)
        async with self.stream():
            await asyncio.sleep(BEFORE_S)
        after = await self.status(SOURCE)

        def sent(node: str) -> int:
            return int(
                after["neighbours"][node]["bytes_out"] - before["neighbours"][node]["bytes_out"]
            )

        return (await self.numbers())[max(after["neighbours"], key=sent)]

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[NumberedStream]:
        """Publish for a while to newly connected subscribers."""
        for client in self.subscribers.values():
            client.arrivals.clear()
        stream = NumberedStream(self.publisher, TOPIC, INTERVAL_S)
        try:
            yield stream
        finally:
            await stream.stop()
            await asyncio.sleep(LATE_S)

    async def outage(self, what: str, sink: int, fault: Callable[[], Awaitable[object]]) -> None:
        """Cause a fault under traffic and record the interruption of the subscriber at `sink`."""
        loop = asyncio.get_running_loop()
        client = self.subscribers[sink]
        async with self.stream() as stream:
            await asyncio.sleep(BEFORE_S)
            fault_at = loop.time()
            await fault()
            await wait_until(lambda: _flows(stream, client, loop.time(), fault_at), TIMEOUT_S)
        arrivals = [(int(arrival.payload), arrival.at) for arrival in client.arrivals]
        healing = measure_healing(stream.sent_at, arrivals, fault_at)
        runs = self.found.setdefault(what, [])
        runs.append(healing)
        say(f"  {what}, run {len(runs)}", _fate(healing))

    def agent(self, number: int, signal_number: signal.Signals) -> Callable[[], Awaitable[object]]:
        """A fault: send a signal to an agent."""

        async def fault() -> None:
            agent = self.federation.nodes[number].agent
            assert agent is not None
            os.kill(agent.pid, signal_number)
            if signal_number == signal.SIGKILL:
                await agent.wait()

        return fault

    async def settle(self) -> None:
        """Wait until everything is as before the fault."""
        await self.federation.wait_until_converged()


def _flows(stream: NumberedStream, client: RecordingClient, now: float, fault_at: float) -> bool:
    """Whether all publications of the last second since the fault have arrived, except for the
    newest."""
    recent = [
        number
        for number, at in enumerate(stream.sent_at[-1000:], max(0, len(stream.sent_at) - 1000))
        if now - AFTER_S < at < now - LATE_S
    ]
    if now < fault_at + AFTER_S + LATE_S:
        return False
    came = {int(arrival.payload) for arrival in client.arrivals}
    return came.issuperset(recent)


# ---------------------------------------------------------------- the faults


async def _agent_on_the_path(scene: Scene) -> None:
    victim = await scene.next_hop()
    await scene.outage("kill -9 of an agent on the path", 2, scene.agent(victim, signal.SIGKILL))
    await scene.federation.start_agent(victim)
    await scene.settle()


async def _agent_of_the_core(scene: Scene) -> None:
    victim = await scene.core()
    sink = next(number for number in (2, 8) if number != victim)
    await scene.outage("kill -9 of the core's agent", sink, scene.agent(victim, signal.SIGKILL))
    await scene.outage(
        "that agent started again, to its own subscriber",
        victim,
        lambda: scene.federation.start_agent(victim),
    )
    await scene.settle()


async def _broker_on_the_path(scene: Scene) -> None:
    """The core's broker: its agent keeps forwarding for others."""
    victim = await scene.core()
    sink = next(number for number in (2, 8) if number != victim)
    broker = scene.federation.nodes[victim].broker

    async def fault() -> None:
        assert broker.process is not None
        broker.process.kill()
        await broker.process.wait()

    await scene.outage("kill -9 of the core's broker, to others", sink, fault)
    await scene.outage("that broker started again, to its own subscriber", victim, broker.start)
    await scene.settle()


async def _broker_of_the_subscriber(scene: Scene) -> None:
    broker = scene.federation.nodes[2].broker

    async def fault() -> None:
        assert broker.process is not None
        broker.process.kill()
        await broker.process.wait()
        await broker.start()

    await scene.outage("kill -9 of the subscriber's broker, started at once", 2, fault)
    await scene.settle()


async def _hanging_agent(scene: Scene) -> None:
    victim = await scene.next_hop()
    await scene.outage("SIGSTOP of an agent on the path", 2, scene.agent(victim, signal.SIGSTOP))
    await scene.outage("SIGCONT of that agent", 2, scene.agent(victim, signal.SIGCONT))
    await scene.settle()


async def _cut_link(scene: Scene) -> None:
    other = await scene.next_hop()

    async def fault() -> None:
        scene.federation.cut_link(SOURCE, other)

    async def end() -> None:
        scene.federation.restore_link(SOURCE, other)

    await scene.outage("a link on the path cut, without a word", 2, fault)
    await scene.outage("that link mended", 2, end)
    await scene.settle()


async def _partition(scene: Scene) -> None:
    for link in UPPER_ROW:
        scene.federation.cut_link(*link)
    while len((await scene.status(2))["reachable_nodes"]) != len(UPPER_ROW):
        await asyncio.sleep(0.1)
    await asyncio.sleep(PARTED_S)

    async def end() -> None:
        for link in UPPER_ROW:
            scene.federation.restore_link(*link)

    await scene.outage("a partition that heals", 2, end)
    await scene.settle()


FAULTS = (
    _agent_on_the_path,
    _agent_of_the_core,
    _broker_on_the_path,
    _broker_of_the_subscriber,
    _hanging_agent,
    _cut_link,
    _partition,
)


def measure(runs: int = 10) -> dict[str, object]:
    """From a fault to the first publication that gets through again: median and maximum."""
    return asyncio.run(_measure(runs))


async def _measure(runs: int) -> dict[str, object]:
    scene = await _begin()
    try:
        for fault in FAULTS:
            for _ in range(runs):
                await fault(scene)
    finally:
        clients = [scene.publisher, *scene.subscribers.values()]
        await asyncio.gather(*(client.stop() for client in clients))
        await scene.federation.stop()
    return {what: _answer(what, healings) for what, healings in scene.found.items()}


async def _begin() -> Scene:
    federation = LocalFederation(
        parse_topology("grid:3x3", seed=1),
        {"HANSA_LOG": "warning"},
        link_profile=LinkProfile(can_cut=True),
    )
    addresses = [BrokerAddress("127.0.0.1", node.broker.port) for node in federation.nodes]
    scene = Scene(
        federation,
        RecordingClient(addresses[SOURCE], "sensor"),
        {
            number: RecordingClient(addresses[number], f"display-{number}", TOPIC)
            for number in SINKS
        },
    )
    try:
        await federation.start()
        await federation.wait_until_converged()
        await scene.publisher.start()
        for client in scene.subscribers.values():
            await client.start()
            await federation.wait_until_converged()
    except BaseException:
        await federation.stop()
        raise
    return scene


def _answer(what: str, healings: list[OutageMeasurement]) -> dict[str, object]:
    times = [1000 * healing.resumed_s for healing in healings if healing.resumed_s is not None]
    unhealed = len(healings) - len(times)
    lost = [healing.lost for healing in healings]
    twice = sum(healing.duplicates for healing in healings)
    answer: dict[str, object] = {
        "runs": len(healings),
        "median_ms": round(statistics.median(times)) if times else None,
        "max_ms": round(max(times)) if times else None,
        "lost_median": round(statistics.median(lost)),
        "twice": twice,
        "unhealed": unhealed,
    }
    say(
        what,
        f"median {answer['median_ms']} ms, at most {answer['max_ms']} ms;"
        f" {answer['lost_median']} lost, {twice} twice" + (f"; {unhealed} NOT" if unhealed else ""),
    )
    return answer


def _fate(healing: OutageMeasurement) -> str:
    seconds = healing.resumed_s
    when = "not healed" if seconds is None else f"{1000 * seconds:.0f} ms"
    return f"{when}; {healing.lost} of {healing.published} lost, {healing.duplicates} twice"
