"""What a client says of itself when it connects, and how long it waits for answers."""

from dataclasses import dataclass, field

from hansa.mqtt import packets
from hansa.mqtt.properties import Property, PropertyValue
from hansa.mqtt.types import Version

NEVER_EXPIRES = 0xFFFF_FFFF
"""The session expiry that means: keep it until told otherwise [3.1.2.11.2]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOptions:
    """One connection's options. A reconnection may use others, an older version for instance."""

    client_id: str
    """Who we are to the broker. The same id resumes the session, and takes over a connection."""
    version: Version = Version.V5
    clean_start: bool = False
    """Whether to forget the session of before. In 3.1.1 this also decides whether this one lasts:
    it is then called clean session."""
    session_expiry: int = 0
    """Seconds that the broker keeps the session after the connection has ended; MQTT 5 only."""
    keep_alive: int = 30
    """Seconds; the broker may give up a client that is silent for one and a half times this long,
    and may ask for another value. A sign of life is asked for after half of it. 0 turns it off,
    and with it the only way to notice a broker that hangs."""
    answer_timeout: float = 10.0
    """Seconds of silence after a CONNECT or PINGREQ until the broker counts as dead."""
    receive_maximum: int = 1_000
    """Publications at QoS 1 and 2 that the broker may have under way to us; MQTT 5 only. Above
    what one commit to disk takes, more brings nothing but a larger redelivery after a crash."""
    packet_bytes_max: int = 1 << 20
    """Bytes of the largest packet that we take. An MQTT 5 broker drops larger publications for us;
    from a 3.1.1 broker they come, and are reported without their payload."""
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    will: packets.Will | None = None
    bridge: bool = False
    """3.1.1 only: ask not to be sent our own publications, in the way that bridges do it. A broker
    that does not know it refuses the version."""

    def make_connect_packet(self) -> packets.ConnectPacket:
        """Return the packet that says all this."""
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
