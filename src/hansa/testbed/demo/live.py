"""The live demo: three real Mosquittos in a ring, with agents and clients.

All printed numbers are measured: differences on this process's clock, or counts of clients.
Readings are of QoS 0, so some are lost when an agent or broker is killed; the demo counts them.
While an agent is killed, orders of QoS 2 are published, too, and each must arrive once.

An interruption lasts from an event, such as `kill agent 0`, until the arrival of the first
publication after the last lost one. The report has the same figures (docs/pipeline.md).
"""

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hansa.agent.broker.connection import BrokerAddress
from hansa.console.terminal import make_table
from hansa.errors import UsageError
from hansa.launcher import command_line
from hansa.mqtt.types import Version
from hansa.pipeline.report.durations import interruption
from hansa.simulator.topologies import parse_topology
from hansa.testbed.clients import NumberedStream, RecordingClient, wait_until
from hansa.testbed.demo import bridge_ring, orders, readings
from hansa.testbed.demo.healing import OutageMeasurement, measure_outage
from hansa.testbed.demo.output import DemoOutput
from hansa.testbed.demo.report import CALM, DemoRecord, Event
from hansa.testbed.embedded import EmbeddedBrokerStub
from hansa.testbed.federation import LocalFederation

TOPIC = "plant/line1/temp"
WILDCARD = "plant/+/speed"
SPEEDS = ("plant/line1/speed", "plant/line2/speed")
UNSUBSCRIBED_TOPIC = "plant/line2/noise"

READINGS = 100
"""Readings of each sensor without faults."""
READINGS_INTERVAL_S = 0.01
INTERVAL_S = 0.002
"""Seconds between publications during faults: the resolution of interruptions."""
IN_FLIGHT_S = 0.1
"""Publications up to this old at a fault count as affected by it."""
BEFORE_S, AFTER_S = 0.5, 1.0
"""Seconds of traffic before a fault and after the recovery."""
HEAL_TIMEOUT_S = 20.0
DELIVERY_TIMEOUT_S = 5.0
SETTLE_S = 0.3
"""A broker's TCP may delay the bytes after its SUBACK once, by up to 40 ms (Nagle)."""
SECOND_COPY_S = 0.5
"""Seconds to wait for duplicates."""


@dataclass(slots=True)
class DemoState:
    """The federation, and one publisher and one subscriber per broker."""

    federation: LocalFederation
    subscribers: list[RecordingClient] = field(default_factory=list)
    publishers: list[RecordingClient] = field(default_factory=list)
    rows: list[tuple[str, str]] = field(default_factory=list)
    """Rows of the summary."""
    has_passed: bool = True
    record: DemoRecord | None = None
    """Expected content of the tables, if there is a report."""
    ids: list[str] = field(default_factory=list)
    """The node ids of the agents."""

    def address(self, number: int) -> BrokerAddress:
        return BrokerAddress("127.0.0.1", self.federation.nodes[number].broker.port)

    @property
    def is_embedded(self) -> bool:
        """Whether agents run embedded brokers, which support only MQTT 3.1.1."""
        return isinstance(self.federation.nodes[0].broker, EmbeddedBrokerStub)

    def client(self, number: int, name: str, *filters: str) -> RecordingClient:
        """Return a client that is not connected yet."""
        version = Version.V311 if self.is_embedded else Version.V5
        return RecordingClient(self.address(number), name, *filters, version=version)

    def add_result(self, what: str, result: str, is_good: bool = True) -> None:
        self.rows.append((what, result))
        self.has_passed = self.has_passed and is_good

    def disturb(self, event: Event, number: int) -> None:
        """Record a fault for the report."""
        if self.record:
            self.record.record_fault(str(number), event, self.ids[number])

    def observe(self, event: Event, source: int, sink: int, seen: OutageMeasurement) -> None:
        """Record deliveries from another broker to a client for the report."""
        if self.record and source != sink:
            self.record.observe(str(sink), event, (self.ids[source], self.ids[sink]), seen)

    def publishes(self, source: int, count: int) -> None:
        """Record publications of temperatures for the report."""
        if self.record:
            self.record.published[str(source)] += count

    def clear_arrivals(self) -> None:
        """Reset the clients before the next part."""
        for client in self.subscribers:
            client.arrivals.clear()
            client.arrival_count = 0


