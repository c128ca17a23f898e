"""The live demo: real Mosquittos in a ring, agents and clients, measured here and now.

Every number that it prints is a difference on this process's clock, or was counted by a client. All
publications are of QoS 0, so what meets a dead agent or broker is lost, and the demo says how much.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from hansa.agent.brokers.connection import BrokerAddress
from hansa.cli import bridge_ring
from hansa.cli.clients import Client, Stream, until
from hansa.cli.demo_report import Account
from hansa.cli.healing import Healing, measure
from hansa.cli.launcher import command
from hansa.cli.results import table
from hansa.cli.story import Story
from hansa.errors import UsageError
from hansa.local.embedded import EmbeddedBroker
from hansa.local.federation import LocalFederation
from hansa.mqtt.vocabulary import Version
from hansa.simulator.topologies import parse

TOPIC = "plant/line1/temp"
WILDCARD = "plant/+/speed"
SPEEDS = ("plant/line1/speed", "plant/line2/speed")
UNWANTED = "plant/line2/noise"

INTERVAL_S = 0.002
"""Between two publications while something is being killed: the resolution of healing times."""
BEFORE_S, AFTER_S = 0.5, 1.0
"""How long traffic flows before a fault, and after it is healed."""
HEAL_TIMEOUT_S = 20.0
DELIVERY_TIMEOUT_S = 5.0
SETTLE_S = 0.3
"""A broker may hold back what follows its SUBACK until that is acknowledged: up to 40 ms, once."""
SECOND_COPY_S = 0.5
"""How long to look for a second copy of what has arrived."""


@dataclass(slots=True)
class Scene:
    """The federation and the clients that the story is about, one of each kind per broker."""

    federation: LocalFederation
    subscribers: list[Client] = field(default_factory=list)
    publishers: list[Client] = field(default_factory=list)
    rows: list[tuple[str, str]] = field(default_factory=list)
    """The summary, as it grows."""
    is_good: bool = True
    account: Account | None = None
    """What the report is held against, if there will be one."""

    def address(self, number: int) -> BrokerAddress:
        """Where a broker is."""
        return BrokerAddress("127.0.0.1", self.federation.nodes[number].broker.port)

    @property
    def is_embedded(self) -> bool:
        """Whether brokers live in their agents; these only know MQTT 3.1.1."""
        return isinstance(self.federation.nodes[0].broker, EmbeddedBroker)

    def client(self, number: int, name: str, *filters: str) -> Client:
        """Return a client of a broker, not connected yet."""
        version = Version.V311 if self.is_embedded else Version.V5
        return Client(self.address(number), name, *filters, version=version)

    def note(self, what: str, result: str, is_good: bool = True) -> None:
        """Add a line to the summary."""
        self.rows.append((what, result))
        self.is_good = self.is_good and is_good


async def tell(
    story: Story, settings: dict[str, str], compare: bool, keep: bool, account: Account | None
) -> int:
    """Tell the story and return the exit code: 0 if all was as it should be."""
    directory = account.directory if account else None
    federation = LocalFederation(parse("ring:3", 1), settings, directory=directory)
    scene = Scene(federation, account=account)
    try:
        await _begin(story, scene)
        await _exactly_once(story, scene)
        await _wildcard(story, scene)
        await _kill_agent(story, scene)
        if scene.is_embedded:
            story.say("\nWhat needs a real Mosquitto is left out: killing a broker, plain bridges.")
        else:
            await _kill_broker(story, scene)
            if compare:
                await _compare(story, scene)
        _summary(story, scene)
        if keep:
            await _keep(story, scene)
    finally:
        clients = [*scene.subscribers, *scene.publishers]
        await asyncio.gather(*(client.stop() for client in clients))
        await scene.federation.stop()
    return 0 if scene.is_good else 1


# ---------------------------------------------------------------- the beginning


async def _begin(story: Story, scene: Scene) -> None:
    nodes = scene.federation.nodes
    ports = [node.broker.port for node in nodes]
    brokers = "small brokers in Python" if scene.is_embedded else "real Mosquittos"
    story.say(
        f"[bold]Hansa[/bold], live: {len(nodes)} {brokers} in a ring, an agent beside each,"
        " MQTT clients that know nothing of it."
    )
    with story.waiting("starting brokers and agents"):
        began = asyncio.get_running_loop().time()
        await scene.federation.start()
        await scene.federation.wait_until_converged()
        took = asyncio.get_running_loop().time() - began
    story.draw(
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
    await asyncio.sleep(SETTLE_S)


async def _exactly_once(story: Story, scene: Scene) -> None:
    story.say(
        f"\n[bold]1. One publication.[/bold] A client at each broker wants {TOPIC};"
        " a sensor publishes it at broker 0."
    )
    clients = scene.subscribers
    at = asyncio.get_running_loop().time()
    scene.publishers[0].publish(TOPIC, b"21.5")
    await until(lambda: all(client.arrivals for client in clients), DELIVERY_TIMEOUT_S)
    await asyncio.sleep(SECOND_COPY_S)
    for number, client in enumerate(clients):
        delay = f"after {(client.arrivals[0].at - at) * 1000:.1f} ms" if client.arrivals else ""
        story.say(f"   broker {number}: {_times(client.arrival_count)} {delay}")
    counts = [client.arrival_count for client in clients]
    twice = sum(max(count - 1, 0) for count in counts)
    result = f"{sum(count > 0 for count in counts)} delivered, {twice} twice"
    scene.note("one publication in a ring of 3 brokers", result, set(counts) == {1})
    _forget(scene, 0)


async def _wildcard(story: Story, scene: Scene) -> None:
    story.say(
        f"\n[bold]2. A wildcard.[/bold] A client at broker 2 subscribes to {WILDCARD};"
        f" at broker 0 sensors publish"
        f" {', '.join(SPEEDS)} and {UNWANTED}."
    )
    before = (await _status(scene, 0))["counters"]
    wild = scene.client(2, "wildcard", WILDCARD)
    try:
        await wild.start()
        installed = await _installed(scene, WILDCARD)
        for topic in (*SPEEDS, UNWANTED):
            scene.publishers[0].publish(topic, b"3")
        await until(lambda: wild.arrival_count >= len(SPEEDS), DELIVERY_TIMEOUT_S)
        await asyncio.sleep(SECOND_COPY_S)
        after = (await _status(scene, 0))["counters"]
        taken = _number(after, "captured") - _number(before, "captured")
        topics = Counter(arrival.topic for arrival in wild.arrivals)
        story.say(
            f"   {len(topics)} arrived, each {_times(max(topics.values(), default=0))};"
            f" the agent took {taken} of the 3 from broker 0: what nobody wants stays there."
        )
        good = topics == Counter(SPEEDS) and taken == len(SPEEDS) and installed
        result = f"{len(topics)} of 2 topics, {sum(topics.values()) - len(topics)} twice"
        scene.note(f"{WILDCARD} at another broker", result, good)
        _count(scene, 2, wild)
    finally:
        await wild.stop()


# ---------------------------------------------------------------- faults


async def _kill_agent(story: Story, scene: Scene) -> None:
    """Kill the agent of the core: in a ring of three the others' publications pass through it."""
    victim = await _core(scene)
    source, sink = (number for number in range(3) if number != victim)
    path = "through it" if await _leads_through(scene, source, victim) else "past it"
    story.say(
        f"\n[bold]3. kill -9 of the agent at {victim}[/bold], the core. The sensor at {source}"
        f" publishes {1 / INTERVAL_S:.0f} times a second; the way to {sink} leads {path}."
    )
    loop = asyncio.get_running_loop()
    node = str((await _status(scene, victim))["node"])
    stream = Stream(scene.publishers[source], TOPIC, INTERVAL_S)
    try:
        await asyncio.sleep(BEFORE_S)
        fault_at = loop.time()
        await _kill(scene.federation.nodes[victim].agent)
        _disturb(scene, victim, f"kill agent {victim}", node)
        await _through(scene.subscribers[sink], fault_at)
        back_at = loop.time()
        await scene.federation.start_agent(victim)
        await _through(scene.subscribers[victim], back_at)
    finally:
        await stream.stop()
    await asyncio.sleep(SECOND_COPY_S)
    arrivals = scene.subscribers[sink].arrivals
    outage = [at for at in stream.sent if at < back_at]
    others = measure(outage, [a for a in arrivals if int(a.payload) < len(outage)], fault_at)
    own = measure(stream.sent, scene.subscribers[victim].arrivals, back_at)
    meanwhile = measure(stream.sent, arrivals, back_at)
    _report(story, scene, f"agent killed, {source} to {sink} again after", others)
    _report(story, scene, f"agent started, {source} to {victim} again after", own, is_brief=True)
    _meanwhile(story, scene, f"meanwhile {source} to {sink}", meanwhile)
    _forget(scene, source)


