"""Recognises the make of a broker for `hansa doctor`, and says how it can be observed.

Some brokers say what they are on `$SYS` topics, or by the client ids that they assign. Others are
recognised by their HTTP API: by the description that fits its answers.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hansa.agent.broker.connection import BrokerAddress
from hansa.agent.broker.rest_poller import RestPoller
from hansa.agent.broker.settings import RestSettings
from hansa.errors import UsageError
from hansa.mqtt.types import Version
from hansa.observers.rest.description import CUSTOM, DESCRIPTIONS
from hansa.testbed.clients import Arrival, RecordingClient, wait_until
from hansa.testbed.probes.advice import BrokerAdvice, Severity
from hansa.testbed.probes.examination import supported_version

MAKE_TIMEOUT_S = 1.0
"""Seconds until a message that shows the make must have arrived."""

MAKE_TOPICS = (
    "$SYS/broker/version",
    "$SYS/brokers/+/sysdescr",
    "$SYS/brokers/+/session/#",
    "$SYS/+/new/subscribes",
)


@dataclass(frozen=True, slots=True)
class BrokerMake:
    name: str
    observer: str
    """Recommended value of [broker] observer."""
    settings: str = ""
    """Settings that this observer needs besides."""
    limits: tuple[str, ...] = ()
    """What cannot be observed there."""


PROXY = "[proxy] port, where clients connect"

MOSQUITTO = BrokerMake("Mosquitto", "mosquitto", "[broker] log_file")
MAKES = {
    "aedes": BrokerMake(
        "aedes",
        "proxy",
        PROXY,
        ('observer = "topics" needs no proxy, but knows nothing from before the agent came',),
    ),
    "nats": BrokerMake(
        "NATS",
        "rest",
        '[rest] kind = "nats" and url, the http port of the server',
        ("filters of clean sessions stay if NATS is stopped while their clients are connected",),
    ),
    "rabbitmq": BrokerMake(
        "RabbitMQ",
        "rest",
        '[rest] kind = "rabbitmq", url of the management plugin, username, password',
        ("a dot in a topic cannot be told from a slash",),
    ),
    "rmqtt": BrokerMake(
        "RMQTT",
        "rest",
        '[rest] kind = "rmqtt" and url of rmqtt-http-api',
        ("at most 10,000 subscriptions can be listed; leave max_row_limit at its default",),
    ),
    "emqx": BrokerMake(
        "EMQX", "rest", '[rest] kind = "emqx", url, username (API key), password (secret key)'
    ),
    "hivemq": BrokerMake("HiveMQ", "proxy", PROXY),
    CUSTOM: BrokerMake("a broker as described", "rest", "[rest.custom]"),
    "nanomq": BrokerMake(
        "NanoMQ", "rest", '[rest] kind = "nanomq", url of http_server, username, password'
    ),
}

ASSIGNED_PREFIXES = {"hmq_": MAKES["hivemq"]}
"""How the client ids begin that a make assigns to clients without one."""


@dataclass(frozen=True, slots=True)
class Recognition:
    """What was found out about the make of a broker."""

    make: BrokerMake | None = None
    filter_count: int | None = None
    """Filters that its HTTP API lists; None if it was not asked."""
    advices: tuple[BrokerAdvice, ...] = ()

    @property
    def observer(self) -> str:
        """Return the observer to use; that of Mosquitto if the make is unknown."""
        return (self.make or MOSQUITTO).observer


async def recognise(address: BrokerAddress, rest: RestSettings | None) -> Recognition:
    """Recognise a broker by its HTTP API, if one is given, or else by its messages."""
    if rest is None:
        return Recognition(await recognise_make(address, await supported_version(address)))
    found = await recognise_api(rest)
    if found is None:
        problem = (
            "no known list of subscriptions at the HTTP API: check its URL, user and password, or"
            " describe it in [rest.custom]"
        )
        return Recognition(advices=(BrokerAdvice(Severity.ERROR, problem),))
    kind, poller = found
    return Recognition(MAKES[kind], len(poller.observer.subscribed_filters()))


async def recognise_make(address: BrokerAddress, version: Version) -> BrokerMake | None:
    """Return the make of a broker that shows it on `$SYS` topics or by an assigned client id; None
    if it does not. Raise UsageError if the broker refuses the client."""
    name = f"hansa-doctor-{secrets.token_hex(4)}-make"
    client = RecordingClient(address, name, *MAKE_TOPICS, version=version)
    try:
        await client.start()
        client.subscribe(f"$SYS/{name}")  # some brokers announce that; agents ignore it
        await wait_until(lambda: make_from(client.arrivals) is not None, MAKE_TIMEOUT_S)
        found = make_from(client.arrivals)
    finally:
        await client.stop()
    return found or (await _make_from_assigned_id(address) if version is Version.V5 else None)


async def _make_from_assigned_id(address: BrokerAddress) -> BrokerMake | None:
    client = RecordingClient(address, "")
    try:
        await client.start()
        assigned = client.limits.client_id if client.limits is not None else ""
    except UsageError:  # it requires a client id
        return None
    finally:
        await client.stop()
    return next((m for start, m in ASSIGNED_PREFIXES.items() if assigned.startswith(start)), None)


def make_from(arrivals: Sequence[Arrival]) -> BrokerMake | None:
    """Return the make that messages on MAKE_TOPICS show."""
    for arrival in arrivals:
        text, levels = arrival.payload.decode(errors="replace"), arrival.topic.split("/")
        if arrival.topic == "$SYS/broker/version" and text.startswith("mosquitto version "):
            return MOSQUITTO
        if levels[-2:] == ["new", "subscribes"]:
            return MAKES["aedes"]
        if levels[1] == "brokers" and levels[-1] == "sysdescr":
            return MAKES["emqx"] if "EMQX" in text else None
        if levels[1] == "brokers" and levels[-1] == "subscribed":
            return MAKES["rmqtt"]
    return None


async def recognise_api(settings: RestSettings) -> tuple[str, RestPoller] | None:
    """Return the kind whose description fits the answers of an HTTP API, and its poller; None if
    none fits. A list in several parts needs a second poll."""
    for kind in DESCRIPTIONS if settings.kind != CUSTOM else (CUSTOM,):
        poller = RestPoller(replace(settings, kind=kind), own_prefix="hansa-")
        await poller.poll()
        if poller.observer.is_confirmation_pending:
            await poller.poll()
        if poller.observer.is_complete:
            return kind, poller
    return None
