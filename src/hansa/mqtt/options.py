"""The options of a connection: the content of CONNECT, and how long to wait for responses."""

from dataclasses import dataclass, field

from hansa.mqtt import packets
from hansa.mqtt.properties import Property, PropertyValue
from hansa.mqtt.types import Version

NEVER_EXPIRES = 0xFFFF_FFFF
"""The session expiry interval of a session that never expires [3.1.2.11.2]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOptions:
    """A reconnection may use other options, for example an older protocol version."""

    client_id: str
    """Our identity at the broker. The same id resumes the session and takes over a connection."""
    version: Version = Version.V5
    clean_start: bool = False
    """Whether to discard an existing session. In 3.1.1 (clean session) this also decides whether
    the new session outlives the connection."""
    session_expiry: int = 0
    """Seconds that the broker keeps the session after the connection has ended; MQTT 5 only."""
    keep_alive: int = 30
    """Seconds; the broker may drop a client that is silent for one and a half times this long, and
    may request another value. The client pings after half of it. 0 disables it, and with it the
    only way to notice a broker that hangs."""
    answer_timeout: float = 10.0
    """Seconds of silence after CONNECT or PINGREQ until the broker counts as dead."""
    receive_maximum: int = 1_000
    """Publications of QoS 1 and 2 that the broker may have in flight to us; MQTT 5 only. More than
    one commit to disk takes only makes the redelivery after a crash larger."""
    packet_bytes_max: int = 1 << 20
    """Bytes of the largest packet that we accept. An MQTT 5 broker drops larger publications for
    us; from a 3.1.1 broker they arrive and are reported without payload."""
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    will: packets.Will | None = None
    keeps_3_1_1_session: bool = False
    """Whether a session outlives the connection also if the broker does not support MQTT 5 and
    3.1.1 is used instead."""
    bridge: bool = False
    """3.1.1 only: ask the broker, in the way of bridges, not to send us our own publications. A
    broker that does not know it refuses the version."""

    def make_connect_packet(self) -> packets.ConnectPacket:
        connect_properties: list[tuple[Property, PropertyValue]] = []
        if self.version is Version.V5:
            connect_properties = [
                (Property.SESSION_EXPIRY_INTERVAL, self.session_expiry),
                (Property.RECEIVE_MAXIMUM, self.receive_maximum),
                (Property.MAXIMUM_PACKET_SIZE, self.packet_bytes_max),
            ]
        return packets.ConnectPacket(
            client_id=self.client_id,
            version=self.version,
            clean_start=self.clean_start,
            keep_alive=self.keep_alive,
            username=self.username,
            password=self.password,
            will=self.will,
            bridge=self.bridge,
            properties=tuple(connect_properties),
        )
