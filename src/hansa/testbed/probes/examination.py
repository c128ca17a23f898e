"""Probes a broker for `hansa doctor`: log, counters, bridges, delivery, known subscriptions.

A watching client records log lines and counters while a probe client subscribes, publishes,
unsubscribes and is taken over. Client ids and topics are unique and nothing is retained, so only
lines in the broker's log remain. `hansa.testbed.probes.advice` draws the conclusions.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hansa.agent.broker.connection import CLOSED_BY_BROKER, LOGIN_REFUSED, BrokerAddress
from hansa.agent.exposure import is_loopback
from hansa.errors import UsageError
from hansa.mqtt.types import Version
from hansa.testbed.clients import Arrival, RecordingClient, wait_until
from hansa.testbed.probes.advice import (
    BrokerAdvice,
    BrokerFindings,
    Severity,
    advise_on_broker,
)
from hansa.testbed.probes.delivery import probe_delivery
from hansa.testbed.probes.observation import Observation, ObservationProbe

LINE_TIMEOUT_S = 2.0
"""Seconds until a log line must have arrived; brokers publish them at once."""

CONNACK_TIMEOUT_S = 3.0
"""Seconds to wait for a CONNACK to MQTT 5 before trying 3.1.1."""

IS_IT_A_BROKER = "does a broker run there, and is it its port of MQTT, such as 1883?"

SUBSCRIBE = "$SYS/broker/log/M/subscribe"
UNSUBSCRIBE = "$SYS/broker/log/M/unsubscribe"
NOTICE = "$SYS/broker/log/N"
ERROR = "$SYS/broker/log/E"
VERSION = "$SYS/broker/version"
UPTIME = "$SYS/broker/uptime"
"""Published together with the counters, which are retained for only 60 s."""
DROPPED = "$SYS/broker/publish/messages/dropped"
BRIDGES = "$SYS/broker/connection/+/state"

WATCHED = (VERSION, SUBSCRIBE, UNSUBSCRIBE, NOTICE, ERROR, UPTIME, DROPPED, BRIDGES)


@dataclass(frozen=True, slots=True)
class Examination:
    findings: BrokerFindings
    refused: tuple[str, ...]
    """Topics that this user may not subscribe to."""
    delivers: bool
    """Whether a publication of one client reached the other."""


async def examine_broker(
    address: BrokerAddress,
    log_file: Path | None,
    is_observed: bool,
    queue_tried: int,
    on_progress: Callable[[str], None],
) -> Examination:
    """Run all probes; `is_observed`: whether agents would use the observer of Mosquitto."""
    version = await supported_version(address)
    probe = ObservationProbe(address, version, log_file) if is_observed else None
    if probe is not None:
        await probe.start()
    examination, delivery = await asyncio.gather(
        examine(address, version),
        probe_delivery(address, lambda text: on_progress(f"trying {text}"), version, queue_tried),
    )
    on_progress("waiting for the broker's counters")
    observed = Observation() if probe is None else await probe.finish()
    findings = replace(
        examination.findings,
        delivery=delivery,
        has_history=None if log_file is None else observed.known_count is not None,
        earlier_count=observed.earlier_count,
        known_count=observed.known_count,
        is_observed=observed.is_complete,
        observer_problem=observed.reason,
        restores_sessions=observed.has_persistence,
        is_open_to_network=address.username is None and not is_loopback(address.host),
    )
    return replace(examination, findings=findings)


def advise_on_examination(
    examination: Examination, observer: str = "mosquitto"
) -> tuple[BrokerAdvice, ...]:
    """Return all problems, the most severe first."""
    found: list[BrokerAdvice] = []
    if not examination.delivers:
        problem = "a publication of one client did not reach another: an access list forbids it"
        found.append(BrokerAdvice(Severity.ERROR, problem))
    if examination.refused and observer == "mosquitto":
        problem = f"this user may not subscribe to {', '.join(examination.refused)}"
        found.append(BrokerAdvice(Severity.ERROR, problem))
    return (*found, *advise_on_broker(examination.findings, observer))


async def supported_version(address: BrokerAddress) -> Version:
    """Return the MQTT version of a broker. Some do not answer a CONNECT of MQTT 5, such as amqtt,
    or close the connection, such as RabbitMQ 3.10. Raise UsageError if the broker refuses the
    client."""
    problem = None
    for version in (Version.V5, Version.V311):
        name = f"hansa-doctor-{secrets.token_hex(4)}"
        client = RecordingClient(address, name, version=version, answer_timeout=CONNACK_TIMEOUT_S)
        try:
            await client.start()
            assert client.limits is not None
            return client.limits.version
        except UsageError as error:
            problem = problem or error
            if CLOSED_BY_BROKER not in str(error):
                break
        finally:
            await client.stop()
    assert problem is not None
    if LOGIN_REFUSED in str(problem):
        raise problem
    raise UsageError(f"{problem}; {IS_IT_A_BROKER}") from problem


async def examine(address: BrokerAddress, version: Version = Version.V5) -> Examination:
    """Probe log, counters and bridges; raise UsageError if the broker refuses the client."""
    name = f"hansa-doctor-{secrets.token_hex(4)}"
    topic = f"hansa/doctor/{name}"
    overlapping = f"hansa/+/{name}"
    filters = (*WATCHED, topic, overlapping)
    watcher = RecordingClient(address, f"{name}-watcher", *filters, version=version)
    probes = [RecordingClient(address, f"{name}-probe", version=version) for _ in range(2)]
    probe, successor = probes
    try:
        await watcher.start()
        await probe.start()
        probe.subscribe(f"{topic}/probe")
        await wait_until(lambda: bool(probe.granted), LINE_TIMEOUT_S)
        probe.publish(topic, b"probe")
        probe.unsubscribe(f"{topic}/probe")
        await _wait_for_line(watcher, UNSUBSCRIBE, probe)
        await successor.start()  # takes over the client id
        await probe.stop()  # it would reconnect
        await wait_until(
            lambda: _has_takeover(watcher.arrivals, successor.client_id), LINE_TIMEOUT_S
        )
        watcher.unsubscribe(topic, overlapping)  # else an agent keeps the interest for a while
        return _conclude(watcher, probe, topic)
    finally:
        await asyncio.gather(*(client.stop() for client in (watcher, *probes)))


async def _wait_for_line(watcher: RecordingClient, topic: str, probe: RecordingClient) -> None:
    await wait_until(lambda: _has_line(watcher.arrivals, topic, probe.client_id), LINE_TIMEOUT_S)


def _conclude(watcher: RecordingClient, probe: RecordingClient, topic: str) -> Examination:
    arrivals, client_id = watcher.arrivals, probe.client_id
    last = {arrival.topic: arrival.payload.decode(errors="replace") for arrival in arrivals}
    dropped = last.get(DROPPED, "")
    findings = BrokerFindings(
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
    return Examination(findings, refused, topic in last)


def _has_line(arrivals: list[Arrival], topic: str, text: str) -> bool:
    return any(a.topic == topic and text.encode() in a.payload for a in arrivals)


def _has_takeover(arrivals: list[Arrival], client_id: str) -> bool:
    """Mosquitto 2.0 logs a take-over as an error, 2.1 as a notice."""
    return any(
        a.topic in (ERROR, NOTICE)
        and client_id.encode() in a.payload
        and (b"already connected" in a.payload or b"taken over" in a.payload)
        for a in arrivals
    )
