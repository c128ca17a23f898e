"""The interface of every link, whatever its transport."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hansa.identity.certificates import NodeCertificate
from hansa.protocol.model import LinkId, NodeId

LINKS_MAX = 1_024
"""Links opened by others at the same time; more are refused."""


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a neighbour."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Link(Protocol):
    """One link, as the driver sees it."""

    id: LinkId
    dialled_address: Address | None
    is_ordered: bool
    """Whether frames arrive whole and in order, or not at all."""
    remote: str
    """The address that was dialled, or the one that the neighbour connected from."""
    bytes_in: int
    bytes_out: int
    frames_out: int
    drop_reasons: Counter[str]
    """Publications that were dropped, by reason."""
    closed: asyncio.Event
    is_admitted: bool
    """Whether the node has accepted the neighbour's hello; until then `admission` limits it."""
    expected_node: NodeId | None
    """Node that the other side must be; None if the transport does not authenticate it."""
    certificate: NodeCertificate | None
    """The certificate of the other side; None without TLS."""

    @property
    def outstanding_bytes(self) -> int:
        """Bytes sent that the neighbour has not handled yet, as far as known."""

    def send(self, frames: Sequence[bytes | bytearray]) -> None:
        """Send frames; publications that the link cannot carry now are dropped and reported."""

    def admit(self) -> None:
        """Lift the limits of admission: the hellos are accepted."""

    def allow_last_frames(self) -> None:
        """Accept the last frames of a refused neighbour: the node closes the link soon."""

    def pause(self, seconds: float) -> None:
        """Do not read for so long; the neighbour sent too much."""

    def close(self, reason: str) -> None:
        """Close; the reason is for the log."""


class LinkListener(Protocol):
    """Gets the events of links."""

    def link_opened(self, link: Link) -> None: ...

    def frames_received(self, link: Link, frames: list[bytes]) -> None:
        """Whole frames arrived."""

    def publications_dropped(self, link: Link, count: int, reason: str) -> None:
        """Publications were dropped."""

    def peer_misbehaved(self, link: Link, reason: str) -> None:
        """The neighbour sent bytes that no honest node sends."""

    def link_closed(self, link: Link, reason: str) -> None: ...