async def run_live_demo(
    output: DemoOutput,
    settings: dict[str, str],
    compare: bool,
    keep: bool,
    record: DemoRecord | None,
) -> int:
    """Run the demo; return exit code 0 if all results are as expected."""
    directory = record.directory if record else None
    federation = LocalFederation(parse_topology("ring:3", 1), settings, directory=directory)
    demo = DemoState(federation, record=record)
    try:
        await _start_federation(output, demo)
        await _exactly_once(output, demo)
        await _readings(output, demo)
        await _wildcard(output, demo)
        await _kill_agent(output, demo)
        if demo.is_embedded:
            output.say("\nKilling a broker and plain bridges need Mosquitto, and are left out.")
        else:
            await _kill_broker(output, demo)
            if compare:
                await _compare(output, demo)
        _summary(output, demo)
        if keep:
            await _keep_running(output, demo)
    finally:
        clients = [*demo.subscribers, *demo.publishers]
        await asyncio.gather(*(client.stop() for client in clients))
        await demo.federation.stop()
    return 0 if demo.has_passed else 1


# ---------------------------------------------------------------- without faults


async def _start_federation(output: DemoOutput, demo: DemoState) -> None:
    nodes = demo.federation.nodes
    ports = [node.broker.port for node in nodes]
    brokers = "small brokers in Python" if demo.is_embedded else "real Mosquittos"
    output.say(
        f"[bold]Hansa[/bold], live: {len(nodes)} {brokers} in a ring, an agent beside each,"
        " and ordinary MQTT clients."
    )
    with output.show_status("starting brokers and agents"):
        began = asyncio.get_running_loop().time()
        await demo.federation.start()
        await demo.federation.wait_until_converged()
        took = asyncio.get_running_loop().time() - began
    output.print_lines(
        (
            f"   0 :{ports[0]}",
            "    ╱    ╲",
            f"1 :{ports[1]} ── 2 :{ports[2]}",
        )
    )
    output.say(f"   Started and converged in {took:.1f} s.")
    demo.subscribers = [
        demo.client(number, f"display-{number}", TOPIC) for number in range(len(nodes))
    ]
    demo.publishers = [demo.client(number, f"sensor-{number}") for number in range(len(nodes))]
    for client in (*demo.subscribers, *demo.publishers):
        await client.start()
    await demo.federation.wait_until_converged()
    demo.ids = [str((await _status(demo, number))["node"]) for number in range(len(nodes))]
    await asyncio.sleep(SETTLE_S)


async def _exactly_once(output: DemoOutput, demo: DemoState) -> None:
    output.say(
        f"\n[bold]1. One publication.[/bold] A client at each broker subscribes to"
        f" {TOPIC}; a sensor publishes it at broker 0."
    )
    clients = demo.subscribers
    event = _event(CALM)
    demo.publishers[0].publish(TOPIC, readings.temperature(0)(0))
    demo.publishes(0, 1)
    await wait_until(lambda: all(client.arrivals for client in clients), DELIVERY_TIMEOUT_S)
    await asyncio.sleep(SECOND_COPY_S)
    for number, client in enumerate(clients):
        delay = client.arrivals[0].at - event.at if client.arrivals else math.nan
        after = f"after {delay * 1000:.1f} ms" if client.arrivals else ""
        output.say(f"   broker {number}: {_format_times(client.arrival_count)} {after}")
        demo.observe(event, 0, number, measure_outage([event.at], _from(client, 0)))
    counts = [client.arrival_count for client in clients]
    twice = sum(max(count - 1, 0) for count in counts)
    result = f"{sum(count > 0 for count in counts)} delivered, {twice} twice"
    demo.add_result("one publication in a ring of 3 brokers", result, set(counts) == {1})
    demo.clear_arrivals()


