"""What nodes and their manager tell each other, and how a wish is refused."""

from dataclasses import dataclass, field

from hansa.manager.rows import NodeRow
from hansa.manager.settings import FederationSettings


class RequestRefused(Exception):
    """What was asked for cannot be done; the text says why, the status is HTTP's."""

    def __init__(self, status: int, reason: str) -> None:
        """Say why."""
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class JoiningNode:
    """Who wants to join."""

    ip: str = ""
    link: str = ""
    node: str = ""
    name: str = ""
    capacity: float = 1.0
    tags: tuple[str, ...] = ()
    announced: bool = False
    secret: str = ""
    """The digest of what it will prove itself with."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a node says of itself."""

    latency_ms: float | None = None
    neighbours: dict[str, float | None] = field(default_factory=dict)
    """The agents it is linked to, by their own ids, with round trips in milliseconds."""
    members: frozenset[str] = frozenset()
    """All agents it can reach."""


@dataclass(frozen=True, slots=True)
class AssignedNeighbour:
    """Whom a node should be linked to."""

    node: NodeRow
    dial: bool
    """Whether it is this node that opens the link."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a node is told."""

    node: NodeRow
    neighbours: list[AssignedNeighbour]
    version: int
    """The number of the newest change of the federation that this takes into account."""
    settings: FederationSettings
