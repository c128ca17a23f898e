"""What requests and answers look like: the types from which the OpenAPI document is made."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from hansa.manager.exchange import Assignment, Newcomer, Report
from hansa.manager.rows import LinkRow, NodeRow

PRINTABLE = r"^[^\x00-\x1f\x7f]*$"
HEX = r"^[0-9a-f]{16}$"
PLACE = (
    r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}"
    r"|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$"
)
LINK = r"^((tcp|udp|mqtt)://)?" + PLACE
BROKER = r"^((tcp|mqtt|ssl|tls|mqtts)://)?" + PLACE
TOKEN_NAME = r"^[A-Za-z0-9._-]{1,64}$"
MEANING = {
    PRINTABLE: "text without control characters",
    HEX: "16 of the digits 0-9a-f",
    LINK: "host:port, or tcp://, udp:// or mqtt:// before it",
    BROKER: "tcp://host:port, or ssl:// before a port with TLS",
    TOKEN_NAME: "1 to 64 of A-Z a-z 0-9 . _ -",
}
"""What the patterns mean, for who is refused."""

Label = Annotated[str, StringConstraints(max_length=255, pattern=PRINTABLE)]
Hex = Annotated[str, StringConstraints(pattern=HEX)]
LinkAddress = Annotated[str, StringConstraints(max_length=255, pattern=LINK)]
BrokerUrl = Annotated[str, StringConstraints(max_length=255, pattern=BROKER)]
Milliseconds = Annotated[float, Field(ge=0, le=3_600_000, allow_inf_nan=False)]


class Body(BaseModel):
    """What is sent to the manager: unknown names are errors, not silence."""

    model_config = ConfigDict(extra="forbid")


class Problem(BaseModel):
    """What is wrong with a request."""

    error: str


class Join(Body):
    """Who wants to join. A federator of Bevilaqua 2023 sends `ip` alone."""

    ip: BrokerUrl | None = Field(None, description="where the broker is, as tcp://host:port")
    link: LinkAddress | None = Field(
        None, description="where other agents reach this one, host:port"
    )
    node: Hex | None = Field(None, description="the agent's own id")
    name: Label = ""
    capacity: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 1.0
    tags: Annotated[list[Label], Field(max_length=16)] = []
    announcements: bool = Field(
        False,
        description="publish changes at this node's broker (ip); a federator without node gets them"
        " in any case",
    )

    @model_validator(mode="after")
    def _is_reachable(self) -> "Join":
        if not (self.ip or self.link):
            raise ValueError("ip or link is needed: where is this node?")
        if self.node and not self.link:
            raise ValueError("an agent (node) needs link: where do others reach it?")
        if self.announcements and not self.ip:
            raise ValueError("announcements need ip: where is the broker?")
        return self

    def newcomer(self, secret: str) -> Newcomer:
        """Return it as the federation knows it, with the digest of its secret."""
        return Newcomer(
            self.ip or "", self.link or "", self.node or "", self.name, self.capacity,
            tuple(self.tags), self.announcements, secret,
        )  # fmt: skip


class NeighbourSeen(Body):
    """An agent that a node is linked to."""

    node: Hex
    rtt_ms: Milliseconds | None = None


class Health(Body):
    """What a node says of itself."""

    latency_ms: Milliseconds | None = Field(
        None, description="from a publication at its broker until that came back"
    )
    neighbours: Annotated[list[NeighbourSeen], Field(max_length=1024)] = []
    members: Annotated[list[Hex], Field(max_length=4096)] = Field(
        [], description="all agents it can reach"
    )

    def report(self) -> Report:
        """Return it as the federation knows it."""
        near = {each.node: each.rtt_ms for each in self.neighbours}
        return Report(self.latency_ms, near, frozenset(self.members))


class Link(Body):
    """Two nodes by their numbers."""

    a: Annotated[int, Field(ge=0, le=1 << 31)]
    b: Annotated[int, Field(ge=0, le=1 << 31)]


class NewLink(Body):
    """Two nodes to link: by their numbers, their names or their agents' ids."""

    a: Annotated[int, Field(ge=0, le=1 << 31)] | Label
    b: Annotated[int, Field(ge=0, le=1 << 31)] | Label


class Drain(Body):
    """Whether a node is about to leave."""

    draining: bool


class Settings(Body):
    """Settings of the federation to change; those that are not named stay."""

    announcement_interval: Annotated[float, Field(ge=0.1, le=3600)] | None = None
    beacon_interval: Annotated[float, Field(ge=0.1, le=3600)] | None = None
    redundancy: Annotated[int, Field(ge=1, le=16)] | None = None
    degree_max: Annotated[int, Field(ge=3, le=64)] | None = None
    health_interval: Annotated[float, Field(ge=0.1, le=3600)] | None = None


class Token(Body):
    """A token to make."""

    name: Annotated[str, StringConstraints(pattern=TOKEN_NAME)]
    scopes: Annotated[list[Literal["join", "read", "admin"]], Field(min_length=1, max_length=3)]


# ---------------------------------------------------------------- answers


