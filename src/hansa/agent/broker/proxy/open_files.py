"""The limit of open files, which bounds the clients of the proxy: each needs two."""

import resource
from collections import Counter
from contextlib import suppress

from hansa.agent.alarms import Alarms

FILES_RESERVED = 256
"""Open files that the rest of the agent may need."""

ROOM_AGAIN = 0.9
"""Part of the clients that fit, below which the alarm `proxy full` is cleared."""


class OpenFileLimit:
    """Decides whether one more client fits, and raises the alarm `proxy full` if not."""

    def __init__(self, alarms: Alarms, counters: Counter[str]) -> None:
        self._alarms = alarms
        self._counters = counters

    def raise_to_most(self) -> None:
        """Use all open files that the system allows this process."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def has_room(self, client_count: int) -> bool:
        """Whether as many clients fit."""
        clients_max = self._clients_max()
        if client_count < clients_max * ROOM_AGAIN:
            self._alarms.set("proxy full", "")
        return client_count <= clients_max

    def report_full(self) -> None:
        """A client was refused for want of room."""
        self._counters["proxy connections refused: too many open files"] += 1
        text = f"{self._clients_max()} clients are connected, and the limit of open files allows no"
        text += " more: raise LimitNOFILE of the service (ulimit -n)"
        self._alarms.set("proxy full", text)

    @staticmethod
    def _clients_max() -> int:
        return max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_RESERVED, 0) // 2
