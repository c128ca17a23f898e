"""Headers of the PROXY protocol, after the examples of its specification."""

import pytest

from hansa.agent.broker.proxy.proxy_protocol import make_header

SIGNATURE = bytes.fromhex("0d0a0d0a000d0a515549540a")


@pytest.mark.parametrize(
    ("version", "client", "proxy", "header"),
    [
        (
            "v1",
            ("192.168.0.1", 56324),
            ("192.168.0.11", 443),
            b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n",
        ),
        ("v1", ("2001:db8::1", 1), ("fe80::2%eth0", 2), b"PROXY TCP6 2001:db8::1 fe80::2 1 2\r\n"),
        ("v1", ("127.0.0.1", 1), ("::1", 2), b"PROXY UNKNOWN\r\n"),
        (
            "v2",
            ("192.168.0.1", 56324),
            ("192.168.0.11", 443),
            SIGNATURE + bytes.fromhex("2111000c c0a80001 c0a8000b dc04 01bb"),
        ),
        (
            "v2",
            ("::1", 1),
            ("::2", 2),
            SIGNATURE + bytes.fromhex("21210024" + 15 * "00" + "01" + 15 * "00" + "02 00010002"),
        ),
        ("v2", ("127.0.0.1", 1), ("::1", 2), SIGNATURE + bytes.fromhex("21000000")),
    ],
)
def test_header(version, client, proxy, header):
    assert make_header(version, client, proxy) == header
