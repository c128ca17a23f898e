"""Plays sessions of every kind at one broker with one observer, in a federation with a Mosquitto.

All publications are made at that Mosquitto; each client must receive exactly those that it should.
The result is the column of one make in the table of docs/brokers.md.
"""

import json
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import eventually
from tests.agent.other_brokers.brokers import Other, api_port, log_file
from tests.agent.process import Process, Scene
from tests.agent.test_broker import status

from hansa.mqtt import packets
from hansa.mqtt.types import Version
from hansa.testbed.mosquitto import free_port

PATIENCE_S = 180.0
RESULTS = Path(__file__).parent / "results"
YES, WIDE, LACKING = "yes", "yes, wide", "not supported"
EXPIRY_S = 3_600

CLEAN = "clean session"
CONNECTED = "persistent session, connected"
AWAY = "persistent session, disconnected"
EXPIRING = "MQTT 5 session with expiry, disconnected"
SHARED = "shared subscription"
BEFORE = "subscribed before the agent started"
BEFORE_AWAY = "persistent session from before the agent started"
BETWEEN = "subscribed while the agent was down"
AGENT_RESTART = "disconnected session, agent killed and restarted"
BROKER_RESTART = "disconnected session, broker restarted"
SESSIONS = (
    *(CLEAN, CONNECTED, AWAY, EXPIRING, SHARED),
    *(BEFORE, BEFORE_AWAY, BETWEEN, AGENT_RESTART, BROKER_RESTART),
)


@dataclass(frozen=True)
class Case:
    """A make, and how it is observed."""

    kind: str
    observer: str
    settings: Callable[[Other], dict[str, Any]]
    version: str
    mqtt: Version = Version.V311
    restores_sessions: bool = True
    """Whether the broker, as started here, keeps persistent sessions across its own restart."""
    has_shared: bool = True
    is_complete: bool = True
    """Whether the observer knows every subscription, here."""

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.observer}"

    @property
    def results_file(self) -> Path:
        return RESULTS / f"{self.name.lower().replace(' ', '-').replace(',', '')}.json"


def rest(kind: str, **more: str) -> Callable[[Other], dict[str, Any]]:
    """Return the settings of an observer that polls the broker's HTTP API."""
    return lambda broker: {
        "broker_observer": "rest",
        "rest_kind": kind,
        "rest_url": f"http://127.0.0.1:{api_port(broker.port)}",
        **more,
    }


def from_log(broker: Other) -> dict[str, Any]:
    return {"broker_log_file": log_file(broker.directory)}


def topics(kind: str) -> Callable[[Other], dict[str, Any]]:
    return lambda broker: {"broker_observer": "topics", "topics_kind": kind}


def proxy(broker: Other) -> dict[str, Any]:
    return {"broker_observer": "proxy", "proxy_no_earlier_sessions": "true"}


MOSQUITTO_20 = Case("Mosquitto 2.0", "mosquitto", from_log, "2.0.11", Version.V5)
MOSQUITTO_PROXY = Case("Mosquitto 2.0", "proxy", proxy, "2.0.11", Version.V5)
CASES = (
    MOSQUITTO_20,
    Case("Mosquitto 2.1", "mosquitto", from_log, "2.1.2", Version.V5),
    MOSQUITTO_PROXY,
    Case("HiveMQ", "proxy", proxy, "CE 2025.5", Version.V5),
    Case("aedes", "proxy", proxy, "1.2.0", restores_sessions=False, has_shared=False),
    Case(
        "aedes",
        "topics",
        topics("aedes"),
        "1.2.0",
        restores_sessions=False,
        has_shared=False,
        is_complete=False,
    ),
    Case("NATS", "rest", rest("nats"), "2.11.9", has_shared=False),
    Case(
        "RabbitMQ",
        "rest",
        rest("rabbitmq", rest_username="guest", rest_password="guest"),
        "3.10.8",
        has_shared=False,
    ),
    Case("RMQTT", "rest", rest("rmqtt"), "0.24.0", Version.V5, restores_sessions=False),
    Case(
        "RMQTT",
        "topics",
        topics("rmqtt"),
        "0.24.0",
        Version.V5,
        restores_sessions=False,
        is_complete=False,
    ),
)


@dataclass
class Subscriber:
    """A client with one filter, which may come and go."""

    session: str
    options: dict[str, Any]
    client: GuaranteedClient | None = None
    received: list[bytes] = field(default_factory=list)
    expected: list[bytes] = field(default_factory=list)

    @property
    def topic(self) -> str:
        return "m/" + self.session.replace(" ", "-").replace(",", "")

    @property
    def topic_filter(self) -> str:
        return f"$share/g/{self.topic}" if self.session == SHARED else self.topic

    def collect(self) -> list[bytes]:
        """Wait for what is expected, and return everything that has arrived."""
        if self.client is not None:
            self.client.read_until(len(self.expected) - len(self.received), pause=1.0)
            self.received += [each.payload for each in self.client.received]
            self.client.forget()
        return self.received


