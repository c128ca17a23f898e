"""Model brokers for the conformance test of observers: one world per observer.

A world knows the true subscriptions, and tells its observer what a real broker would tell it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.agent.broker.model import Model
from tests.observers.proxy.test_inspector import Client as ProxyClient
from tests.observers.proxy.test_inspector import Proxy

from hansa.mqtt.types import Version
from hansa.observers.base import Observer
from hansa.observers.beacon import INTERVALS_VALID, BeaconObserver
from hansa.observers.mosquitto.observer import COUNTS_WAIT_S, MosquittoObserver
from hansa.observers.proxy.observer import NEVER
from hansa.observers.rest.answer import ListedSubscription
from hansa.observers.rest.observer import RestObserver
from hansa.observers.static import StaticObserver
from hansa.observers.topics import TopicsObserver

REFUSED = 0x80


@dataclass
class Session:
    is_persistent: bool
    is_online: bool = True
    filters: dict[str, None] = field(default_factory=dict)


class World:
    """A broker, its clients and its observer."""

    observer: Observer
    can_miss_notifications = True
    """Whether changes can happen that the observer is not told of."""

    def __init__(self, declared: Iterable[str]) -> None:
        """`declared`: all filters of the scenario, as an operator might configure them."""
        self.declared = tuple(declared)
        self.sessions: dict[str, Session] = {}
        self.replaced_filters: list[str] = []
        """Filters of the session that the last connection resumed or replaced."""
        self.now = 0.0
        self.is_observed = False

    # ------------------------------------------------------------ clients

    def connect(self, name: str, is_persistent: bool = False) -> None:
        """Connect, and take over from a connection with the same id."""
        old = self.sessions.get(name)
        self.replaced_filters = list(old.filters) if old is not None else []
        is_present = old is not None and old.is_persistent and is_persistent
        if old is not None and not is_present:
            del self.sessions[name]
        session = self.sessions.setdefault(name, Session(is_persistent))
        was_online, session.is_online = old is not None and old.is_online, True
        self.on_connect(name, session, is_present, was_online)

    def subscribe(self, name: str, *filters: str) -> None:
        for topic_filter in filters:
            self.sessions[name].filters[topic_filter] = None
            self.on_subscribe(name, topic_filter)

    def be_denied(self, name: str, topic_filter: str) -> None:
        """Ask for a filter that the broker refuses."""
        self.on_denied(name, topic_filter)

    def unsubscribe(self, name: str, topic_filter: str) -> None:
        self.sessions[name].filters.pop(topic_filter, None)
        self.on_unsubscribe(name, topic_filter)

    def disconnect(self, name: str) -> None:
        session = self.sessions[name]
        session.is_online = False
        if not session.is_persistent:
            del self.sessions[name]
        self.on_disconnect(name, session)

    def restart_broker(self) -> None:
        """Restart; persistent sessions are restored, and no client is connected any more."""
        self.sessions = {
            name: session for name, session in self.sessions.items() if session.is_persistent
        }
        for session in self.sessions.values():
            session.is_online = False
        self.on_broker_restart()

    def subscribed(self) -> set[str]:
        """The truth: filters that must be known."""
        return {
            topic_filter
            for session in self.sessions.values()
            for topic_filter in session.filters
            if not topic_filter.startswith("$SYS")
        }

    # ------------------------------------------------------------ the observer

    def start_observer(self) -> None:
        """Start an observer without a snapshot."""
        self.is_observed = True
        self.observer = self.make_observer()
        self.on_observer_start()

    def cut_observer(self) -> None:
        """The observer hears nothing from now on."""
        self.is_observed = False

    def reconnect_observer(self) -> None:
        """End `cut_observer`."""
        self.is_observed = True
        self.on_observer_start()

    def restart_observer(self) -> None:
        """Start an observer from the snapshot of the last one."""
        saved = self.observer.snapshot()
        self.is_observed = True
        self.observer = self.make_observer()
        self.observer.restore(saved, self.now)
        self.on_observer_start()

    def hang(self) -> None:
        """The broker does not answer any more; no client can change anything."""

    def recover(self) -> None:
        """End `hang`."""

    def settle(self) -> None:
        """Let enough time pass for the observer to learn everything that it can."""

    # ------------------------------------------------------------ what each world tells

    def make_observer(self) -> Observer:
        raise NotImplementedError

    def on_observer_start(self) -> None:
        self.observer.on_connected(session_lost=True, now=self.now)

    def on_connect(
        self, name: str, session: Session, is_present: bool, was_online: bool
    ) -> None: ...

    def on_subscribe(self, name: str, topic_filter: str) -> None: ...

    def on_denied(self, name: str, topic_filter: str) -> None: ...

    def on_unsubscribe(self, name: str, topic_filter: str) -> None: ...

    def on_disconnect(self, name: str, session: Session) -> None: ...

    def on_broker_restart(self) -> None: ...


class StaticWorld(World):
    """The operator has configured every filter that clients use."""

    def make_observer(self) -> Observer:
        return StaticObserver(f for f in self.declared if not f.startswith("$SYS"))


class BeaconWorld(World):
    """Clients send beacons while they are connected, and announce the filters of persistent
    sessions once."""

    INTERVAL_S = 10.0

    def make_observer(self) -> Observer:
        return BeaconObserver(self.INTERVAL_S)

    def on_subscribe(self, name: str, topic_filter: str) -> None:
        self._announce(name, topic_filter)

    def on_unsubscribe(self, name: str, topic_filter: str) -> None:
        if self.sessions[name].is_persistent:
            self._send("NEW_REGULAR_TOPIC", f"unsubscribe {topic_filter}")

    def settle(self) -> None:
        """Time for beacons to expire; clients repeat what they have."""
        for _ in range(INTERVALS_VALID + 1):
            self.now += self.INTERVAL_S
            for name, session in self.sessions.items():
                for topic_filter in session.filters:
                    self._announce(name, topic_filter)
            self.observer.handle_timer(self.now)

    def _announce(self, name: str, topic_filter: str) -> None:
        is_plain = not topic_filter.startswith("$") and not set(topic_filter) & {"+", "#"}
        if is_plain and not self.sessions[name].is_persistent:
            self._send(f"federator/beacon/{topic_filter}", "")
        else:
            self._send("NEW_REGULAR_TOPIC", f"subscribe {topic_filter}")

    def on_disconnect(self, name: str, session: Session) -> None:
        if not session.is_persistent:
            for topic_filter in session.filters:
                self._send("NEW_REGULAR_TOPIC", f"unsubscribe {topic_filter}")

    def _send(self, topic: str, payload: str) -> None:
        if self.is_observed:
            self.observer.receive_publication(topic, payload.encode(), self.now)


class MosquittoWorld(World):
    """The log topics and counters of Mosquitto; the agent cannot read the log file."""

    has_log_file = False

    def __init__(self, declared: Iterable[str]) -> None:
        super().__init__(declared)
        self._model = Model("2.0")
        self._model.pass_time(1)  # clients connect later than in the second of the start

    def make_observer(self) -> Observer:
        return MosquittoObserver("hansa-")

    def on_observer_start(self) -> None:
        assert isinstance(self.observer, MosquittoObserver)
        self._model.attach(self.observer)
        if self.has_log_file:
            self.observer.begin_resync(self.now)
            self.observer.resync(self._model.log_file(), self.now)

    def cut_observer(self) -> None:
        super().cut_observer()
        self._model.detach()

    def restart_observer(self) -> None:
        self._model.detach()
        super().restart_observer()

    def on_connect(self, name: str, session: Session, is_present: bool, was_online: bool) -> None:
        self._model.connect(name, 4, is_clean=not session.is_persistent, lasts=False)

    def on_subscribe(self, name: str, topic_filter: str) -> None:
        self._model.subscribe(name, topic_filter, 1)

    def on_unsubscribe(self, name: str, topic_filter: str) -> None:
        self._model.unsubscribe(name, topic_filter)

    def on_disconnect(self, name: str, session: Session) -> None:
        self._model.disconnect(name)

    def on_broker_restart(self) -> None:
        self._model.clients.pop("hansa-watch", None)
        self._model.restart()
        self._model.pass_time(1)
        if self.is_observed:
            self.on_observer_start()

    def settle(self) -> None:
        """Three bursts of counters."""
        assert self._model.expected_filters() == self.subscribed()
        for _ in range(3):
            self._model.pass_time(10)
            self.observer.handle_timer(self.now + COUNTS_WAIT_S)
            self._model.count()


class MosquittoFileWorld(MosquittoWorld):
    """The same, and the agent reads the log file."""

    has_log_file = True


class RestWorld(World):
    """The broker lists its subscriptions; the list needs two requests."""

    STALE_AFTER_S = 60.0
    is_hanging = False

    def make_observer(self) -> Observer:
        return RestObserver("hansa-", self.STALE_AFTER_S)

    def hang(self) -> None:
        self.is_hanging = True

    def recover(self) -> None:
        self.is_hanging = False

    def settle(self) -> None:
        """Two polls."""
        assert isinstance(self.observer, RestObserver)
        listed = [ListedSubscription("hansa-agent", "own/#")]
        for name, session in self.sessions.items():
            listed += [ListedSubscription(name, topic_filter) for topic_filter in session.filters]
        for _ in range(2):
            if self.is_hanging:
                self.observer.on_poll_failed("no answer in time")
                assert not self.observer.is_complete
            else:
                self.observer.on_polled(listed, request_count=2, began_at=self.now)


class TopicsWorld(World):
    """The messages of aedes. Without earlier clients, the operator declares that the agent is
    first."""

    def make_observer(self) -> Observer:
        return TopicsObserver("aedes", "hansa-", agent_first=not self.sessions)

    def on_subscribe(self, name: str, topic_filter: str) -> None:
        self._send("subscribes", name, [{"topic": topic_filter, "qos": 1}])

    def on_denied(self, name: str, topic_filter: str) -> None:
        self._send("subscribes", name, [{"topic": topic_filter, "qos": REFUSED}])

    def on_unsubscribe(self, name: str, topic_filter: str) -> None:
        self._send("unsubscribes", name, [topic_filter])

    def on_connect(self, name: str, session: Session, is_present: bool, was_online: bool) -> None:
        if was_online and not is_present:  # the clean session that was taken over has ended
            self._send("unsubscribes", name, self.replaced_filters)

    def on_disconnect(self, name: str, session: Session) -> None:
        if not session.is_persistent:
            self._send("unsubscribes", name, list(session.filters))

    def on_broker_restart(self) -> None:
        if self.is_observed:
            self.on_observer_start()

    def _send(self, verb: str, name: str, subs: list[Any]) -> None:
        if self.is_observed:
            payload = json.dumps({"clientId": name, "subs": subs}).encode()
            self.observer.receive_publication(f"$SYS/b/new/{verb}", payload, self.now)


class ProxyWorld(World):
    """Clients connect through the proxy once it runs; earlier sessions are at the broker only."""

    can_miss_notifications = False

    def __init__(self, declared: Iterable[str]) -> None:
        super().__init__(declared)
        self._proxy: Proxy | None = None
        self._clients: dict[str, ProxyClient] = {}

    def make_observer(self) -> Observer:
        saved = self._saved_sessions()
        self._proxy = Proxy(
            Version.V311, may_have_earlier_sessions=bool(self.sessions) > bool(saved)
        )
        for name, filters in saved.items():
            self._proxy.observer.load_session(name, filters, NEVER)
        return self._proxy.observer

    def _saved_sessions(self) -> dict[str, list[str]]:
        """What the file of an earlier run holds: tests of the file are elsewhere."""
        if self._proxy is None:
            return {}
        return {name: list(s.filters) for name, s in self.sessions.items() if s.is_persistent}

    def restart_observer(self) -> None:
        """Restart the proxy: its clients are disconnected, their clean sessions end."""
        for name in [name for name, session in self.sessions.items() if session.is_online]:
            self.disconnect(name)
        super().restart_observer()

    def on_connect(self, name: str, session: Session, is_present: bool, was_online: bool) -> None:
        if self._proxy is not None:
            old = self._clients.get(name) if was_online else None
            self._clients[name] = self._proxy.connect(
                name, clean=not session.is_persistent, present=is_present
            )
            if old is not None:
                old.close()

    def on_subscribe(self, name: str, topic_filter: str) -> None:
        if name in self._clients:
            self._clients[name].subscribe(topic_filter)

    def on_denied(self, name: str, topic_filter: str) -> None:
        self._clients[name].subscribe(topic_filter, codes=bytes([REFUSED]))

    def on_unsubscribe(self, name: str, topic_filter: str) -> None:
        self._clients[name].unsubscribe(topic_filter)

    def on_disconnect(self, name: str, session: Session) -> None:
        if name in self._clients:
            self._clients.pop(name).close()

    def on_broker_restart(self) -> None:
        for name in list(self._clients):
            self._clients.pop(name).close()


WORLDS: dict[str, type[World]] = {
    "mosquitto, with log_file": MosquittoFileWorld,
    "mosquitto, without": MosquittoWorld,
    "rest": RestWorld,
    "topics": TopicsWorld,
    "proxy": ProxyWorld,
    "beacon": BeaconWorld,
    "static": StaticWorld,
}
