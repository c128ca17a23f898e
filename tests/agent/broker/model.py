"""A model of Mosquitto: its sessions, log lines and counters, after its source."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from hansa.observers.mosquitto.observer import MosquittoObserver

SUBSCRIBE, UNSUBSCRIBE = "$SYS/broker/log/M/subscribe", "$SYS/broker/log/M/unsubscribe"
NOTICE, ERROR = "$SYS/broker/log/N", "$SYS/broker/log/E"
PLAIN, SHARED = "$SYS/broker/subscriptions/count", "$SYS/broker/shared_subscriptions/count"
UPTIME, VERSION = "$SYS/broker/uptime", "$SYS/broker/version"
BYTES_SENT = "$SYS/broker/bytes/sent"
OWN = "hansa-"
VERSIONS = ("2.0", "2.1.0", "2.1.1")
FULL_VERSIONS = {"2.0": "2.0.11"}

Branch: TypeAlias = dict[str | None, Any]
"""A level of the tree: the levels below it, and under None the subscribers of this level."""


NOON = 1_794_789_600
RETAINED_S = 60
"""Seconds for which Mosquitto retains a $SYS value."""


def stamped(line: str, now: int = NOON + 23) -> bytes:
    return f"{now}: {line}".encode()


@dataclass
class Client:
    """A session; `lasts` is unknown to the log for an MQTT 5 session."""

    protocol: int
    is_clean: bool
    lasts: bool
    address: str
    filters: dict[str, None] = field(default_factory=dict)
    is_online: bool = True


class Model:
    """The broker. Each of VERSIONS logs disconnections and takeovers differently."""

    def __init__(
        self, version: str, websockets: bool = False, logs_subscriptions: bool = True
    ) -> None:
        self.version = version
        self._full_version = FULL_VERSIONS.get(version, version)
        self.now = NOON
        """Seconds since 1970; `pass_time` moves it."""
        self._logs_subscriptions = logs_subscriptions
        self._saved: dict[str, Client] = {}
        self.websockets = websockets
        self.clients: dict[str, Client] = {}
        self.history: list[str] = []
        self.listener: Callable[[str, bytes], object] | None = None
        self._extra_subscriptions: Callable[[], tuple[str, ...]] = tuple
        self._port = 1000
        self._closing: dict[str, Client] = {}
        self._start()

    # ------------------------------------------------------------ what clients do

    def connect(self, name: str, protocol: int, is_clean: bool, lasts: bool) -> None:
        self._port += 1
        old = self.clients.get(name)
        kept: dict[str, None] = {}
        if old is not None:
            if not is_clean and old.lasts:
                kept = old.filters
            if self.version != "2.0":
                self._end(name, old, "session taken over")
            elif old.is_online:
                self._log(ERROR, f"Client {name} already connected, closing old connection.")
        lasts = lasts if protocol == 5 else not is_clean
        new = Client(protocol, is_clean, lasts, f"127.0.0.1:{self._port}", kept)
        self.clients[name] = new
        number = protocol if self.version != "2.0" or protocol == 5 else protocol - 2
        self._log(
            NOTICE,
            f"New client connected from {new.address} as {name} (p{number}, c{int(is_clean)}, k9).",
        )
        if old is not None and old.is_online and self.websockets and self.version == "2.0":
            self._closing[name] = old

    def subscribe(self, name: str, topic_filter: str, qos: int) -> None:
        self.clients[name].filters[topic_filter] = None
        if self._logs_subscriptions:
            self._log(SUBSCRIBE, f"{name} {qos} {topic_filter}")
        if name in self._closing:
            self._end(name, self._closing.pop(name), "socket closed")

    def unsubscribe(self, name: str, topic_filter: str) -> None:
        self.clients[name].filters.pop(topic_filter, None)
        self._log(UNSUBSCRIBE, f"{name} {topic_filter}")

    def disconnect(self, name: str, reason: str = "") -> None:
        client = self.clients[name]
        self._end(name, client, reason)
        client.is_online = False
        if not client.lasts:
            del self.clients[name]

    def expire(self, name: str) -> None:
        del self.clients[name]
        self._log(NOTICE, f"Expiring client {name} due to timeout.")

    def turn_away(self, name: str) -> None:
        """A client with this id and a wrong password tries to connect."""
        if self.version == "2.0":
            self._log(NOTICE, "Client <unknown> disconnected, not authorised.")
        elif self.version == "2.1.0":
            self._log(NOTICE, f"Client {name} disconnected, not authorised.")
        else:
            self._log(NOTICE, f"Client {name} [10.0.0.66:6] disconnected: not authorised.")

    def save(self) -> None:
        """Save persistent sessions to disk."""
        self._saved = {
            name: replace(client, filters=dict(client.filters), is_online=False, address="(null):0")
            for name, client in self.clients.items()
            if client.lasts and not client.is_clean
        }

    def restart(self, in_order: bool = True) -> None:
        """Restart; after a crash, with the state of an earlier save."""
        self.listener = None
        if in_order:
            line = f"mosquitto version {self._full_version} terminating"
            self.history.append(stamped(line, self.now).decode())
            self.save()
        self.clients = self._saved
        self.save()
        self._start()

    def reload(self) -> None:
        """Reload the configuration: from now on subscriptions are logged."""
        self.history.append(stamped("Reloading config.", self.now).decode())
        self._logs_subscriptions = True

    def pass_time(self, seconds: int) -> None:
        self.now += seconds

    def _start(self) -> None:
        self._started_at = self.now
        self._uptime = 0
        self.history += [
            stamped(f"mosquitto version {self._full_version} starting", self.now).decode(),
            stamped("Config loaded.", self.now).decode(),
        ]
        self._published = dict(zip((PLAIN, SHARED), self._counts(), strict=True))
        self._published_at = dict.fromkeys(self._published, self.now)

    def _end(self, name: str, client: Client, reason: str) -> None:
        if self.version == "2.1.1":
            self._log(
                NOTICE,
                f"Client {name} [{client.address}] disconnected{': ' if reason else ''}{reason}.",
            )
        elif reason == "session taken over":
            self._log(NOTICE, f"Client {name} disconnected, session taken over.")
        else:
            self._log(
                NOTICE, f"Client {name} {'closed its connection' if reason else 'disconnected'}."
            )

    # ------------------------------------------------------------ what an observer sees

    def attach(self, observer: MosquittoObserver) -> None:
        """Connect and subscribe as an observer; its former connection has ended."""
        self.listener = None
        observer.on_connected(session_lost=True, now=0.0)
        name = f"{OWN}watch"
        self.clients.pop(name, None)
        self.connect(name, 5, is_clean=True, lasts=False)
        for topic in observer.topics_to_subscribe():
            self.clients[name].filters[topic] = None
            self.listener = lambda topic, payload: observer.receive_publication(topic, payload, 0.0)
            if self.now < self._published_at.get(topic, -RETAINED_S) + RETAINED_S:
                self.listener(topic, str(self._published[topic]).encode())
            if topic == UPTIME:
                self.listener(topic, b"%d seconds" % self._uptime)
            if topic == VERSION:
                self.listener(topic, f"mosquitto version {self._full_version}".encode())
            self._log(SUBSCRIBE, f"{name} 0 {topic}")
        self._extra_subscriptions = observer.extra_subscriptions
        self._subscribe_extra()

    def _subscribe_extra(self) -> None:
        for topic in self._extra_subscriptions():
            if topic not in self.clients[f"{OWN}watch"].filters:
                self.subscribe(f"{OWN}watch", topic, 0)

    def detach(self) -> None:
        self.listener = None
        self.clients.pop(f"{OWN}watch", None)

    def count(self) -> None:
        """Publish the counts as the broker does, every `sys_interval`."""
        self._uptime = self.now - self._started_at
        self._send(UPTIME, b"%d seconds" % self._uptime)
        for topic, counted in zip((PLAIN, SHARED), self._counts(), strict=True):
            if counted != self._published[topic]:
                self._published[topic] = counted
                self._published_at[topic] = self.now
                self._send(topic, str(counted).encode())
        self._send(BYTES_SENT, b"1")
        if self.listener is not None:
            self._subscribe_extra()

    def expected_filters(self) -> set[str]:
        """Filters that must be announced."""
        return {
            topic_filter
            for name, client in self.clients.items()
            if not name.startswith(OWN)
            for topic_filter in client.filters
            if not topic_filter.startswith("$SYS")
        }

    def log_file(self) -> str:
        return "".join(f"{line}\n" for line in self.history)

    def tree(self) -> str:
        """The subscription tree as printed after `kill -USR2`."""
        plain: Branch = {"": {}, "$SYS": {}}
        shared: Branch = {"": {}}
        for name, client in self.clients.items():
            for topic_filter in client.filters:
                _plant(name, topic_filter, plain, shared)
        return "".join(f"{line}\n" for line in (*_draw(plain, 0), *_draw(shared, 0)))

    def _counts(self) -> tuple[int, int]:
        names = [name for client in self.clients.values() for name in client.filters]
        shared = sum(name.startswith("$share/") for name in names)
        return len(names) - shared, shared

    def _log(self, topic: str, line: str) -> None:
        self.history.append(stamped(line, self.now).decode())
        self._send(topic, stamped(line, self.now))

    def _send(self, topic: str, payload: bytes) -> None:
        if self.listener is not None:
            self.listener(topic, payload)


def _plant(client: str, topic_filter: str, plain: Branch, shared: Branch) -> None:
    if topic_filter.startswith("$share/"):
        branch, path = shared, ["", "", *topic_filter.split("/")[2:]]
    elif topic_filter.startswith("$"):
        branch, path = plain, [topic_filter.partition("/")[0], *topic_filter.split("/")]
    else:
        branch, path = plain, ["", "", *topic_filter.split("/")]
    for level in path:
        branch = branch.setdefault(level, {})
    if branch is not shared and not topic_filter.startswith("$share/"):
        branch.setdefault(None, []).append(client)


def _draw(branch: Branch, depth: int) -> list[str]:
    lines = []
    for level, below in branch.items():
        if level is not None:
            holders = "".join(f" ({client}, 1)" for client in below.get(None, ()))
            lines += ["  " * (depth + 2) + level + holders, *_draw(below, depth + 1)]
    return lines