async def _readings(output: DemoOutput, demo: DemoState) -> None:
    """All sensors publish without faults: every reading must arrive at every broker."""
    event = _event(CALM)
    streams = [
        NumberedStream(client, TOPIC, READINGS_INTERVAL_S, readings.temperature(site))
        for site, client in enumerate(demo.publishers)
    ]
    await wait_until(
        lambda: min(len(stream.sent_at) for stream in streams) >= READINGS, HEAL_TIMEOUT_S
    )
    for stream in streams:
        await stream.stop()
    published = sum(len(stream.sent_at) for stream in streams)
    clients = demo.subscribers
    await wait_until(lambda: min(c.arrival_count for c in clients) >= published, DELIVERY_TIMEOUT_S)
    await asyncio.sleep(SECOND_COPY_S)
    seen = []
    for site, stream in enumerate(streams):
        demo.publishes(site, len(stream.sent_at))
        for number, client in enumerate(clients):
            seen.append(measure_outage(stream.sent_at, _from(client, site)))
            demo.observe(event, site, number, seen[-1])
    lost, twice = sum(each.lost for each in seen), sum(each.duplicates for each in seen)
    due = sum(each.published for each in seen)
    result = f"{due - lost} of {due} delivered, {twice} twice"
    output.say(f"   Then each of the three sensors publishes {READINGS} readings: {result}.")
    demo.add_result("readings of 3 sensors at 3 brokers", result, not lost and not twice)
    demo.clear_arrivals()


async def _wildcard(output: DemoOutput, demo: DemoState) -> None:
    output.say(
        f"\n[bold]2. A wildcard.[/bold] A client at broker 2 subscribes to {WILDCARD};"
        f" at broker 0 sensors publish"
        f" {', '.join(SPEEDS)} and {UNSUBSCRIBED_TOPIC}."
    )
    event = _event(CALM)
    before = (await _status(demo, 0))["counters"]
    wild = demo.client(2, "wildcard", WILDCARD)
    try:
        await wild.start()
        installed = await _wait_until_installed(demo, WILDCARD)
        for topic in (*SPEEDS, UNSUBSCRIBED_TOPIC):
            demo.publishers[0].publish(topic, readings.speed(0))
        await wait_until(lambda: wild.arrival_count >= len(SPEEDS), DELIVERY_TIMEOUT_S)
        await asyncio.sleep(SECOND_COPY_S)
        after = (await _status(demo, 0))["counters"]
        taken = _number(after, "captured") - _number(before, "captured")
        topics = Counter(arrival.topic for arrival in wild.arrivals)
        output.say(
            f"   {len(topics)} arrived, each {_format_times(max(topics.values(), default=0))};"
            f" the agent captured {taken} of the 3 at broker 0: a topic without subscribers is not"
            " forwarded."
        )
        good = topics == Counter(SPEEDS) and taken == len(SPEEDS) and installed
        result = f"{len(topics)} of 2 topics, {sum(topics.values()) - len(topics)} twice"
        demo.add_result(f"{WILDCARD} at another broker", result, good)
        demo.observe(event, 0, 2, _all_of(SPEEDS, topics))
    finally:
        await wild.stop()


# ---------------------------------------------------------------- faults


async def _kill_agent(output: DemoOutput, demo: DemoState) -> None:
    """Kill the agent of the core: in a ring of three other publications may pass through it."""
    victim = await _find_core(demo)
    source, sink = (number for number in range(3) if number != victim)
    path = "through it" if await _passes_through(demo, source, victim) else "past it"
    output.say(
        f"\n[bold]3. kill -9 of the agent at {victim}[/bold], the core; later it is restarted."
        f" The sensor at {source} publishes {1 / INTERVAL_S:.0f} times a second; the path to {sink}"
        f" leads {path}."
    )
    order_stream = await _start_orders(demo, source)
    begun = _event(CALM)
    stream = _stream(demo, source)
    try:
        await asyncio.sleep(BEFORE_S)
        killed = _event(f"kill agent {victim}")
        await _kill(demo.federation.nodes[victim].agent)
        demo.disturb(killed, victim)
        await _wait_for_traffic(demo.subscribers[sink], killed.at)
        started = _event(f"start agent {victim}")
        await demo.federation.start_agent(victim)
        demo.disturb(started, victim)
        await _wait_for_traffic(demo.subscribers[victim], started.at)
        if order_stream:
            await order_stream.finish(HEAL_TIMEOUT_S, SECOND_COPY_S)
    finally:
        await stream.stop()
        if order_stream:
            await order_stream.stop()
    await asyncio.sleep(SECOND_COPY_S)
    pairs = ((source, sink), (source, victim))
    _account(output, demo, stream, (begun, killed, started), pairs)
    if order_stream:
        _account_orders(output, demo, order_stream, killed, pairs)
    demo.publishes(source, len(stream.sent_at))
    demo.clear_arrivals()


