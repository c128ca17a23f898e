"""All targets of the fuzzers by name."""

from collections.abc import Callable

from tests.fuzz.documents import DocumentTarget
from tests.fuzz.issuers import IssuerTarget
from tests.fuzz.members import MemberTarget
from tests.fuzz.targets import (
    DatagramTarget,
    FrameTarget,
    HandshakeTarget,
    HttpTarget,
    StreamTarget,
    Target,
)

TARGETS: dict[str, Callable[[], Target]] = {
    "handshake": HandshakeTarget,
    "stream": StreamTarget,
    "datagrams": DatagramTarget,
    "frames": FrameTarget,
    "members": MemberTarget,
    "http": HttpTarget,
    "issuers": IssuerTarget,
    "documents": DocumentTarget,
}
