"""A member with a valid certificate that sends what it likes."""

import ssl
from pathlib import Path

from hansa.agent.links.stream import LENGTH
from hansa.identity.keys import KEY_FILE
from hansa.protocol.wire.codec import decode
from hansa.protocol.wire.frames import Hello
from hansa.testbed.federation import LocalNode


def state_of(node: LocalNode) -> Path:
    return node.directory / "agent"


def dialling_context(state: Path) -> ssl.SSLContext:
    """The TLS context of a node that dials: it is the TLS server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(state / "certificate.pem", state / KEY_FILE)
    context.load_verify_locations(state / "authority.pem")
    return context


def read_hello(connection: ssl.SSLSocket) -> Hello:
    data = b""
    while len(data) < LENGTH.size or len(data) < LENGTH.size + LENGTH.unpack_from(data)[0]:
        data += connection.recv(1 << 16)
    frame = decode(data[LENGTH.size : LENGTH.size + LENGTH.unpack_from(data)[0]])
    assert isinstance(frame, Hello)
    return frame
