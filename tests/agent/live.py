"""A live federation in a background event loop; tests use plain sockets."""

import asyncio
import select
import socket
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from itertools import count
from typing import Any, Self, TypeVar

from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.connection import ClientConnection
from hansa.mqtt.options import ConnectOptions
from hansa.mqtt.types import Version
from hansa.testbed.federation import LocalFederation, LocalNode

PATIENCE = 60.0
"""Timeout of a test in seconds: two on idle cores may become twenty on busy ones."""
CONVERGED_S = 180.0
"""Timeout for the start of a federation: ten brokers and agents start at once."""
_T = TypeVar("_T")


def eventually(holds: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Wait until a condition holds and return its value; fail with `what`."""
    deadline = time.monotonic() + patience
    while True:
        with suppress(TimeoutError):  # an agent with 10,000 new filters on busy cores answers later
            if found := holds():
                return found
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


class LoopThread:
    """An event loop in the background."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CONVERGED_S + 20)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Client:
    """A minimal client of one broker.

    It sends no pings and disables keep-alive, so that its broker does not close it in long tests.
    """

    def __init__(
        self,
        port: int,
        name: str = "",
        version: Version = Version.V311,
        clean: bool = True,
        **more: Any,
    ) -> None:
        self.port = port
        name = name or f"test-{id(self):x}"
        given = {"keep_alive": 0, **more}
        self._session = ClientConnection(
            ConnectOptions(client_id=name, version=version, clean_start=clean, **given)
        )
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.received: list[packets.PublishPacket] = []
        self._others: list[effects.Effect] = []
        self._do(inputs.Opened())
        self._wait(effects.Connected)

    def _do(self, event: inputs.Input) -> None:
        for effect in self._session.handle(event, time.monotonic()):
            match effect:
                case effects.Write(data):
                    self._socket.sendall(data)
                case effects.Close():
                    self._socket.close()
                case effects.PublishReceived(batch):
                    self.received += batch
                case _:
                    self._others.append(effect)

    def _read(self, patience: float) -> bool:
        ready, _, _ = select.select([self._socket], [], [], patience)
        if ready:
            data = self._socket.recv(1 << 16)
            self._do(inputs.Received(data) if data else inputs.Closed())
        return bool(ready)

    def _wait(self, kind: type) -> Any:
        deadline = time.monotonic() + PATIENCE
        while not (found := [each for each in self._others if isinstance(each, kind)]):
            assert time.monotonic() < deadline, f"no {kind.__name__}, but {self._others}"
            self._read(0.1)
        self._others.remove(found[0])
        return found[0]

    def subscribe(self, *filters: str) -> "Client":
        for start in range(0, len(filters), 500):
            subscriptions = tuple(
                packets.Subscription(name) for name in filters[start : start + 500]
            )
            self._do(inputs.Subscribe(subscriptions))
            self._wait(effects.Subscribed)
        return self

    def unsubscribe(self, *filters: str) -> None:
        self._do(inputs.Unsubscribe(filters))
        self._wait(effects.Unsubscribed)

    def publish(self, topic: str, *payloads: bytes) -> None:
        self._do(inputs.Publish([packets.PublishPacket(topic, payload) for payload in payloads]))

    def wait_for(
        self, payload: bytes, patience: float = PATIENCE, pause: float = 0.15
    ) -> list[tuple[str, bytes]]:
        """Read until a payload arrives, and a little longer for unexpected ones; return all."""
        return self.wait_for_all([payload], patience, pause)

    def wait_for_all(
        self, payloads: Collection[bytes], patience: float = PATIENCE, pause: float = 0.15
    ) -> list[tuple[str, bytes]]:
        """Read until all payloads have arrived, in any order."""
        deadline = time.monotonic() + patience
        while missing := set(payloads).difference(each.payload for each in self.received):
            assert time.monotonic() < deadline, f"no {missing} among {len(self.received)}"
            self._read(0.1)
        while self._read(pause):
            pass
        seen, self.received = self.received, []
        return [(each.topic, each.payload) for each in seen]

    def wait_for_any(self) -> None:
        """Read until a publication arrives."""
        deadline = time.monotonic() + PATIENCE
        while not self.received:
            assert time.monotonic() < deadline, "nothing has come"
            self._read(0.1)

    def silent(self, seconds: float = 0.3) -> bool:
        """Whether nothing arrives for a while."""
        while self._read(seconds):
            if self.received:
                return False
        return not self.received

    def hears(self, payload: bytes) -> bool:
        """Whether a payload arrives before a pause; discard everything received."""
        while self._read(0.3):
            pass
        heard, self.received = self.received, []
        return any(each.payload == payload for each in heard)

    def kill(self) -> None:
        """Close without DISCONNECT."""
        self._socket.close()

    def close(self) -> None:
        self._do(inputs.Disconnect())


def assert_each_once(
    publisher: Client, subscribers: Iterable[Client], topic: str, payloads: Collection[bytes]
) -> None:
    """Assert that each publication arrives everywhere once.

    In any order: QoS 0 keeps its order only while paths are stable, and those of new interest may
    still change.
    """
    publisher.publish(topic, *payloads)
    for subscriber in subscribers:
        received = sorted(subscriber.wait_for_all(payloads))
        assert received == sorted((topic, payload) for payload in payloads)


def wait_until_reachable(publisher: Client, subscribers: Collection[Client], topic: str) -> None:
    """Publish until it arrives everywhere: QoS 0 in flight during a change may be lost."""
    numbers = count()

    def all_receive() -> bool:
        probe = b"probe %d" % next(numbers)
        publisher.publish(topic, probe)
        return all([each.hears(probe) for each in subscribers])

    eventually(all_receive, "a way", 60)


_C = TypeVar("_C", bound=Client)


class Live:
    """A running federation."""

    def __init__(self, federation: LocalFederation) -> None:
        self.federation = federation
        self._thread = LoopThread()
        self._clients: list[Client] = []

    @property
    def nodes(self) -> list[LocalNode]:
        return self.federation.nodes

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._thread.run(work)

    def start(self) -> None:
        self.run(self.federation.start())
        self.wait_converged()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def client(self, number: int, **options: Any) -> Client:
        return self.client_of(Client, number, **options)

    def client_of(self, kind: type[_C], number: int, **options: Any) -> _C:
        made = kind(self.nodes[number].broker.port, **options)
        self._clients.append(made)
        return made

    def subscriber(self, number: int, *filters: str, **options: Any) -> Client:
        """Return a client whose interest is installed everywhere."""
        made = self.client(number, **options).subscribe(*filters)
        self.wait_installed(number, *filters)
        return made

    def wait_installed(self, number: int, *filters: str, patience: float = PATIENCE) -> None:
        def holds() -> bool:
            interest: Any = self.nodes[number].status()["interest"]
            return bool(interest["installed"]) and set(filters) <= set(interest["local"])

        eventually(holds, f"{filters[:3]} of {number} installed everywhere", patience)

    def wait_converged(self) -> None:
        self.run(self.federation.wait_until_converged(CONVERGED_S))

    def counter(self, number: int, name: str) -> int:
        counters: Any = self.nodes[number].status()["counters"]
        found: int = counters.get(name, 0)
        return found

    def log(self, number: int) -> str:
        return self.nodes[number].log_file.read_text()

    def hang_up(self) -> None:
        while self._clients:
            self._clients.pop().kill()

    def close(self) -> None:
        self.hang_up()
        self.run(self.federation.stop())
        self._thread.close()
