"""A manager that listens on loopback in a thread, and requests to it."""

import asyncio
import http.client
import json
import threading
from contextlib import suppress
from typing import Any

from hansa.manager.service import ManagerOptions, ManagerService


class Served:
    """A manager on a free port of loopback."""

    def __init__(self, database: str, environment: dict[str, str] | None = None, **options: Any):
        self.manager = ManagerService(
            ManagerOptions(port=0, database=database, **options), environment or {}
        )
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.port = self.node_port = 0
        self._thread.start()
        assert self._ready.wait(20)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        listening = self.manager.bind()
        self.port = listening.getsockname()[1]
        self.node_port = self.manager.bind_for_nodes()
        self._loop = asyncio.get_running_loop()
        self._serving = asyncio.create_task(self.manager.serve(listening))
        self._loop.call_later(0.01, self._ready.set)
        with suppress(asyncio.CancelledError):
            await self._serving

    def stop(self) -> None:
        """Stop; may be called repeatedly."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.manager.stop)
        self._thread.join(20)
        assert not self._thread.is_alive()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, method: str, path: str, body: Any = None, token: str = "", raw: bytes | None = None
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        data = raw if raw is not None else (None if body is None else json.dumps(body).encode())
        if data is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        finally:
            connection.close()
