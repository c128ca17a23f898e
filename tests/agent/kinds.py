"""Third-party clients behind one interface: Mosquitto's own, paho-mqtt and gmqtt."""

import shutil
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

import gmqtt
import pytest
from paho.mqtt import client as paho
from paho.mqtt import enums
from tests.agent.live import LoopThread, eventually

HOST = "127.0.0.1"


class Subscriber:
    """A client that records received payloads in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes]] = []

    def unsubscribe(self, topic_filter: str) -> None:
        raise NotImplementedError

    def vanish(self) -> None:
        """Disconnect without DISCONNECT."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


# ---------------------------------------------------------------- mosquitto_sub and mosquitto_pub


class MosquittoSub(Subscriber):
    def __init__(self, port: int, *filters: str) -> None:
        super().__init__()
        wishes = [word for name in filters for word in ("-t", name)]
        command = ["mosquitto_sub", "-p", str(port), "-v", *wishes]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            topic, _, payload = line.rstrip().partition(b" ")
            self.seen.append((topic.decode(), payload))

    def unsubscribe(self, topic_filter: str) -> None:
        self.close()  # mosquitto_sub cannot unsubscribe otherwise

    def vanish(self) -> None:
        self._process.kill()
        self._end()

    def close(self) -> None:
        self._process.terminate()
        self._end()

    def _end(self) -> None:
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Mosquitto:
    """Mosquitto's command line clients: MQTT 3.1.1, one process each."""

    def subscribe(self, port: int, *filters: str) -> Subscriber:
        return MosquittoSub(port, *filters)

    def publish(self, port: int, topic: str, payloads: Sequence[bytes]) -> None:
        command = ["mosquitto_pub", "-p", str(port), "-t", topic, "-l"]
        subprocess.run(command, input=b"".join(each + b"\n" for each in payloads), check=True)


# ---------------------------------------------------------------- paho-mqtt


class PahoClient(Subscriber):
    def __init__(self, port: int, *filters: str) -> None:
        super().__init__()
        self._client = paho.Client(
            enums.CallbackAPIVersion.VERSION2, protocol=enums.MQTTProtocolVersion.MQTTv5
        )
        self._client.on_message = lambda *arguments: self.seen.append(
            (arguments[2].topic, arguments[2].payload)
        )
        self._client.connect(HOST, port)
        self._client.loop_start()
        for name in filters:
            self._client.subscribe(name)

    def publish(self, topic: str, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self._client.publish(topic, payload).wait_for_publish(10)

    def unsubscribe(self, topic_filter: str) -> None:
        self._client.unsubscribe(topic_filter)

    def vanish(self) -> None:
        self._client.loop_stop()
        connection = self._client.socket()
        assert connection is not None
        connection.close()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


class Paho:
    """paho-mqtt, with MQTT 5."""

    def subscribe(self, port: int, *filters: str) -> Subscriber:
        return PahoClient(port, *filters)

    def publish(self, port: int, topic: str, payloads: Sequence[bytes]) -> None:
        client = PahoClient(port)
        client.publish(topic, payloads)
        client.close()


# ---------------------------------------------------------------- gmqtt


class GmqttClient(Subscriber):
    def __init__(self, thread: LoopThread, port: int, *filters: str) -> None:
        super().__init__()
        self._thread = thread
        self._client: Any = thread.run(self._connect(port, filters))

    async def _connect(self, port: int, filters: tuple[str, ...]) -> Any:
        client = gmqtt.Client(f"gmqtt-{id(self):x}")
        client.on_message = self._note
        client.set_config({"reconnect_retries": -2})  # no retries: -1 is unlimited, 0 once
        await client.connect(HOST, port)
        for name in filters:
            client.subscribe(name)
        return client

    def _note(self, client: Any, topic: str, payload: bytes, *rest: Any) -> int:
        self.seen.append((topic, bytes(payload)))
        return 0

    def publish(self, topic: str, payloads: Sequence[bytes]) -> None:
        async def work() -> None:
            for payload in payloads:
                self._client.publish(topic, payload)

        self._thread.run(work())

    def unsubscribe(self, topic_filter: str) -> None:
        async def work() -> None:
            self._client.unsubscribe(topic_filter)

        self._thread.run(work())

    def vanish(self) -> None:
        async def work() -> None:
            self._client._connection._transport.abort()  # noqa: SLF001 - there is no other way

        self._thread.run(work())

    def close(self) -> None:
        self._thread.run(self._client.disconnect())


class Gmqtt:
    """gmqtt, with MQTT 5, in a separate event loop."""

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread

    def subscribe(self, port: int, *filters: str) -> Subscriber:
        return GmqttClient(self._thread, port, *filters)

    def publish(self, port: int, topic: str, payloads: Sequence[bytes]) -> None:
        client = GmqttClient(self._thread, port)
        client.publish(topic, payloads)
        client.close()


Kind = Mosquitto | Paho | Gmqtt


def all_kinds(thread: LoopThread) -> list[Kind]:
    """One client of each kind; skips the test without Mosquitto's clients."""
    if shutil.which("mosquitto_sub") is None:
        pytest.skip("mosquitto_sub and mosquitto_pub are not installed")
    return [Mosquitto(), Paho(), Gmqtt(thread)]


def wait_for(subscribers: Sequence[Subscriber], payload: bytes) -> None:
    """Wait until all subscribers have received a payload."""
    eventually(
        lambda: all(any(got == payload for _, got in each.seen) for each in subscribers),
        f"{payload!r} at all subscribers",
    )
