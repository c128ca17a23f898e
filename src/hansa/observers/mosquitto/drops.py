"""What Mosquitto's counter of dropped messages means for the agent.

The counter runs since the broker's start and covers all clients. The log names a client when the
broker begins to drop messages for it, once. So two kinds of drops can be told apart from a loss of
the agent: those before the agent's first connection, and those of `hansa doctor`, which overflows a
queue of its own on purpose.
"""

DOCTOR_PREFIX = "hansa-doctor-"
"""How the client ids of `hansa doctor` begin."""

DOCTOR_GRACE_S = 60.0
"""Seconds after the log has named a client of `hansa doctor` in which a higher count may be due to
it: the broker publishes the count only every `sys_interval`, by default 10 s."""

CLIENTS_MAX = 1_000
"""Clients that are remembered; of more, drops are never taken for those of `hansa doctor`."""


class DroppedMessageCounter:
    """The counter, and the clients that the log has named."""

    def __init__(self) -> None:
        """Start as an agent that was never connected to this broker."""
        self.now = 0.0
        self._total: int | None = None
        """The count that was last seen; None before the first connection of this agent."""
        self._doctor_at: float | None = None
        """When the log last named a client of `hansa doctor`."""
        self._other_clients: set[str] = set()
        """Other clients that it has named, and that the broker may still drop messages for."""

    @property
    def total(self) -> int:
        """The count, to be saved."""
        return self._total or 0

    def restore(self, total: object) -> None:
        """Continue from a saved count: a higher one may mean a loss while the agent was away."""
        self._total = total if isinstance(total, int) else 0

    def on_connected(self) -> None:
        """All that the broker counted before this connection has arrived."""
        if self._total is None:
            self._total = 0

    def on_client_named(self, client: str) -> None:
        """The log says that the broker begins to drop messages for a client."""
        if client.startswith(DOCTOR_PREFIX):
            self._doctor_at = self.now
        elif len(self._other_clients) < CLIENTS_MAX:
            self._other_clients.add(client)

    def update_total(self, total: int) -> int:
        """Note a count; return how many messages were dropped since the last one, 0 if the agent
        has certainly lost none of them."""
        before, self._total = self._total, total
        if before is None or self._is_by_doctor():
            return 0
        return total - before if total >= before else total  # the broker was restarted

    def _is_by_doctor(self) -> bool:
        if self._other_clients or self._doctor_at is None:
            return False
        return self.now - self._doctor_at < DOCTOR_GRACE_S