class Site:
    """A broker with its agent."""

    def __init__(
        self, scene: Scene, broker: Other, case: Case, state: Path, starts: bool = True, **link: Any
    ) -> None:
        self._scene = scene
        self.broker = broker
        self.case = case
        self.is_proxied = case.observer == "proxy"
        self._client_port = free_port() if self.is_proxied else broker.port
        settings = case.settings(broker)
        if self.is_proxied:
            settings["proxy_port"] = self._client_port
        self._settings = {"state": state, "broker_port": broker.port, **settings, **link}
        self._agent: Process | None = None
        if starts:
            self.start_agent()

    def start_agent(self, **changed: Any) -> None:
        self._agent = self._scene.agent(**{**self._settings, **changed})
        if self.is_proxied:
            self._agent.says("proxy for clients at")

    def kill_agent(self, signal_number: signal.Signals = signal.SIGKILL) -> None:
        assert self._agent is not None
        self._agent.process.send_signal(signal_number)
        self._agent.wait()

    def connect(self, name: str, is_direct: bool = False, **options: Any) -> GuaranteedClient:
        """Connect a client, also if the broker or the proxy has just started; `is_direct`: not
        through the proxy."""
        port = self.broker.port if is_direct else self._client_port

        def connect() -> GuaranteedClient | None:
            try:
                return self._scene.client_of(
                    GuaranteedClient,
                    port,
                    name=name,
                    **{"version": Version.V311, **options},
                )
            except (ConnectionError, AssertionError):
                return None

        return cast(GuaranteedClient, eventually(connect, f"{name} connected", PATIENCE_S))

    def wait_until_installed(
        self, *filters: str, node_count: int = 2, is_wide: bool = False
    ) -> None:
        """Wait until the agent knows and announces these filters, or asks for everything."""
        assert self._agent is not None
        agent = self._agent
        is_complete = self.case.is_complete and not is_wide

        def is_settled() -> bool:
            found = status(agent)
            interest = found.get("interest", {})
            return bool(
                found
                and found["broker"]["connected"]
                and found["broker"]["observer_complete"] is is_complete
                and ({*filters} <= set(interest["local"]) or interest["wide"])
                and interest["installed"]
                and len(found["reachable_nodes"]) == node_count
            )

        try:
            eventually(is_settled, f"{filters}", PATIENCE_S)
        except AssertionError as error:
            found = status(agent)
            raise AssertionError(found.get("broker"), found.get("interest")) from error


