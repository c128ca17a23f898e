"""The state of one client: its connection, and its session if the broker keeps it."""

from hansa.mqtt.packets import ConnectPacket, Will
from hansa.mqtt.properties import Property, find_property
from hansa.mqtt.types import Version
from hansa.simulator.broker.incoming import IncomingWindow
from hansa.simulator.broker.outgoing import OutgoingWindow
from hansa.simulator.broker.settings import MosquittoSettings

_NEVER_EXPIRES = 0xFFFFFFFF


class Session:
    __slots__ = (
        "_settings",
        "client_id",
        "connect",
        "connection_id",
        "expires_at",
        "expiry_interval",
        "filters",
        "incoming",
        "is_active",
        "outgoing",
        "will",
    )

    def __init__(self, client_id: str, settings: MosquittoSettings) -> None:
        """Start without a connection."""
        self._settings = settings
        self.client_id = client_id
        self.connection_id: int | None = None
        self.connect: ConnectPacket | None = None
        """The last CONNECT since the broker started; it is not saved."""
        self.is_active = False
        """Whether its window is filled from the queue: while it is connected, and still while the
        will of a lost connection is published."""
        self.will: Will | None = None
        self.expiry_interval = 0
        self.expires_at: int | None = None
        """The last second of an absent client's session. In 2.0 a session that was restored after
        a restart does not expire."""
        self.filters: dict[str, None] = {}
        """The filters of its subscriptions, `$share/<group>/` included."""
        in_flight_max = settings.max_inflight_messages
        self.outgoing = OutgoingWindow(in_flight_max, settings.is_v2_1)
        self.incoming = IncomingWindow(in_flight_max)

    def begin_connection(self, connection_id: int, packet: ConnectPacket) -> None:
        """Take over the parameters of a CONNECT."""
        in_flight_max = self._settings.max_inflight_messages
        self.connection_id = connection_id
        self.connect = packet
        self.is_active = True
        self.will = packet.will
        self.expires_at = None
        if packet.version is Version.V311:
            self.expiry_interval = 0 if packet.clean_start else _NEVER_EXPIRES
        else:
            self.expiry_interval = _number(packet, Property.SESSION_EXPIRY_INTERVAL, 0)
        self.outgoing.reconnect(_number(packet, Property.RECEIVE_MAXIMUM, in_flight_max))
        self.incoming.reconnect(in_flight_max)

    def expiry_from(self, second: int) -> int | None:
        """Return the last second of the session if its connection ends in this one."""
        return None if self.expiry_interval == _NEVER_EXPIRES else second + self.expiry_interval

    @property
    def is_v5(self) -> bool:
        return self.connect is not None and self.connect.version is Version.V5

    @property
    def is_bridge(self) -> bool:
        return self.connect is not None and self.connect.bridge

    @property
    def is_saved(self) -> bool:
        """Mosquitto does not save sessions whose last CONNECT was with clean start."""
        if self._settings.is_v2_1 and not self.expiry_interval:
            return False
        return self.connect is None or not self.connect.clean_start

    @property
    def gets_one_copy(self) -> bool:
        """Whether overlapping subscriptions give one copy instead of one each: at 3.1.1, and after
        a restart of the broker until the client connects, because its version is not saved."""
        return not self.is_v5 and not self._settings.allow_duplicate_messages


def _number(packet: ConnectPacket, name: Property, default: int) -> int:
    value = find_property(packet.properties, name, default)
    assert isinstance(value, int)
    return value
