"""Interprets Mosquitto's counter of dropped messages.

The counter runs since the broker's start and covers all clients. The log names a client when the
broker begins to drop messages for it, once. So two kinds of drops certainly do not concern the
agent: those before its first connection, and those of `hansa doctor`, which overflows a queue of
its own on purpose.

Lines of the log may be dropped, too, if the agent reads too slowly, and then the line that names
the agent is dropped with them. The broker drops only when a long queue is full. So lines can only
be lost while publications come to the agent in quick succession.
"""

DOCTOR_PREFIX = "hansa-doctor-"
"""Prefix of the client ids of `hansa doctor`."""

DOCTOR_GRACE_S = 60.0
"""Seconds after the log has named a client of `hansa doctor` in which a higher count may be due to
it: the broker publishes the count only every `sys_interval`, by default 10 s."""

BACKLOG_MIN = 500
"""Publications in quick succession that mean a queue at the broker. It drops lines of the log when
1,000 are queued (`max_queued_messages`) and the buffers of the connection are full. A lower number
doubts more often, when many clients subscribe at once and messages of another client are dropped.
"""

BACKLOG_RATE = 200.0
"""Publications per second that are not counted: a reader that keeps up with them has no queue."""

CLIENTS_MAX = 1_000
"""Clients that are remembered; beyond that, drops are never attributed to `hansa doctor`."""


class DroppedMessageCounter:
    """The counter, and the clients that the log has named."""

    def __init__(self) -> None:
        self.now = 0.0
        self._total: int | None = None
        """The last count; None before the first connection of this agent."""
        self._doctor_at: float | None = None
        """When the log last named a client of `hansa doctor`."""
        self._other_clients: set[str] = set()
        """Other named clients for which the broker may still drop messages."""
        self._backlog = 0.0
        self._backlog_max = [0.0, 0.0]
        """Before and since the last sample of the broker's counters."""

    @property
    def total(self) -> int:
        """The count, to be saved."""
        return self._total or 0

    def restore(self, total: object) -> None:
        """Continue from a saved count: a higher one may mean a loss while the agent was
        disconnected."""
        self._total = total if isinstance(total, int) else 0

    @property
    def had_backlog(self) -> bool:
        """Whether messages dropped since the last sample may have been for the agent."""
        return max(self._backlog_max) >= BACKLOG_MIN

    def on_publication(self, now: float) -> None:
        """A publication arrived on the connection of the observer."""
        passed_s, self.now = max(now - self.now, 0.0), now
        self._backlog = max(self._backlog - passed_s * BACKLOG_RATE, 0.0) + 1
        self._backlog_max[1] = max(self._backlog_max[1], self._backlog)

    def on_sample(self) -> None:
        """A sample of the broker's counters begins: all earlier ones have arrived."""
        if self._total is None:
            self._total = 0
        self._backlog_max = [self._backlog_max[1], self._backlog]

    def on_client_named(self, client: str) -> None:
        """The log says that the broker begins to drop messages for a client."""
        if client.startswith(DOCTOR_PREFIX):
            self._doctor_at = self.now
        elif len(self._other_clients) < CLIENTS_MAX:
            self._other_clients.add(client)

    def update_total(self, total: int) -> int:
        """Process a count; return how many messages were dropped since the last one, 0 if the
        agent certainly lost none of them."""
        before, self._total = self._total, total
        if before is None or self._is_by_doctor():
            return 0
        return total - before if total >= before else total  # the broker was restarted

    def _is_by_doctor(self) -> bool:
        if self._other_clients or self._doctor_at is None:
            return False
        return self.now - self._doctor_at < DOCTOR_GRACE_S
