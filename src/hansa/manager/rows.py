"""What the manager keeps: plain records, as they are in the database."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class NodeState(StrEnum):
    """What the manager thinks of a node."""

    UP = "up"
    GONE = "gone"
    LEFT = "left"


class LinkOrigin(StrEnum):
    """Why there is a link."""

    PLANNED = "planned"
    OPERATOR = "operator"
    HEALED = "healed"


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node; what Bevilaqua 2023 stores, and more."""

    id: int
    node: str
    """The agent's own id, 16 hexadecimal digits; empty for a federator of the paper's kind."""
    name: str
    ip: str
    """Where its broker is, as the paper calls it."""
    link: str
    """Where other agents reach it."""
    capacity: float
    tags: tuple[str, ...]
    state: NodeState
    draining: bool
    joined_at: float
    latency_ms: float | None = None
    """From a publication at its broker until that comes back, as last measured."""
    checked_at: float | None = None
    """When it was last heard of."""
    secret: str = ""
    """The digest of what it proves itself with; empty if it joined without."""
    announced: bool = False
    """Whether changes are published at its broker."""

    @property
    def is_paper_federator(self) -> bool:
        """Whether it is a federator of the paper's kind, which reports nothing."""
        return not self.node

    def with_changes(self, **values: object) -> "NodeRow":
        """Return it with other values."""
        return replace(self, **values)  # type: ignore[arg-type]

    @property
    def display_name(self) -> str:
        """Return what to call it in a sentence."""
        return f"{self.id} ({self.name})" if self.name else str(self.id)


@dataclass(frozen=True, slots=True)
class LinkRow:
    """A link that should be."""

    a: int
    b: int
    origin: LinkOrigin
    since: float

    def is_waiting_for_node(self, states: Mapping[int, NodeState]) -> bool:
        """Whether it waits for an end that is gone: an operator wants it, or both are gone, perhaps
        only to the other side of a split."""
        ends = (states[self.a], states[self.b])
        if NodeState.GONE not in ends or NodeState.LEFT in ends:
            return False
        return self.origin is LinkOrigin.OPERATOR or NodeState.UP not in ends


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """Something that changed, and why."""

    number: int
    at: float
    kind: str
    nodes: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class TokenRow:
    """Who may do what. The token itself is not kept."""

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