async def _start_orders(demo: DemoState, source: int) -> orders.OrderStream | None:
    """Start the orders, if the brokers keep sessions."""
    if demo.is_embedded:
        return None
    sinks = {number: demo.address(number) for number in range(3) if number != source}
    stream = orders.OrderStream(demo.address(source), sinks)
    await stream.connect(DELIVERY_TIMEOUT_S)
    await demo.federation.wait_until_converged()
    stream.start()
    return stream


def _account_orders(
    output: DemoOutput,
    demo: DemoState,
    stream: orders.OrderStream,
    killed: Event,
    pairs: Sequence[tuple[int, int]],
) -> None:
    event = Event(f"orders at QoS 2, {killed.what}", killed.at, killed.time_ns)
    for source, sink in pairs:
        seen = stream.measure(sink)
        demo.observe(event, source, sink, seen)
        result = f"{seen.arrived} of {seen.published} delivered, {seen.duplicates} twice"
        what = f"{orders.RATE:.0f} orders per second at QoS 2, {source} to {sink}"
        output.say(f"   {what}: {result}")
        demo.add_result(what, result, not seen.lost and not seen.duplicates)


async def _kill_broker(output: DemoOutput, demo: DemoState) -> None:
    """Kill a broker and restart it at once, as a service manager does."""
    output.say(
        "\n[bold]4. kill -9 of the broker at 2[/bold]; it is restarted at once, its client and"
        " its agent reconnect. The sensor is at 0."
    )
    begun = _event(CALM)
    stream = _stream(demo, 0)
    broker = demo.federation.nodes[2].broker
    try:
        await asyncio.sleep(BEFORE_S)
        killed = _event("kill broker 2")
        await _kill(broker.process)
        demo.disturb(killed, 2)
        await broker.start()
        await _wait_for_traffic(demo.subscribers[2], killed.at)
    finally:
        await stream.stop()
    await asyncio.sleep(SECOND_COPY_S)
    _account(output, demo, stream, (begun, killed), ((0, 2), (0, 1)))
    demo.publishes(0, len(stream.sent_at))
    demo.clear_arrivals()


def _event(what: str) -> Event:
    return Event(what, asyncio.get_running_loop().time())


def _stream(demo: DemoState, source: int) -> NumberedStream:
    return NumberedStream(demo.publishers[source], TOPIC, INTERVAL_S, readings.temperature(source))


async def _kill(process: asyncio.subprocess.Process | None) -> None:
    assert process is not None
    process.kill()
    await process.wait()


async def _wait_for_traffic(client: RecordingClient, since: float) -> None:
    """Wait until a publication arrives after `since`, then AFTER_S seconds more."""
    await wait_until(
        lambda: bool(client.arrivals) and client.arrivals[-1].at > since + 2 * INTERVAL_S,
        HEAL_TIMEOUT_S,
    )
    await asyncio.sleep(AFTER_S)


def _account(
    output: DemoOutput,
    demo: DemoState,
    stream: NumberedStream,
    events: Sequence[Event],
    pairs: Sequence[tuple[int, int]],
) -> None:
    """Print and record the deliveries after each event, up to the next one."""
    for event, following in zip(events, (*events[1:], None), strict=True):
        end = following.at - IN_FLIGHT_S if following else math.inf
        for source, sink in pairs:
            arrivals = _from(demo.subscribers[sink], source)
            seen = measure_outage(stream.sent_at, arrivals, event.at, end, IN_FLIGHT_S)
            demo.observe(event, source, sink, seen)
            if event.what == CALM:
                continue
            what = f"{event.what}, {source} to {sink}"
            result = f"interruption {interruption(seen.interruption_s)}; {_format_losses(seen)}"
            output.say(f"   {what}: {result}")
            is_down = event.what == f"kill agent {sink}"  # nothing arrives until its restart
            is_healed = seen.interruption_s is not None or is_down
            demo.add_result(what, result, is_healed and not seen.duplicates)