class SettingsShown(BaseModel):
    """All settings of the federation."""

    announcement_interval: float
    beacon_interval: float
    redundancy: int
    degree_max: int
    health_interval: float


class NeighbourShown(BaseModel):
    """Whom a node should be linked to; `id` and `ip` as in the paper."""

    id: int
    ip: str
    name: str
    node: str
    link: str
    dial: bool


class NodeShown(BaseModel):
    """A node: the paper's six fields by the paper's names, and more."""

    id: int
    ip: str
    neighbors: list[dict[str, Any]]
    neighborsAmount: int
    latency: float | None
    latestHealthCheck: str | None
    name: str
    node: str
    link: str
    capacity: float
    tags: list[str]
    state: Literal["up", "gone", "left"]
    doubted: bool
    draining: bool
    joined_at: str


class Told(BaseModel):
    """What a node is told: its id, whom to be linked to, and the federation's settings."""

    id: int
    ip: str
    neighbors: list[NeighbourShown]
    neighborsAmount: int
    latency: float | None
    latestHealthCheck: str | None
    version: int
    settings: SettingsShown


class PaperNeighbour(BaseModel):
    """A neighbour as the paper's federator reads it."""

    id: int
    ip: str


class PaperConfiguration(BaseModel):
    """What the paper's federator reads; times are in nanoseconds."""

    id: int
    ip: str
    neighbors: list[PaperNeighbour]
    redundancy: int
    coreAnnInterval: int
    beaconInterval: int


class Joined(Told):
    """What a newcomer is told; `status`, `code`, `data` and `description` are for the paper's
    federator."""

    status: str
    code: int
    description: str
    data: PaperConfiguration


class LinkShown(BaseModel):
    """A link that should be."""

    a: int
    b: int
    origin: Literal["planned", "operator", "healed"]
    since: str
    stands: bool
    rtt_ms: float | None


class ChangeShown(BaseModel):
    """A change that the planner would make."""

    kind: Literal["add", "remove"]
    a: int
    b: int
    reason: str


class HistoryShown(BaseModel):
    """Something that changed."""

    number: int
    at: str
    kind: str
    nodes: list[int]
    reason: str


class Overview(BaseModel):
    """The federation in a few numbers."""

    up: int
    gone: int
    left: int
    doubted: int
    links: int
    standing: int
    hanging: list[Link] = Field(description="links whose loss would split it")
    version: int


class TokenShown(BaseModel):
    """Who has a token."""

    name: str
    scopes: list[str]
    created_at: str


class TokenMade(BaseModel):
    """A new token; it is never shown again."""

    name: str
    token: str


class AuditShown(BaseModel):
    """A request that changed something, or tried to."""

    number: int
    at: str
    who: str
    remote: str
    method: str
    path: str
    status: int


# ---------------------------------------------------------------- from rows


def moment(at: float | None) -> str | None:
    """Return a time as the paper writes it."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def show_node(node: NodeRow, near: list[NodeRow], doubted: bool) -> NodeShown:
    """Return a node as it is shown."""
    return NodeShown(
        id=node.id,
        ip=node.ip,
        neighbors=[{"id": other.id, "ip": other.ip} for other in near],
        neighborsAmount=len(near),
        latency=node.latency_ms,
        latestHealthCheck=moment(node.checked_at),
        name=node.name,
        node=node.node,
        link=node.link,
        capacity=node.capacity,
        tags=list(node.tags),
        state=node.state.value,
        doubted=doubted,
        draining=node.draining,
        joined_at=moment(node.joined_at) or "",
    )


def show_link(link: LinkRow, stands: bool, rtt_ms: float | None) -> LinkShown:
    """Return a link as it is shown."""
    return LinkShown(
        a=link.a, b=link.b, origin=link.origin.value, since=moment(link.since) or "",
        stands=stands, rtt_ms=rtt_ms,
    )  # fmt: skip


def welcome(given: Assignment) -> Joined:
    """Return what a newcomer is told."""
    settings = given.settings
    near = [PaperNeighbour(id=each.node.id, ip=each.node.ip) for each in given.neighbours]
    data = PaperConfiguration(
        id=given.node.id,
        ip=given.node.ip,
        neighbors=near,
        redundancy=settings.redundancy,
        coreAnnInterval=round(settings.announcement_interval * 1e9),
        beaconInterval=round(settings.beacon_interval * 1e9),
    )
    told = tell(given).model_dump()
    return Joined(**told, status="success", code=200, description="", data=data)


def tell(given: Assignment) -> Told:
    """Return what a node is told."""
    near = [
        NeighbourShown(
            id=each.node.id, ip=each.node.ip, name=each.node.name, node=each.node.node,
            link=each.node.link, dial=each.dial,
        )
        for each in given.neighbours
    ]  # fmt: skip
    settings = given.settings
    return Told(
        id=given.node.id,
        ip=given.node.ip,
        neighbors=near,
        neighborsAmount=len(near),
        latency=given.node.latency_ms,
        latestHealthCheck=moment(given.node.checked_at),
        version=given.version,
        settings=SettingsShown.model_validate(settings, from_attributes=True),
    )
