"""Finds out what an agent would see of a broker: a client watches while another one is probed.

The probe subscribes, publishes, unsubscribes and is taken over, with names of its own and nothing
retained, so that it leaves no trace but lines in the broker's log. What follows from what was seen
is `hansa.testbed.probes.advice`.
"""

import asyncio
import secrets
from dataclasses import dataclass

from hansa.agent.broker.connection import BrokerAddress
from hansa.mqtt.types import Version
from hansa.testbed.clients import Arrival, RecordingClient, wait_until
from hansa.testbed.probes.advice import BrokerFindings

LINE_TIMEOUT_S = 2.0
"""How long a line of the log may take: a broker that logs to topics does it at once."""

SILENCE_S = 3.0
"""How long a broker may take to answer a greeting in MQTT 5 before it gets one in 3.1.1."""

SUBSCRIBE = "$SYS/broker/log/M/subscribe"
UNSUBSCRIBE = "$SYS/broker/log/M/unsubscribe"
NOTICE = "$SYS/broker/log/N"
ERROR = "$SYS/broker/log/E"
VERSION = "$SYS/broker/version"
UPTIME = "$SYS/broker/uptime"
"""Is published with the counters, which themselves are retained for 60 s only."""
DROPPED = "$SYS/broker/publish/messages/dropped"
BRIDGES = "$SYS/broker/connection/+/state"

WATCHED = (VERSION, SUBSCRIBE, UNSUBSCRIBE, NOTICE, ERROR, UPTIME, DROPPED, BRIDGES)


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found out."""

    learned: BrokerFindings
    refused: tuple[str, ...]
    """Topics that the broker does not let this user subscribe to."""
    delivers: bool
    """Whether what one client published reached the other."""


async def spoken_version(address: BrokerAddress) -> Version:
    """Return how to talk to a broker, which may leave MQTT 5 without an answer, as amqtt does;
    raise UsageError if it does not let a client in."""
    name = f"hansa-doctor-{secrets.token_hex(4)}"
    client = RecordingClient(address, name, answer_timeout=SILENCE_S)
    try:
        await client.start()
        assert client.limits is not None
        return client.limits.version
    finally:
        await client.stop()


async def examine(address: BrokerAddress, version: Version = Version.V5) -> Examination:
    """Examine a broker; raise UsageError if it does not let a client in."""
    name = f"hansa-doctor-{secrets.token_hex(4)}"
    topic = f"hansa/doctor/{name}"
    lap = f"hansa/+/{name}"  # matches it as well
    watcher = RecordingClient(address, f"{name}-watcher", *WATCHED, topic, lap, version=version)
    probes = [RecordingClient(address, f"{name}-probe", version=version) for _ in range(2)]
    probe, rival = probes
    try:
        await watcher.start()
        await probe.start()
        probe.subscribe(f"{topic}/probe")
        await wait_until(lambda: bool(probe.granted), LINE_TIMEOUT_S)
        probe.publish(topic, b"probe")
        probe.unsubscribe(f"{topic}/probe")
        await _seen(watcher, UNSUBSCRIBE, probe)
        await rival.start()  # takes the session over; of the two, the first would come back
        await probe.stop()
        await wait_until(lambda: _has_takeover(watcher.arrivals, rival.client_id), LINE_TIMEOUT_S)
        watcher.unsubscribe(
            topic, lap
        )  # or an agent beside the broker takes it for wanted for a while
        return _conclude(watcher, probe, topic)
    finally:
        await asyncio.gather(*(client.stop() for client in (watcher, *probes)))


async def _seen(watcher: RecordingClient, topic: str, probe: RecordingClient) -> None:
    await wait_until(lambda: _has_line(watcher.arrivals, topic, probe.client_id), LINE_TIMEOUT_S)


def _conclude(watcher: RecordingClient, probe: RecordingClient, topic: str) -> Examination:
    arrivals, client_id = watcher.arrivals, probe.client_id
    last = {arrival.topic: arrival.payload.decode(errors="replace") for arrival in arrivals}
    dropped = last.get(DROPPED, "")
    learned = BrokerFindings(
        version=last.get(VERSION, ""),
        limits=watcher.limits,
        logs_subscribe=_has_line(arrivals, SUBSCRIBE, client_id),
        logs_unsubscribe=_has_line(arrivals, UNSUBSCRIBE, client_id),
        logs_connect=_has_line(arrivals, NOTICE, f" as {client_id} "),
        logs_takeover=_has_takeover(arrivals, client_id),
        publishes_counts=UPTIME in last,
        dropped_count=int(dropped) if dropped.isdigit() else None,
        overlap_copies=sum(arrival.topic == topic for arrival in arrivals),
        bridges=tuple(
            sorted(
                name.split("/")[-2]
                for name, state in last.items()
                if name.startswith("$SYS/broker/connection/") and state == "1"
            )
        ),
    )
    refused = tuple(name for name in watcher.filters if not watcher.granted.get(name, True))
    return Examination(learned, refused, topic in last)


def _has_line(arrivals: list[Arrival], topic: str, words: str) -> bool:
    return any(a.topic == topic and words.encode() in a.payload for a in arrivals)


def _has_takeover(arrivals: list[Arrival], client_id: str) -> bool:
    """Mosquitto 2.0 logs it as an error, 2.1 as a notice."""
    return any(
        a.topic in (ERROR, NOTICE)
        and client_id.encode() in a.payload
        and (b"already connected" in a.payload or b"taken over" in a.payload)
        for a in arrivals
    )
