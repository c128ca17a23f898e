"""A Mosquitto in miniature: what it holds, logs and counts, as its source has it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hansa.agent.brokers.mosquitto import MosquittoObserver

SUBSCRIBE, UNSUBSCRIBE = "$SYS/broker/log/M/subscribe", "$SYS/broker/log/M/unsubscribe"
NOTICE, ERROR = "$SYS/broker/log/N", "$SYS/broker/log/E"
PLAIN, SHARED = "$SYS/broker/subscriptions/count", "$SYS/broker/shared_subscriptions/count"
UPTIME, VERSION = "$SYS/broker/uptime", "$SYS/broker/version"
OWN = "hansa-"
VERSIONS = ("2.0", "2.1.0", "2.1.1")

Branch: TypeAlias = dict[str | None, Any]
"""A level of the tree: the levels below it, and under None who subscribed exactly here."""


def stamped(line: str) -> bytes:
    return f"1794789623: {line}".encode()


@dataclass
class Client:
    """A session; `lasts` is what no line tells of an MQTT 5 one."""

    protocol: int
    is_clean: bool
    lasts: bool
    address: str
    filters: dict[str, None] = field(default_factory=dict)
    is_online: bool = True


class Model:
    """The broker. Each of VERSIONS logs ends and takeovers in its own way."""

    def __init__(self, version: str, websockets: bool = False) -> None:
        self.version = version
        self.websockets = websockets
        self.clients: dict[str, Client] = {}
        self.history: list[str] = []
        self.listener: Callable[[str, bytes], object] | None = None
        self._published = {PLAIN: 0, SHARED: 0}
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
        """Somebody without the right password says to be this client."""
        if self.version == "2.0":
            self._log(NOTICE, "Client <unknown> disconnected, not authorised.")
        elif self.version == "2.1.0":
            self._log(NOTICE, f"Client {name} disconnected, not authorised.")
        else:
            self._log(NOTICE, f"Client {name} [10.0.0.66:6] disconnected: not authorised.")

    def restart(self) -> None:
        self.listener = None
        kept = {
            name: client
            for name, client in self.clients.items()
            if client.lasts and not client.is_clean
        }
        for client in kept.values():
            client.is_online = False
            client.address = "(null):0"
        self.clients = kept
        self._published = {PLAIN: 0, SHARED: 0}
        self._start()

    def _start(self) -> None:
        self.history += [
            "1794789600: mosquitto version 2.0.11 starting",
            "1794789600: Config loaded.",
        ]

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
        """Connect and subscribe for an observer, whose former connection is gone."""
        self.listener = None
        observer.reconnected(session_lost=True, now=0.0)
        name = f"{OWN}watch"
        self.clients.pop(name, None)
        self.connect(name, 5, is_clean=True, lasts=False)
        for topic in observer.subscriptions():
            self.clients[name].filters[topic] = None
            self.listener = lambda topic, payload: observer.take(topic, payload, 0.0)
            if topic in self._published:
                self.listener(topic, str(self._published[topic]).encode())
            if topic == UPTIME:
                self.listener(topic, b"0 seconds")
            self._log(SUBSCRIBE, f"{name} 0 {topic}")

    def detach(self) -> None:
        self.listener = None
        self.clients.pop(f"{OWN}watch", None)

    def count(self) -> None:
        """Publish the counts as the broker does, every `sys_interval`."""
        self._send(UPTIME, b"10 seconds")
        for topic, counted in zip((PLAIN, SHARED), self._counts(), strict=True):
            if counted != self._published[topic]:
                self._published[topic] = counted
                self._send(topic, str(counted).encode())

    def wanted(self) -> set[str]:
        """What must be announced."""
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
        """What `kill -USR2` prints."""
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
        self.history.append(stamped(line).decode())
        self._send(topic, stamped(line))

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
