"""Data exchanged between nodes and the registry, and the refusal of a request."""

from dataclasses import dataclass, field

from hansa.manager.rows import NodeRow
from hansa.manager.settings import FederationSettings


class RequestRefused(Exception):
    """A request that cannot be fulfilled: an HTTP status with a reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class JoiningNode:
    ip: str = ""
    link: str = ""
    node: str = ""
    name: str = ""
    capacity: float = 1.0
    tags: tuple[str, ...] = ()
    announced: bool = False
    secret: str = ""
    """Digest of the secret with which the node will authenticate."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    latency_ms: float | None = None
    neighbours: dict[str, float | None] = field(default_factory=dict)
    """Round trips in milliseconds to linked agents, by agent's id."""
    reachable_nodes: frozenset[str] = frozenset()
    """Ids of all reachable agents."""


@dataclass(frozen=True, slots=True)
class AssignedNeighbour:
    node: NodeRow
    dial: bool
    """Whether the assigned node opens the link."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The neighbours of a node, and the settings of the federation."""

    node: NodeRow
    neighbours: list[AssignedNeighbour]
    version: int
    """Number of the newest change that this includes."""
    settings: FederationSettings
