"""The live demo: real Mosquittos in a ring, agents and clients, measured here and now.

Every number that it prints is a difference on this process's clock, or was counted by a client. All
publications are of QoS 0, so what meets a dead agent or broker is lost, and the demo says how much.

An interruption lasts from the event, as `kill agent 0`, until the first publication after the last
lost one arrives at the client. The report has the same figures (docs/pipeline.md).
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
from hansa.testbed.demo import bridge_ring, readings
from hansa.testbed.demo.healing import OutageMeasurement, measure_outage
from hansa.testbed.demo.report import CALM, DemoRecord, Event
from hansa.testbed.demo.story import DemoOutput
from hansa.testbed.embedded import EmbeddedBrokerStub
from hansa.testbed.federation import LocalFederation

TOPIC = "plant/line1/temp"
WILDCARD = "plant/+/speed"
SPEEDS = ("plant/line1/speed", "plant/line2/speed")
UNSUBSCRIBED_TOPIC = "plant/line2/noise"

READINGS = 100
"""Readings of each sensor while nothing is being killed."""
READINGS_INTERVAL_S = 0.01
INTERVAL_S = 0.002
"""Between two publications while something is being killed: the resolution of interruptions."""
IN_FLIGHT_S = 0.1
"""Publications that are younger than this when something is killed count as met by that."""
BEFORE_S, AFTER_S = 0.5, 1.0
"""How long traffic flows before a fault, and after it is healed."""
HEAL_TIMEOUT_S = 20.0
DELIVERY_TIMEOUT_S = 5.0
SETTLE_S = 0.3
"""A broker may hold back what follows its SUBACK until that is acknowledged: up to 40 ms, once."""
SECOND_COPY_S = 0.5
"""How long to look for a second copy of what has arrived."""


@dataclass(slots=True)
class DemoState:
    """The federation and the clients that the story is about, one of each kind per broker."""

    federation: LocalFederation
    subscribers: list[RecordingClient] = field(default_factory=list)
    publishers: list[RecordingClient] = field(default_factory=list)
    rows: list[tuple[str, str]] = field(default_factory=list)
    """The summary, as it grows."""
    has_passed: bool = True
    record: DemoRecord | None = None
    """What the tables are compared with, if there will be any."""
    ids: list[str] = field(default_factory=list)
    """The node ids of the agents."""

    def address(self, number: int) -> BrokerAddress:
        """Where a broker is."""
        return BrokerAddress("127.0.0.1", self.federation.nodes[number].broker.port)

    @property
    def is_embedded(self) -> bool:
        """Whether brokers live in their agents; these only know MQTT 3.1.1."""
        return isinstance(self.federation.nodes[0].broker, EmbeddedBrokerStub)

    def client(self, number: int, name: str, *filters: str) -> RecordingClient:
        """Return a client of a broker, not connected yet."""
        version = Version.V311 if self.is_embedded else Version.V5
        return RecordingClient(self.address(number), name, *filters, version=version)

    def add_result(self, what: str, result: str, is_good: bool = True) -> None:
        """Add a line to the summary."""
        self.rows.append((what, result))
        self.has_passed = self.has_passed and is_good

    def disturb(self, event: Event, number: int) -> None:
        """Keep for the tables what was just done to a broker or its agent."""
        if self.record:
            self.record.record_fault(str(number), event, self.ids[number])

    def observe(self, event: Event, source: int, sink: int, seen: OutageMeasurement) -> None:
        """Keep for the tables what a client received of the sensor at another broker."""
        if self.record and source != sink:
            self.record.observe(str(sink), event, (self.ids[source], self.ids[sink]), seen)

    def publishes(self, source: int, count: int) -> None:
        """Keep for the tables how many temperatures a sensor has published."""
        if self.record:
            self.record.published[str(source)] += count

    def forget(self) -> None:
        """Begin a new part of the story: what arrived so far has been counted."""
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
    """Tell the story and return the exit code: 0 if all was as it should be."""
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
            output.say(
                "\nWhat needs a real Mosquitto is left out: killing a broker, plain bridges."
            )
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


# ---------------------------------------------------------------- the beginning


async def _start_federation(story: DemoOutput, scene: DemoState) -> None:
    nodes = scene.federation.nodes
    ports = [node.broker.port for node in nodes]
    brokers = "small brokers in Python" if scene.is_embedded else "real Mosquittos"
    story.say(
        f"[bold]Hansa[/bold], live: {len(nodes)} {brokers} in a ring, an agent beside each,"
        " MQTT clients that know nothing of it."
    )
    with story.show_status("starting brokers and agents"):
        began = asyncio.get_running_loop().time()
        await scene.federation.start()
        await scene.federation.wait_until_converged()
        took = asyncio.get_running_loop().time() - began
    story.print_lines(
        (
            f"   0 :{ports[0]}",
            "    ╱    ╲",
            f"1 :{ports[1]} ── 2 :{ports[2]}",
        )
    )
    story.say(f"   Started, found each other and settled in {took:.1f} s.")
    scene.subscribers = [
        scene.client(number, f"display-{number}", TOPIC) for number in range(len(nodes))
    ]
    scene.publishers = [scene.client(number, f"sensor-{number}") for number in range(len(nodes))]
    for client in (*scene.subscribers, *scene.publishers):
        await client.start()
    await scene.federation.wait_until_converged()
    scene.ids = [str((await _status(scene, number))["node"]) for number in range(len(nodes))]
    await asyncio.sleep(SETTLE_S)


async def _exactly_once(story: DemoOutput, scene: DemoState) -> None:
    story.say(
        f"\n[bold]1. One publication.[/bold] A client at each broker subscribes to"
        f" {TOPIC}; a sensor publishes it at broker 0."
    )
    clients = scene.subscribers
    event = _event(CALM)
    scene.publishers[0].publish(TOPIC, readings.temperature(0)(0))
    scene.publishes(0, 1)
    await wait_until(lambda: all(client.arrivals for client in clients), DELIVERY_TIMEOUT_S)
    await asyncio.sleep(SECOND_COPY_S)
    for number, client in enumerate(clients):
        delay = client.arrivals[0].at - event.at if client.arrivals else math.nan
        after = f"after {delay * 1000:.1f} ms" if client.arrivals else ""
        story.say(f"   broker {number}: {_format_times(client.arrival_count)} {after}")
        scene.observe(event, 0, number, measure_outage([event.at], _from(client, 0)))
    counts = [client.arrival_count for client in clients]
    twice = sum(max(count - 1, 0) for count in counts)
    result = f"{sum(count > 0 for count in counts)} delivered, {twice} twice"
    scene.add_result("one publication in a ring of 3 brokers", result, set(counts) == {1})
    scene.forget()


async def _readings(story: DemoOutput, scene: DemoState) -> None:
    """Let all sensors publish while nothing fails: every reading has to arrive everywhere."""
    event = _event(CALM)
    streams = [
        NumberedStream(client, TOPIC, READINGS_INTERVAL_S, readings.temperature(site))
        for site, client in enumerate(scene.publishers)
    ]
    await wait_until(
        lambda: min(len(stream.sent_at) for stream in streams) >= READINGS, HEAL_TIMEOUT_S
    )
    for stream in streams:
        await stream.stop()
    published = sum(len(stream.sent_at) for stream in streams)
    clients = scene.subscribers
    await wait_until(lambda: min(c.arrival_count for c in clients) >= published, DELIVERY_TIMEOUT_S)
    await asyncio.sleep(SECOND_COPY_S)
    seen = []
    for site, stream in enumerate(streams):
        scene.publishes(site, len(stream.sent_at))
        for number, client in enumerate(clients):
            seen.append(measure_outage(stream.sent_at, _from(client, site)))
            scene.observe(event, site, number, seen[-1])
    lost, twice = sum(each.lost for each in seen), sum(each.duplicates for each in seen)
    due = sum(each.published for each in seen)
    result = f"{due - lost} of {due} delivered, {twice} twice"
    story.say(f"   Then each of the three sensors publishes {READINGS} readings: {result}.")
    scene.add_result("readings of 3 sensors at 3 brokers", result, not lost and not twice)
    scene.forget()


async def _wildcard(story: DemoOutput, scene: DemoState) -> None:
    story.say(
        f"\n[bold]2. A wildcard.[/bold] A client at broker 2 subscribes to {WILDCARD};"
        f" at broker 0 sensors publish"
        f" {', '.join(SPEEDS)} and {UNSUBSCRIBED_TOPIC}."
    )
    event = _event(CALM)
    before = (await _status(scene, 0))["counters"]
    wild = scene.client(2, "wildcard", WILDCARD)
    try:
        await wild.start()
        installed = await _wait_until_installed(scene, WILDCARD)
        for topic in (*SPEEDS, UNSUBSCRIBED_TOPIC):
            scene.publishers[0].publish(topic, readings.speed(0))
        await wait_until(lambda: wild.arrival_count >= len(SPEEDS), DELIVERY_TIMEOUT_S)
        await asyncio.sleep(SECOND_COPY_S)
        after = (await _status(scene, 0))["counters"]
        taken = _number(after, "captured") - _number(before, "captured")
        topics = Counter(arrival.topic for arrival in wild.arrivals)
        story.say(
            f"   {len(topics)} arrived, each {_format_times(max(topics.values(), default=0))};"
            f" the agent took {taken} of the 3 from broker 0: a topic without subscribers stays"
            " there."
        )
        good = topics == Counter(SPEEDS) and taken == len(SPEEDS) and installed
        result = f"{len(topics)} of 2 topics, {sum(topics.values()) - len(topics)} twice"
        scene.add_result(f"{WILDCARD} at another broker", result, good)
        scene.observe(event, 0, 2, _all_of(SPEEDS, topics))
    finally:
        await wild.stop()


# ---------------------------------------------------------------- faults


async def _kill_agent(story: DemoOutput, scene: DemoState) -> None:
    """Kill the agent of the core: in a ring of three the others' publications pass through it."""
    victim = await _find_core(scene)
    source, sink = (number for number in range(3) if number != victim)
    path = "through it" if await _passes_through(scene, source, victim) else "past it"
    story.say(
        f"\n[bold]3. kill -9 of the agent at {victim}[/bold], the core; later it is started again."
        f" The sensor at {source} publishes {1 / INTERVAL_S:.0f} times a second; the path to {sink}"
        f" leads {path}."
    )
    begun = _event(CALM)
    stream = _stream(scene, source)
    try:
        await asyncio.sleep(BEFORE_S)
        killed = _event(f"kill agent {victim}")
        await _kill(scene.federation.nodes[victim].agent)
        scene.disturb(killed, victim)
        await _wait_for_traffic(scene.subscribers[sink], killed.at)
        started = _event(f"start agent {victim}")
        await scene.federation.start_agent(victim)
        scene.disturb(started, victim)
        await _wait_for_traffic(scene.subscribers[victim], started.at)
    finally:
        await stream.stop()
    await asyncio.sleep(SECOND_COPY_S)
    pairs = ((source, sink), (source, victim))
    _account(story, scene, stream, (begun, killed, started), pairs)
    scene.publishes(source, len(stream.sent_at))
    scene.forget()