async def _kill_broker(story: Story, scene: Scene) -> None:
    """Kill a broker and start it at once, as a service manager does."""
    story.say(
        "\n[bold]4. kill -9 of the broker at 2[/bold]; it is started again at once, its client and"
        " its agent come back by themselves. The sensor is at 0."
    )
    loop = asyncio.get_running_loop()
    node = str((await _status(scene, 2))["node"])
    stream = Stream(scene.publishers[0], TOPIC, INTERVAL_S)
    broker = scene.federation.nodes[2].broker
    try:
        await asyncio.sleep(BEFORE_S)
        fault_at = loop.time()
        await _kill(broker.process)
        _disturb(scene, 2, "kill broker 2", node)
        await broker.start()
        await _through(scene.subscribers[2], fault_at)
    finally:
        await stream.stop()
    await asyncio.sleep(SECOND_COPY_S)
    own = measure(stream.sent, scene.subscribers[2].arrivals, fault_at)
    others = measure(stream.sent, scene.subscribers[1].arrivals, fault_at)
    _report(story, scene, "broker killed and started, 0 to 2 again after", own)
    _meanwhile(story, scene, "meanwhile 0 to 1", others)
    _forget(scene, 0)


async def _kill(process: asyncio.subprocess.Process | None) -> None:
    assert process is not None
    process.kill()
    await process.wait()