def _format_losses(outage: OutageMeasurement) -> str:
    return f"{outage.lost} of {outage.published} lost, {outage.duplicates} twice"


# ---------------------------------------------------------------- comparison, summary


async def _compare(output: DemoOutput, demo: DemoState) -> None:
    output.say(
        "\n[bold]5. The same ring with plain Mosquitto bridges[/bold], for"
        f" {bridge_ring.LOOP_S:g} s. One publication."
    )
    with output.show_status("starting brokers and bridges"):
        count = await bridge_ring.count_looping_deliveries()
    output.say(f"   One subscriber got it {_format_times(count)} before the brokers were stopped.")
    what = "one publication in a ring of plain bridges"
    demo.add_result(what, f"{count:,} deliveries to one subscriber in {bridge_ring.LOOP_S:g} s")


def _summary(output: DemoOutput, demo: DemoState) -> None:
    made = make_table("test", "measured result")
    for row in demo.rows:
        made.add_row(*row)
    output.print_table(made)
    output.say(
        "Interruption: from the event until the first publication after the last lost one arrives."
        "\nReadings are lost at a killed agent or broker: QoS 0 allows that. Orders are of QoS 2."
    )
    if not demo.has_passed:
        output.say("[red]Some results are not as expected.[/red]")


async def _keep_running(output: DemoOutput, demo: DemoState) -> None:
    ports = [node.broker.port for node in demo.federation.nodes]
    output.say("\nThe federation keeps running; Ctrl-C stops it. Try, in other terminals:")
    output.say(f"  mosquitto_sub -p {ports[2]} -t 'plant/#' -v")
    output.say(f"  mosquitto_pub -p {ports[0]} -t plant/line1/temp -m 21.5")
    output.say(f"  {command_line('top', demo.federation.nodes[0].admin_url)}")
    await asyncio.Event().wait()


# ---------------------------------------------------------------- status of agents


async def _status(demo: DemoState, number: int) -> dict[str, object]:
    return await asyncio.to_thread(demo.federation.nodes[number].status)


async def _wait_until_installed(demo: DemoState, topic_filter: str) -> bool:
    """Wait until the interest of broker 2 in a filter is installed at the agent of broker 0."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DELIVERY_TIMEOUT_S
    while loop.time() < deadline:
        status, far = await _status(demo, 0), await _status(demo, 2)
        groups, interest = status["groups"], far["interest"]
        assert isinstance(groups, dict)
        assert isinstance(interest, dict)
        if topic_filter in groups and interest["installed"]:
            return True
        await asyncio.sleep(0.02)
    return False


async def _find_core(demo: DemoState) -> int:
    """Return the node that is the core of the topic."""
    statuses = [await _status(demo, number) for number in range(3)]
    groups = statuses[0]["groups"]
    assert isinstance(groups, dict)
    core = groups[TOPIC]["core"]
    nodes = [status["node"] for status in statuses]
    if core not in nodes:
        raise UsageError(f"the federation has no core for {TOPIC}")
    return nodes.index(core)


async def _passes_through(demo: DemoState, source: int, core: int) -> bool:
    """Whether an agent forwards the topic only to the core."""
    groups, node = (await _status(demo, source))["groups"], (await _status(demo, core))["node"]
    assert isinstance(groups, dict)
    return {*groups[TOPIC]["parents"], *groups[TOPIC]["children"]} == {node}


def _number(counters: object, name: str) -> int:
    assert isinstance(counters, dict)
    return int(counters.get(name, 0))


def _from(client: RecordingClient, site: int) -> Iterable[tuple[int, float]]:
    """Yield number and arrival time of each reading of a site."""
    for arrival in client.arrivals:
        found, number = readings.source_of(arrival.payload)
        if found == site:
            yield number, arrival.at


def _all_of(topics: Sequence[str], arrived: Counter[str]) -> OutageMeasurement:
    """Return the deliveries of one publication to each topic."""
    lost = sum(not arrived[topic] for topic in topics)
    return OutageMeasurement(None, len(topics), lost, arrived.total() - len(arrived))


def _format_times(count: int) -> str:
    return {0: "not at all", 1: "once", 2: "twice"}.get(count, f"{count:,} times")
