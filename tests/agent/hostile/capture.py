"""A TCP port that records every byte: what an attacker at this address would learn."""

import socket
import threading
from collections.abc import Callable
from typing import Self


class Capture:
    """Listens on loopback. `answer` makes the reply to the first bytes of each connection."""

    def __init__(self, answer: Callable[[bytes], bytes] = lambda data: b"") -> None:
        self.received: list[bytes] = []
        """The first bytes of each connection, in order."""
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(0.1)
        self.port: int = self._listening.getsockname()[1]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                connected, _ = self._listening.accept()
            except TimeoutError:
                continue
            with connected:
                connected.settimeout(5)
                try:
                    data = connected.recv(1 << 16)
                    self.received.append(data)
                    connected.sendall(self._answer(data))
                except OSError:
                    continue

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._listening.close()
