"""An agent beside a broker that misbehaves: it keeps running, and is never complete."""

import json
import socketserver
import threading
from collections.abc import Iterator
from itertools import count

import pytest
from tests.agent.live import eventually
from tests.agent.process import Scene

CONNACK, SUBACK = bytes.fromhex("2003000000"), bytes.fromhex("9004000100 00".replace(" ", ""))

MQTT_ANSWERS = (
    b"",
    b"\x00",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\xff" * 1_000,
    bytes.fromhex("20020000"),  # a CONNACK of MQTT 3.1.1
    CONNACK + SUBACK * 3,  # answers that nobody asked for
    CONNACK + b"\x30\x03\x00\x09x",  # a publication that ends too early
    CONNACK + b"\x32\x80\x80\x80\x80\x01",  # a length of five bytes
    bytes.fromhex("2006000003210000"),  # receive maximum 0
)
HTTP_ANSWERS = (
    b"",
    b"HTTP/1.0 500 Internal Server Error\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\n<html>",
    b"HTTP/1.0 200 OK\r\nContent-Length: 999\r\n\r\n[]",
    b'HTTP/1.0 200 OK\r\n\r\n[{"clientid": 1, "topic": null}]',
    b"HTTP/1.0 302 Found\r\nLocation: http://127.0.0.1/\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\n" + b"[" * 100_000,
)


class BadServer:
    """Answers each connection with the next of some bytes, and closes it."""

    def __init__(self, answers: tuple[bytes, ...]) -> None:
        self.connection_count = 0
        numbers = count()

        class Handler(socketserver.BaseRequestHandler):
            def handle(handler) -> None:
                try:
                    handler.request.settimeout(10)
                    handler.request.recv(1 << 16)
                    handler.request.sendall(answers[next(numbers) % len(answers)])
                except OSError:
                    pass
                self.connection_count += 1

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def mqtt() -> Iterator[BadServer]:
    server = BadServer(MQTT_ANSWERS)
    yield server
    server.close()


@pytest.fixture
def http() -> Iterator[BadServer]:
    server = BadServer(HTTP_ANSWERS)
    yield server
    server.close()


def test_agent_beside_a_bad_broker_runs_on_and_is_never_complete(
    scene: Scene, mqtt: BadServer, http: BadServer
):
    agent = scene.agent(
        broker_port=mqtt.port,
        broker_observer="rest",
        rest_kind="rmqtt",
        rest_url=f"http://127.0.0.1:{http.port}",
        rest_interval="0.1",
    )
    eventually(lambda: http.connection_count > 3 * len(HTTP_ANSWERS), "many polls")
    eventually(lambda: mqtt.connection_count >= 3, "connections to the broker")
    found = json.loads(agent.page("/status")[1])
    assert found["broker"]["observer_complete"] is False
    assert found["broker"]["observer_problem"]
    assert "internal error" not in found["alarms"]
    assert agent.page("/readyz")[0] == 503
    agent.process.terminate()
    assert agent.wait() == 0
    assert "Traceback" not in agent.log
