"""Makes the connections of an agent to its broker, each with another client id.

Only the main client has a session that the broker keeps while the agent is disconnected. All others
start clean and lose nothing that counts when they end.
"""

import random
from collections.abc import Callable

from hansa.agent.broker.connection import Connection, ConnectionFactory
from hansa.agent.settings import AgentSettings
from hansa.mqtt.effects import Effect
from hansa.mqtt.options import NEVER_EXPIRES, ConnectOptions
from hansa.protocol.model import NodeId


class BrokerConnections:
    def __init__(self, settings: AgentSettings, node: NodeId, rng: random.Random) -> None:
        self.client_id_prefix = f"{settings.broker.client_id or f'hansa-{node:016x}'}-"
        """Observers ignore clients whose ids begin with this."""
        self._settings = settings
        self._rng = rng
        self._main: Connection | None = None

    def make_main(self, on_effect: Callable[[Effect], None]) -> Connection:
        """Return the connection of the main client."""
        settings = self._settings
        options = ConnectOptions(
            client_id=f"{self.client_id_prefix}agent",
            clean_start=False,
            session_expiry=min(round(settings.protocol.interest_lease), NEVER_EXPIRES),
            receive_maximum=settings.delivery.in_flight_max,
            packet_bytes_max=settings.protocol.packet_bytes_max,
            keeps_3_1_1_session=settings.broker.keeps_3_1_1_session,
        )
        self._main = self._connect(options, on_effect)
        return self._main

    def factory(self, role: str) -> ConnectionFactory:
        """Return what makes a connection for small messages."""
        options = ConnectOptions(client_id=f"{self.client_id_prefix}{role}", clean_start=True)
        return lambda on_effect: self._connect(options, on_effect)

    def make_reader(self, role: str, on_effect: Callable[[Effect], None]) -> Connection:
        """Return a connection that reads messages of any size, in the version of the main
        client."""
        assert self._main is not None
        options = ConnectOptions(
            client_id=f"{self.client_id_prefix}{role}",
            version=self._main.version,
            clean_start=True,
            packet_bytes_max=self._settings.protocol.packet_bytes_max,
        )
        return self._connect(options, on_effect)

    def _connect(self, options: ConnectOptions, on_effect: Callable[[Effect], None]) -> Connection:
        return Connection(self._settings.broker.address(), options, on_effect, self._rng)