async def _kill_broker(story: DemoOutput, scene: DemoState) -> None:
    """Kill a broker and start it at once, as a service manager does."""
    story.say(
        "\n[bold]4. kill -9 of the broker at 2[/bold]; it is started again at once, its client and"
        " its agent reconnect. The sensor is at 0."
    )
    begun = _event(CALM)
    stream = _stream(scene, 0)
    broker = scene.federation.nodes[2].broker
    try:
        await asyncio.sleep(BEFORE_S)
        killed = _event("kill broker 2")
        await _kill(broker.process)
        scene.disturb(killed, 2)
        await broker.start()
        await _wait_for_traffic(scene.subscribers[2], killed.at)
    finally:
        await stream.stop()
    await asyncio.sleep(SECOND_COPY_S)
    _account(story, scene, stream, (begun, killed), ((0, 2), (0, 1)))
    scene.publishes(0, len(stream.sent_at))
    scene.forget()


def _event(what: str) -> Event:
    return Event(what, asyncio.get_running_loop().time())


def _stream(scene: DemoState, source: int) -> NumberedStream:
    return NumberedStream(scene.publishers[source], TOPIC, INTERVAL_S, readings.temperature(source))


async def _kill(process: asyncio.subprocess.Process | None) -> None:
    assert process is not None
    process.kill()
    await process.wait()