async def _through(client: Client, since: float) -> None:
    """Wait until something gets through again, then let traffic flow a while."""
    await until(
        lambda: bool(client.arrivals) and client.arrivals[-1].at > since + 2 * INTERVAL_S,
        HEAL_TIMEOUT_S,
    )
    await asyncio.sleep(AFTER_S)


def _report(
    story: Story, scene: Scene, what: str, healing: Healing, is_brief: bool = False
) -> None:
    if healing.healed_ms is None:
        result = f"not within {HEAL_TIMEOUT_S:g} s"
    else:
        result = _duration(healing.healed_ms) + ("" if is_brief else f"; {_fate(healing)}")
    story.say(f"   {what}: {result}")
    scene.note(what, result, healing.healed_ms is not None and not healing.twice)


def _meanwhile(story: Story, scene: Scene, what: str, healing: Healing) -> None:
    story.say(f"   {what}: {_fate(healing)}")
    scene.note(what, _fate(healing), healing.twice == 0)


def _fate(healing: Healing) -> str:
    return f"{healing.lost} of {healing.published} lost, {healing.twice} twice"


# ---------------------------------------------------------------- the end


async def _compare(story: Story, scene: Scene) -> None:
    story.say(
        "\n[bold]5. The same ring with plain Mosquitto bridges[/bold], for"
        f" {bridge_ring.STORM_S:g} s. One publication."
    )
    with story.waiting("starting brokers and bridges"):
        count = await bridge_ring.storm()
    story.say(f"   One subscriber got it {_times(count)} before the brokers were stopped.")
    what = "one publication in a ring of plain bridges"
    scene.note(what, f"{count:,} deliveries to one subscriber in {bridge_ring.STORM_S:g} s")


def _summary(story: Story, scene: Scene) -> None:
    made = table("what", "measured here, now")
    for row in scene.rows:
        made.add_row(*row)
    story.show(made)
    story.say("Lost is what met a dead agent or broker: QoS 0 allows that.")
    if not scene.is_good:
        story.say("[red]Not all of this is as it should be.[/red]")


async def _keep(story: Story, scene: Scene) -> None:
    ports = [node.broker.port for node in scene.federation.nodes]
    story.say("\nThe federation stays up; Ctrl-C ends it. Try, in other terminals:")
    story.say(f"  mosquitto_sub -p {ports[2]} -t 'plant/#' -v")
    story.say(f"  mosquitto_pub -p {ports[0]} -t plant/line1/temp -m 21.5")
    story.say(f"  {command('top', scene.federation.nodes[0].admin)}")
    await asyncio.Event().wait()


# ---------------------------------------------------------------- what the agents say


async def _status(scene: Scene, number: int) -> dict[str, object]:
    return await asyncio.to_thread(scene.federation.nodes[number].status)


async def _installed(scene: Scene, topic_filter: str) -> bool:
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


async def _core(scene: Scene) -> int:
    """Return whose agent is the core of the topic."""
    statuses = [await _status(scene, number) for number in range(3)]
    groups = statuses[0]["groups"]
    assert isinstance(groups, dict)
    core = groups[TOPIC]["core"]
    nodes = [status["node"] for status in statuses]
    if core not in nodes:
        raise UsageError(f"the federation has no core for {TOPIC}")
    return nodes.index(core)


async def _leads_through(scene: Scene, source: int, core: int) -> bool:
    """Return whether the core is the only one to whom an agent passes the topic on."""
    groups, node = (await _status(scene, source))["groups"], (await _status(scene, core))["node"]
    assert isinstance(groups, dict)
    return {*groups[TOPIC]["parents"], *groups[TOPIC]["children"]} == {node}


def _number(counters: object, name: str) -> int:
    assert isinstance(counters, dict)
    return int(counters.get(name, 0))


def _disturb(scene: Scene, number: int, what: str, node: str) -> None:
    if scene.account:
        scene.account.disturb(str(number), what, node)


def _count(scene: Scene, number: int, client: Client) -> None:
    """Keep how much came from another broker."""
    if scene.account:
        scene.account.counted[str(number)] += client.arrival_count


def _forget(scene: Scene, source: int) -> None:
    """Begin anew, after what the sensor at `source` published has been counted."""
    for number, client in enumerate(scene.subscribers):
        if number != source:
            _count(scene, number, client)
        client.arrivals.clear()
        client.arrival_count = 0


def _times(count: int) -> str:
    return {0: "not at all", 1: "once", 2: "twice"}.get(count, f"{count:,} times")


def _duration(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1_000 else f"{ms / 1_000:.1f} s"
