"""How neighbours are reached: the section `[link]` of an agent's settings."""

import re
from dataclasses import dataclass, field

from hansa.agent.broker.access import check_access
from hansa.agent.exposure import check_link_exposure
from hansa.agent.links.link import Address
from hansa.agent.links.stream import RECEIPT_BYTES, WINDOW_BYTES
from hansa.errors import InvalidTopic, UsageError
from hansa.protocol.topics import check_name

LINK_PORT = 10_500
"""Where agents listen for each other unless told otherwise, as in Machado 2023."""

BROKER_PORT = 1883
"""Where brokers listen unless told otherwise, and with them links through brokers."""

PORT_MAX = 65_535
WINDOW_BYTES_MIN = 4 * RECEIPT_BYTES
"""A window that receipts keep open."""

DATAGRAM_PACKET_BYTES_MAX = 1 << 20
"""What a repair can bring over links of datagrams, in a thousand of them."""

TRANSPORTS = ("tcp", "udp", "mqtt")

NODE_ID = re.compile("[0-9a-f]{16}")

CHUNK_BYTES_MIN = 1_024
CHUNK_BYTES_MAX = 65_536


@dataclass(frozen=True, slots=True)
class MqttLinkSettings:
    """Links through brokers: how to be let in at the neighbours'."""

    prefix: str = "$hansa/link"
    """Topics that belong to links, the same on both sides. They never cross; with a $ in front
    other clients' wildcards do not match them either. Not every broker lets clients use those."""
    username: str = ""
    """The own broker's are in [broker]: its password is not shown to others."""
    password: str = field(default="", repr=False)
    trusted: tuple[str, ...] = ()
    """Brokers, beside [link] neighbours, that get username and password, as host:port. Addresses
    that other nodes or a manager name get neither, because anybody may have chosen them."""
    accept: tuple[str, ...] = ()
    """Ids of the nodes that may open links here, as hansa status shows them; all if empty. The
    broker's ACL must let each user publish only to the ids of its own nodes: see docs/links.md."""
    tls: bool = False
    """Whether to speak TLS to neighbours' brokers."""
    tls_ca: str = ""
    """File with the authorities to trust; the system's if empty."""
    chunk_bytes: int = CHUNK_BYTES_MAX
    """Bytes in one publication, at most: less than message_size_limit of either broker, which a
    broker does not tell; what it tells (its largest packet) is respected anyway."""


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """How neighbours are reached."""

    host: str = "127.0.0.1"
    """Where to listen. Beyond loopback only with insecure, because links are not authenticated or
    encrypted yet."""
    port: int = LINK_PORT
    """Where to listen; 0 takes a free port. With transport mqtt no port is opened."""
    insecure: bool = False
    """Whether to listen beyond loopback although every peer that reaches the port can join the
    federation, read and publish. Only for networks that you trust; raises the alarm insecure."""
    neighbours: tuple[str, ...] = ()
    """Whom to dial, as host:port, or tcp://, udp:// or mqtt://host:port where that differs from
    transport. One side of a link is enough."""
    transport: str = "tcp"
    """How to dial and to listen: tcp; udp, where the agent also listens for datagrams, which carry
    control and publications of up to 1 kB; or mqtt, through brokers: dial a neighbour's broker."""
    window_bytes: int = WINDOW_BYTES
    """Bytes that may be under way to a neighbour before its publications are dropped, and counted.
    Window by round trip is the highest rate; more takes longer bursts and more memory."""
    mqtt: MqttLinkSettings = field(default_factory=MqttLinkSettings)


def check_link(link: LinkSettings, packet_bytes_max: int) -> None:
    """Refuse what cannot work, naming the setting and what to change."""
    if link.transport not in TRANSPORTS:
        choice = ", ".join(TRANSPORTS)
        raise UsageError(f"[link] transport must be one of {choice}, not {link.transport!r}")
    if link.window_bytes < WINDOW_BYTES_MIN:
        raise UsageError(
            f"[link] window_bytes must be at least {WINDOW_BYTES_MIN} bytes, not {link.window_bytes}"
        )
    if link.transport != "mqtt":
        check_link_exposure(link.host, link.insecure)
    transports = {link.transport, *(parse_neighbour(n, link.transport)[0] for n in link.neighbours)}
    if "udp" in transports and packet_bytes_max > DATAGRAM_PACKET_BYTES_MAX:
        raise UsageError(
            f"[protocol] packet_bytes_max must be at most {DATAGRAM_PACKET_BYTES_MAX} with udp, not"
            f" {packet_bytes_max}: use tcp or mqtt for more"
        )
    check_access("link.mqtt", link.mqtt)
    if not CHUNK_BYTES_MIN <= link.mqtt.chunk_bytes <= CHUNK_BYTES_MAX:
        raise UsageError(
            f"[link.mqtt] chunk_bytes must be from {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX} bytes,"
            f" not {link.mqtt.chunk_bytes}"
        )
    for text in link.mqtt.trusted:
        parse_address(text, BROKER_PORT)
    for text in link.mqtt.accept:
        if not NODE_ID.fullmatch(text):
            raise UsageError(f"[link.mqtt] accept: {text!r} is no node id of 16 hexadecimal digits")
    try:
        check_name(link.mqtt.prefix)
    except InvalidTopic as error:
        raise UsageError(f"[link.mqtt] prefix: {error}") from error


def trusted_brokers(link: LinkSettings) -> frozenset[Address]:
    """Return the brokers that get the user name and password of links."""
    named = [parse_neighbour(each, link.transport) for each in link.neighbours]
    listed = {parse_address(each, BROKER_PORT) for each in link.mqtt.trusted}
    return frozenset(listed | {address for transport, address in named if transport == "mqtt"})


def parse_neighbour(text: str, transport: str) -> tuple[str, Address]:
    """Read an address with or without its transport; return both."""
    scheme, mark, rest = text.rpartition("://")
    if mark and scheme not in TRANSPORTS:
        choice = ", ".join(TRANSPORTS)
        raise UsageError(f"neighbour {text!r}: the transport must be one of {choice}")
    used = scheme or transport
    return used, parse_address(rest, BROKER_PORT if used == "mqtt" else LINK_PORT)


def parse_address(text: str, default_port: int = LINK_PORT) -> Address:
    """Read `host:port`, or `host` alone for the usual port; `[::1]:port` for addresses of IPv6."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(default_port)
    if not host.strip("[]"):
        raise UsageError(f"neighbour {text!r}: the host is missing")
    if ":" in host and not host.startswith("["):
        raise UsageError(f"neighbour {text!r}: write an address of IPv6 as [address]:port")
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= PORT_MAX):
        raise UsageError(f"neighbour {text!r}: the port must be a number from 1 to {PORT_MAX}")
    return Address(host.strip("[]"), int(port))
