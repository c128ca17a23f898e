"""What every link is, however frames travel on it: addresses, the link itself, who is told."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hansa.protocol.model import LinkId, NodeId

LINKS_MAX = 1_024
"""Links that others opened, at the same time, whoever they are; more are turned away."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a neighbour listens."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return it as people write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Link(Protocol):
    """One connection, as the agent sees it."""

    id: LinkId
    dialled_address: Address | None
    is_ordered: bool
    """Whether frames arrive whole and in order, or not at all."""
    remote: str
    """Where the other side is: the address that was dialled, or the one that it came from."""
    bytes_in: int
    bytes_out: int
    frames_out: int
    dropped_publications: int
    """Publications that were not sent."""
    closed: asyncio.Event
    is_admitted: bool
    """Whether the node has accepted the neighbour's hello; until then `admission` limits it."""
    expected_node: NodeId | None
    """Node that the other side must be, None if its transport does not say."""

    @property
    def outstanding_bytes(self) -> int:
        """Bytes that were sent and not handled by the neighbour yet, as far as it is known."""

    def send(self, frames: Sequence[bytes | bytearray]) -> None:
        """Send frames; publications that the link cannot take now are dropped, and told."""

    def admit(self) -> None:
        """Lift the limits for strangers: the hellos agreed."""

    def allow_last_frames(self) -> None:
        """Let the last frames of a refused neighbour in: the node closes the link soon."""

    def close(self, reason: str) -> None:
        """Close; the reason is for the log."""


class LinkListener(Protocol):
    """Who is told what happens on links."""

    def link_opened(self, link: Link) -> None:
        """A connection stands."""

    def frames_received(self, link: Link, frames: list[bytes]) -> None:
        """Frames arrived, each of them whole."""

    def publications_dropped(self, link: Link, count: int, reason: str) -> None:
        """Publications were not sent."""

    def link_closed(self, link: Link, reason: str) -> None:
        """A connection is gone."""
