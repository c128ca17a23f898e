"""Headers of the PROXY protocol, which give a broker the address of a client behind the proxy.

The format is that of HAProxy's specification: a line of text (v1) or a binary block (v2) before the
first byte of the connection.
"""

import struct
from ipaddress import ip_address

Endpoint = tuple[str, int]

_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_PROXY_COMMAND = 0x21
_TCP_BY_IP_VERSION = {4: 0x11, 6: 0x21}
_UNKNOWN = 0x00


def make_header(version: str, client: Endpoint, proxy: Endpoint) -> bytes:
    """Return the header for a client that is connected to this address of the proxy."""
    addresses = [ip_address(host.partition("%")[0]) for host, _ in (client, proxy)]
    ports = client[1], proxy[1]
    kind = addresses[0].version
    is_known = kind == addresses[1].version
    if version == "v1":
        if not is_known:
            return b"PROXY UNKNOWN\r\n"
        text = " ".join(str(each) for each in (*addresses, *ports))
        return f"PROXY TCP{kind} {text}\r\n".encode()
    if not is_known:
        return _SIGNATURE + bytes([_PROXY_COMMAND, _UNKNOWN]) + struct.pack("!H", 0)
    body = b"".join(each.packed for each in addresses) + struct.pack("!HH", *ports)
    family = bytes([_PROXY_COMMAND, _TCP_BY_IP_VERSION[kind]])
    return _SIGNATURE + family + struct.pack("!H", len(body)) + body