async def _wait_for_traffic(client: RecordingClient, since: float) -> None:
    """Wait until something gets through again, then let traffic flow a while."""
    await wait_until(
        lambda: bool(client.arrivals) and client.arrivals[-1].at > since + 2 * INTERVAL_S,
        HEAL_TIMEOUT_S,
    )
    await asyncio.sleep(AFTER_S)


def _account(
    story: DemoOutput,
    scene: DemoState,
    stream: NumberedStream,
    events: Sequence[Event],
    pairs: Sequence[tuple[int, int]],
) -> None:
    """Say what clients received after each event, up to the next one."""
    for event, following in zip(events, (*events[1:], None), strict=True):
        end = following.at - IN_FLIGHT_S if following else math.inf
        for source, sink in pairs:
            arrivals = _from(scene.subscribers[sink], source)
            seen = measure_outage(stream.sent_at, arrivals, event.at, end, IN_FLIGHT_S)
            scene.observe(event, source, sink, seen)
            if event.what == CALM:
                continue
            what = f"{event.what}, {source} to {sink}"
            result = f"interruption {interruption(seen.interruption_s)}; {_format_losses(seen)}"
            story.say(f"   {what}: {result}")
            is_dead = event.what == f"kill agent {sink}"  # then nothing arrives until its start
            is_healed = seen.interruption_s is not None or is_dead
            scene.add_result(what, result, is_healed and not seen.duplicates)


