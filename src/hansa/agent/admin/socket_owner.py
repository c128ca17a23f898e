"""The user whose process is at the other end of a TCP connection on this machine.

Linux lists the owner of every TCP socket in `/proc/net/tcp` and `tcp6`. A socket counts while its
process has it open: one that was closed is listed as root's, whoever closed it. Elsewhere, and in
other network namespaces, the owner is unknown.
"""

import ipaddress
import sys
from pathlib import Path

NO_INODE = "0"
"""Inode of a socket that no process has open."""

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_MAPPED = ipaddress.IPv6Address("::ffff:0:0")


def find_owner(
    client: tuple[str, int], server: tuple[str, int], tables: tuple[Path, ...] = TABLES
) -> int | None:
    """Return the user id of a client's socket, given both addresses; None if it is unknown."""
    try:
        ends = set(zip(_encodings(*client), _encodings(*server), strict=True))
    except ValueError:
        return None
    for table in tables:
        try:
            lines = table.read_text().splitlines()
        except OSError:
            continue
        for line in lines[1:]:
            fields = line.split()
            if (fields[1], fields[2]) in ends:
                return int(fields[7]) if fields[9] != NO_INODE else None
    return None


def _encodings(host: str, port: int) -> tuple[str, str]:
    """Return an address as both tables write it; that of IPv4 may be in either."""
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if isinstance(address, ipaddress.IPv4Address):
        mapped = ipaddress.IPv6Address(int(_MAPPED) + int(address))
        return _hexadecimal(address.packed, port), _hexadecimal(mapped.packed, port)
    return (_hexadecimal(address.packed, port),) * 2


def _hexadecimal(packed: bytes, port: int) -> str:
    words = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    text = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{text}:{port:04X}"
