"""The section `[link]` of an agent's settings."""

import re
from dataclasses import dataclass, field

from hansa.agent.broker.access import check_access
from hansa.agent.links.budget import LimitSettings
from hansa.agent.links.link import Address
from hansa.agent.links.stream import WINDOW_ACK_BYTES, WINDOW_BYTES
from hansa.errors import InvalidTopic, UsageError
from hansa.protocol.topics import check_name

LINK_PORT = 10_500
"""Default port of links, as in Machado 2023."""

BROKER_PORT = 1883
"""Default port of brokers and of links through brokers."""

PORT_MAX = 65_535
WINDOW_BYTES_MIN = 4 * WINDOW_ACK_BYTES
"""The smallest window that window acks keep open."""

DATAGRAM_PACKET_BYTES_MAX = 1 << 20
"""Largest publication that a repair can carry over datagram links, in a thousand datagrams."""

TRANSPORTS = ("tcp", "udp", "mqtt")

NODE_ID = re.compile("[0-9a-f]{16}")

CHUNK_BYTES_MIN = 1_024
CHUNK_BYTES_MAX = 65_536


@dataclass(frozen=True, slots=True)
class MqttLinkSettings:
    """Links through brokers: topics, and access to the neighbours' brokers."""

    prefix: str = "$hansa/link"
    """Topics of links, the same on both sides. They are never forwarded; with a $ in front,
    wildcards of other clients do not match them either. Not every broker allows clients to use
    such topics."""
    username: str = ""
    """The credentials of the agent's own broker are in [broker]; they are not sent to others."""
    password: str = field(default="", repr=False)
    trusted_brokers: tuple[str, ...] = ()
    """Brokers, in addition to [link] neighbours, that get username and password, as host:port.
    Addresses from other nodes or a manager get neither, because an attacker may have chosen
    them."""
    accepted_nodes: tuple[str, ...] = ()
    """Ids of the nodes that may open links here, as hansa status shows them; all if empty. The
    broker's ACL must let each user publish only to the ids of its own nodes: see docs/links.md."""
    tls: bool = False
    """Whether to use TLS to neighbours' brokers."""
    tls_ca: str = ""
    """File with the certificate authorities to trust; empty: those of the system."""
    chunk_bytes: int = CHUNK_BYTES_MAX
    """Most bytes in one publication: less than message_size_limit of either broker, which a
    broker does not announce. An announced maximum packet size is respected in any case."""


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Listening and dialling."""

    host: str = "127.0.0.1"
    """Address to listen on. Beyond loopback only with a certificate (hansa join), or insecure."""
    port: int = LINK_PORT
    """Port to listen on; 0 takes a free port. With transport mqtt no port is opened."""
    insecure: bool = False
    """Whether to listen beyond loopback without a certificate, although every peer that reaches
    the port can join the federation, read and publish. Only for networks that you trust; raises
    the alarm insecure. A node with a certificate protects its links anyway."""
    neighbours: tuple[str, ...] = ()
    """Neighbours to dial, as host:port, or tcp://, udp:// or mqtt://host:port where that differs
    from transport. Configure each link on one side only."""
    transport: str = "tcp"
    """Transport for dialling and listening: tcp; udp, where the agent also listens for
    datagrams, which carry control frames and publications of up to 1 kB; or mqtt, through
    brokers: dial a neighbour's broker."""
    window_bytes: int = WINDOW_BYTES
    """Bytes in flight to a neighbour before its publications are dropped and counted. Window
    divided by round trip is the highest rate; more allows longer bursts and takes more memory."""
    limits: LimitSettings = field(default_factory=LimitSettings)
    mqtt: MqttLinkSettings = field(default_factory=MqttLinkSettings)


def check_link(link: LinkSettings, packet_bytes_max: int) -> None:
    """Raise UsageError for settings that cannot work, with the setting and what to change."""
    if link.transport not in TRANSPORTS:
        choice = ", ".join(TRANSPORTS)
        raise UsageError(f"[link] transport must be one of {choice}, not {link.transport!r}")
    if link.window_bytes < WINDOW_BYTES_MIN:
        raise UsageError(
            f"[link] window_bytes must be at least {WINDOW_BYTES_MIN} bytes,"
            f" not {link.window_bytes}"
        )
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
    for text in link.mqtt.trusted_brokers:
        parse_address(text, BROKER_PORT)
    for text in link.mqtt.accepted_nodes:
        if not NODE_ID.fullmatch(text):
            raise UsageError(
                f"[link.mqtt] accepted_nodes: {text!r} is no node id of 16 hexadecimal digits"
            )
    try:
        check_name(link.mqtt.prefix)
    except InvalidTopic as error:
        raise UsageError(f"[link.mqtt] prefix: {error}") from error


def trusted_brokers(link: LinkSettings) -> frozenset[Address]:
    """Return the brokers that get the user name and password of links."""
    named = [parse_neighbour(each, link.transport) for each in link.neighbours]
    listed = {parse_address(each, BROKER_PORT) for each in link.mqtt.trusted_brokers}
    return frozenset(listed | {address for transport, address in named if transport == "mqtt"})


def parse_neighbour(text: str, transport: str) -> tuple[str, Address]:
    """Parse an address with or without its transport; return both."""
    scheme, mark, rest = text.rpartition("://")
    if mark and scheme not in TRANSPORTS:
        choice = ", ".join(TRANSPORTS)
        raise UsageError(f"neighbour {text!r}: the transport must be one of {choice}")
    used = scheme or transport
    return used, parse_address(rest, BROKER_PORT if used == "mqtt" else LINK_PORT)


def parse_address(text: str, default_port: int = LINK_PORT) -> Address:
    """Parse `host:port`, or `host` alone for the default port; `[::1]:port` for IPv6."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(default_port)
    if not host.strip("[]"):
        raise UsageError(f"neighbour {text!r}: the host is missing")
    if len(host.split()) != 1:
        raise UsageError(f"neighbour {text!r}: a host has no blanks")
    if ":" in host and not host.startswith("["):
        raise UsageError(f"neighbour {text!r}: write an address of IPv6 as [address]:port")
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= PORT_MAX):
        raise UsageError(f"neighbour {text!r}: the port must be a number from 1 to {PORT_MAX}")
    return Address(host.strip("[]"), int(port))
