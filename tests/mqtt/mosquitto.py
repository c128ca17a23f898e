"""A real Mosquitto on a free loopback port, and a plain blocking client around
`ClientConnection`."""

import socket
import subprocess
import time
from pathlib import Path
from typing import TypeVar

from hansa.mqtt import effects, inputs
from hansa.mqtt.connection import ClientConnection
from hansa.mqtt.effects import Effect
from hansa.mqtt.options import ConnectOptions
from hansa.testbed.mosquitto import free_port

PATIENCE = 60.0
"""Seconds until a test stops waiting for the broker."""

_Effect = TypeVar("_Effect")


class Broker:
    def __init__(self, program: str, directory: Path, *settings: str) -> None:
        self._sockets: list[socket.socket] = []
        self.port = free_port()
        lines = (f"listener {self.port} 127.0.0.1", "allow_anonymous true", "user root", *settings)
        config = directory / f"mosquitto-{self.port}.conf"
        config.write_text("\n".join(lines) + "\n")
        self._log = (directory / f"mosquitto-{self.port}.log").open("wb")
        self._process = subprocess.Popen(
            [program, "-c", str(config)], stdout=self._log, stderr=subprocess.STDOUT
        )

    def close_all(self) -> None:
        """Close all connections at the end of a test."""
        while self._sockets:
            self._sockets.pop().close()

    def close(self) -> None:
        self.close_all()
        self._process.kill()
        self._process.wait()
        self._log.close()

    def dial(self) -> socket.socket:
        """Connect as soon as it listens."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                opened = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
                self._sockets.append(opened)
                return opened
            except ConnectionRefusedError:
                assert self._process.poll() is None, "mosquitto does not start"
                assert time.monotonic() < deadline, "mosquitto does not listen"
                time.sleep(0.02)


class Client:
    """The smallest shell of a connection."""

    def __init__(self, broker: Broker, options: ConnectOptions) -> None:
        self.session = ClientConnection(options)
        self._socket = broker.dial()
        self._pending: list[Effect] = []
        self.do(inputs.Opened())

    def do(self, event: inputs.Input) -> None:
        """Apply an input, perform the commands, keep the notifications."""
        for effect in self.session.handle(event, time.monotonic()):
            match effect:
                case effects.Write(data):
                    self._socket.sendall(data)
                case effects.Close():
                    self._socket.close()
                case _:
                    self._pending.append(effect)

    def wait(self, kind: type[_Effect]) -> _Effect:
        """Read until there is a notification of this type; return it and keep all others."""
        while True:
            for index, effect in enumerate(self._pending):
                if isinstance(effect, kind):
                    del self._pending[index]
                    return effect
            data = self._socket.recv(65_536)
            self.do(inputs.Received(data) if data else inputs.Closed())

    def drop(self) -> None:
        """Lose the connection as in a crash."""
        self._socket.close()
