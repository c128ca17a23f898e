"""Rows of the manager's database."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class NodeState(StrEnum):
    UP = "up"
    GONE = "gone"
    """It missed its reports and no other node reaches it; it may return."""
    LEFT = "left"
    """It left permanently."""


class LinkOrigin(StrEnum):
    PLANNED = "planned"
    OPERATOR = "operator"
    HEALED = "healed"
    """Made by agents to heal a split."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node; a superset of the fields of Bevilaqua 2023."""

    id: int
    node: str
    """The agent's id, 16 hexadecimal digits; empty for a federator of the paper."""
    name: str
    ip: str
    """URL of its broker, under the name of the paper."""
    link: str
    """Address for links of other agents."""
    capacity: float
    tags: tuple[str, ...]
    state: NodeState
    draining: bool
    joined_at: float
    latency_ms: float | None = None
    """Last measured time for a publication to its broker and back."""
    checked_at: float | None = None
    """Time of the last report or join."""
    secret: str = ""
    """Digest of its secret; empty if it joined without one."""
    announced: bool = False
    """Whether changes are published at its broker."""

    @property
    def is_paper_federator(self) -> bool:
        """Whether it is a federator of the paper, which sends no reports."""
        return not self.node

    def with_changes(self, **values: object) -> "NodeRow":
        return replace(self, **values)  # type: ignore[arg-type]

    @property
    def display_name(self) -> str:
        return f"{self.id} ({self.name})" if self.name else str(self.id)


@dataclass(frozen=True, slots=True)
class LinkRow:
    """A planned link; `a` is less than `b`."""

    a: int
    b: int
    origin: LinkOrigin
    since: float

    def is_waiting_for_node(self, states: Mapping[int, NodeState]) -> bool:
        """Whether it is kept for an end that is gone: an operator added it, or both ends are gone,
        perhaps only behind a split."""
        ends = (states[self.a], states[self.b])
        if NodeState.GONE not in ends or NodeState.LEFT in ends:
            return False
        return self.origin is LinkOrigin.OPERATOR or NodeState.UP not in ends


@dataclass(frozen=True, slots=True)
class HistoryRow:
    number: int
    at: float
    kind: str
    nodes: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token, of which only the digest is stored."""

    name: str
    scopes: tuple[str, ...]
    digest: str
    created_at: float


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A request that changed something, or tried to."""

    number: int
    at: float
    who: str
    remote: str
    method: str
    path: str
    status: int