def _format_losses(outage: OutageMeasurement) -> str:
    return f"{outage.lost} of {outage.published} lost, {outage.duplicates} twice"


# ---------------------------------------------------------------- the end


async def _compare(story: DemoOutput, scene: DemoState) -> None:
    story.say(
        "\n[bold]5. The same ring with plain Mosquitto bridges[/bold], for"
        f" {bridge_ring.LOOP_S:g} s. One publication."
    )
    with story.show_status("starting brokers and bridges"):
        count = await bridge_ring.count_looping_deliveries()
    story.say(f"   One subscriber got it {_format_times(count)} before the brokers were stopped.")
    what = "one publication in a ring of plain bridges"
    scene.add_result(what, f"{count:,} deliveries to one subscriber in {bridge_ring.LOOP_S:g} s")


def _summary(story: DemoOutput, scene: DemoState) -> None:
    made = make_table("what", "measured here, now")
    for row in scene.rows:
        made.add_row(*row)
    story.print_table(made)
    story.say(
        "Interruption: from the event until the first publication after the last lost one arrives."
        "\nLost publications met a dead agent or broker: QoS 0 allows that."
    )
    if not scene.has_passed:
        story.say("[red]Not all of this is as it should be.[/red]")


async def _keep_running(story: DemoOutput, scene: DemoState) -> None:
    ports = [node.broker.port for node in scene.federation.nodes]
    story.say("\nThe federation stays up; Ctrl-C ends it. Try, in other terminals:")
    story.say(f"  mosquitto_sub -p {ports[2]} -t 'plant/#' -v")
    story.say(f"  mosquitto_pub -p {ports[0]} -t plant/line1/temp -m 21.5")
    story.say(f"  {command_line('top', scene.federation.nodes[0].admin_url)}")
    await asyncio.Event().wait()


# ---------------------------------------------------------------- what the agents say


async def _status(scene: DemoState, number: int) -> dict[str, object]:
    return await asyncio.to_thread(scene.federation.nodes[number].status)


async def _wait_until_installed(scene: DemoState, topic_filter: str) -> bool:
    """Wait until broker 0's agent takes what the filter wants."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DELIVERY_TIMEOUT_S
    while loop.time() < deadline:
        status, far = await _status(scene, 0), await _status(scene, 2)
        groups, interest = status["groups"], far["interest"]
        assert isinstance(groups, dict)
        assert isinstance(interest, dict)
        if topic_filter in groups and interest["installed"]:
            return True
        await asyncio.sleep(0.02)
    return False


async def _find_core(scene: DemoState) -> int:
    """Return whose agent is the core of the topic."""
    statuses = [await _status(scene, number) for number in range(3)]
    groups = statuses[0]["groups"]
    assert isinstance(groups, dict)
    core = groups[TOPIC]["core"]
    nodes = [status["node"] for status in statuses]
    if core not in nodes:
        raise UsageError(f"the federation has no core for {TOPIC}")
    return nodes.index(core)


async def _passes_through(scene: DemoState, source: int, core: int) -> bool:
    """Return whether the core is the only one to whom an agent passes the topic on."""
    groups, node = (await _status(scene, source))["groups"], (await _status(scene, core))["node"]
    assert isinstance(groups, dict)
    return {*groups[TOPIC]["parents"], *groups[TOPIC]["children"]} == {node}


def _number(counters: object, name: str) -> int:
    assert isinstance(counters, dict)
    return int(counters.get(name, 0))


def _from(client: RecordingClient, site: int) -> Iterable[tuple[int, float]]:
    """Yield number and time of arrival of each reading of a site."""
    for arrival in client.arrivals:
        found, number = readings.source_of(arrival.payload)
        if found == site:
            yield number, arrival.at


def _all_of(topics: Sequence[str], arrived: Counter[str]) -> OutageMeasurement:
    """Return how a subscriber fared with one publication to each topic."""
    lost = sum(not arrived[topic] for topic in topics)
    return OutageMeasurement(None, len(topics), lost, arrived.total() - len(arrived))


def _format_times(count: int) -> str:
    return {0: "not at all", 1: "once", 2: "twice"}.get(count, f"{count:,} times")