class Play:
    """One broker with its agent, and a Mosquitto with its own."""

    def __init__(self, scene: Scene, broker: Other, case: Case, directory: Path) -> None:
        link_port = free_port()
        far = scene.broker()
        scene.agent(broker_port=far.port, broker_log_file=far.log_file, link_port=link_port)
        self._publisher = scene.client_of(GuaranteedClient, far.port)
        self._case = case
        self._site = Site(
            *(scene, broker, case, directory / "state"),
            starts=False,
            link_neighbours=f"127.0.0.1:{link_port}",
        )
        self._subscribers: dict[str, Subscriber] = {}
        self.results: dict[str, str] = {}

    # ------------------------------------------------------------ the timeline

    def run(self) -> dict[str, str]:
        """Play everything; return the result by kind of session."""
        if self._site.is_proxied:
            self._play_before_the_proxy()
        else:
            self._subscribe(BEFORE)
            self._subscribe(BEFORE_AWAY, is_persistent=True, stays=False)
        self._site.start_agent()
        self._wait_for(*self._subscribers)
        self._subscribe(CLEAN)
        self._subscribe(CONNECTED, is_persistent=True)
        self._subscribe(AWAY, is_persistent=True, stays=False)
        self._subscribe(AGENT_RESTART, is_persistent=True, stays=False)
        if self._case.mqtt is Version.V5:
            self._subscribe(EXPIRING, is_persistent=True, stays=False, version=Version.V5)
        if self._case.has_shared:
            self._subscribe(SHARED)
        else:
            self._check_that_shares_are_unknown()
        self._publish(b"1", *(name for name in self._subscribers if name != AGENT_RESTART))
        self._check(CLEAN, CONNECTED, AWAY, EXPIRING, SHARED, BEFORE, BEFORE_AWAY)
        self._end_session(EXPIRING)

        self._site.kill_agent()
        if not self._site.is_proxied:
            self._subscribe(BETWEEN)
        self._site.start_agent()
        self._publish(b"2", AGENT_RESTART, *(() if self._site.is_proxied else (BETWEEN, CLEAN)))
        self._check(AGENT_RESTART, BETWEEN, *(() if self._site.is_proxied else (CLEAN,)))

        if self._case.restores_sessions:
            self._subscribe(BROKER_RESTART, is_persistent=True, stays=False)
            self._wait_for(BROKER_RESTART)
            for each in self._subscribers.values():
                self._leave(each)
            self._site.broker.restart()
            self._publish(b"3", BROKER_RESTART)
            self._check(BROKER_RESTART)
        if self._site.is_proxied:
            self._play_while_the_agent_cannot_start()
        return {name: self.results.get(name, LACKING) for name in SESSIONS}

    def _play_before_the_proxy(self) -> None:
        """Clients that came directly to the broker; then they leave, and the operator may declare
        that there are no earlier sessions."""
        self._subscribe(BEFORE, is_direct=True)
        self._subscribe(BEFORE_AWAY, is_persistent=True, stays=False, is_direct=True)
        self._site.start_agent(proxy_no_earlier_sessions="false")
        self._publish(b"1", BEFORE, BEFORE_AWAY, is_wide=True)
        self._check(BEFORE, BEFORE_AWAY)
        self._end_session(BEFORE_AWAY)
        self._leave(self._subscribers.pop(BEFORE))
        self._site.kill_agent(signal.SIGTERM)  # the end of the session may not be saved yet

    def _play_while_the_agent_cannot_start(self) -> None:
        """A client leaves a session while the proxy passes clients unobserved."""
        self._site.kill_agent()
        with socket.create_server(("127.0.0.1", 0)) as occupied:
            self._site.start_agent(link_port=occupied.getsockname()[1])
            self._subscribe(BETWEEN, is_persistent=True, stays=False)
        self._publish(b"4", BETWEEN, is_wide=True)
        self._check(BETWEEN)

    def _check_that_shares_are_unknown(self) -> None:
        """Publications to a shared filter do not arrive, though a later one to another filter
        does."""
        client = self._site.connect("prober")
        client.subscribe_as(
            packets.Subscription("$share/g/probe", 1), packets.Subscription("fence", 1)
        )
        client.publish_guaranteed(1, "probe", b"shared")
        client.publish_guaranteed(1, "fence", b"plain")
        assert client.read_until(1, pause=1.0) == [b"plain"]
        client.close()

    # ------------------------------------------------------------ its steps

    def _subscribe(
        self,
        session: str,
        is_persistent: bool = False,
        stays: bool = True,
        version: Version = Version.V311,
        is_direct: bool = False,
    ) -> None:
        options: dict[str, Any] = {"clean": not is_persistent, "version": version}
        if version is Version.V5 and is_persistent:
            options["session_expiry"] = EXPIRY_S
        made = self._subscribers[session] = Subscriber(session, options)
        self._connect(made, is_direct)
        assert made.client is not None
        made.client.subscribe_as(packets.Subscription(made.topic_filter, 1))
        if not stays:
            self._leave(made)

    def _connect(self, subscriber: Subscriber, is_direct: bool = False) -> None:
        name = f"c{SESSIONS.index(subscriber.session)}"
        subscriber.client = self._site.connect(name, is_direct, **subscriber.options)

    def _leave(self, subscriber: Subscriber) -> None:
        if subscriber.client is not None:
            subscriber.client.close()
            subscriber.client = None

    def _end_session(self, session: str) -> None:
        """Replace a session by a clean one. Mosquitto does not log whether a session of MQTT 5
        lasts, so the observer could not confirm all subscriptions after a restart."""
        if (subscriber := self._subscribers.pop(session, None)) is not None:
            subscriber.options = {"clean": True}
            self._connect(subscriber)
            self._leave(subscriber)

    def _wait_for(self, *sessions: str, is_wide: bool = False) -> None:
        filters = (self._subscribers[name].topic_filter for name in sessions)
        self._site.wait_until_installed(*filters, is_wide=is_wide)

    def _publish(self, payload: bytes, *sessions: str, is_wide: bool = False) -> None:
        self._wait_for(*sessions, is_wide=is_wide)
        for name in sessions:
            subscriber = self._subscribers[name]
            subscriber.expected.append(payload)
            self._publisher.publish_guaranteed(1, subscriber.topic, payload)
            self.results[name] = WIDE if is_wide or not self._case.is_complete else YES

    def _check(self, *sessions: str) -> None:
        for name in sessions:
            if (subscriber := self._subscribers.get(name)) is None:
                continue
            was_away = subscriber.client is None
            if was_away:
                self._connect(subscriber)
            assert subscriber.collect() == subscriber.expected, name
            if was_away:
                self._leave(subscriber)


def store(case: Case, results: dict[str, str]) -> None:
    """Compare results with the stored ones; with REWRITE set, store them."""
    found = {"version": case.version, "mqtt": case.mqtt.name, "sessions": results}
    if os.environ.get("REWRITE"):
        RESULTS.mkdir(exist_ok=True)
        case.results_file.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    assert json.loads(case.results_file.read_text()) == found


def table() -> str:
    """Return the table of all stored results."""
    cases = [case for case in CASES if case.results_file.exists()]
    found = [json.loads(case.results_file.read_text()) for case in cases]
    makes = [case.kind.rpartition(" 2")[0] or case.kind for case in cases]
    heads = [f"{make} {each['version']}" for make, each in zip(makes, found, strict=True)]
    rows = [
        ["", *heads],
        ["---"] * (len(cases) + 1),
        ["MQTT", *("5" if each["mqtt"] == "V5" else "3.1.1" for each in found)],
        ["`[broker] observer`", *(f"`{case.observer}`" for case in cases)],
        *([name, *(each["sessions"][name] for each in found)] for name in SESSIONS),
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
