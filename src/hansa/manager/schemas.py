"""Types of requests and responses, from which the OpenAPI document is generated."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from hansa.manager.rows import LinkRow, NodeRow
from hansa.manager.types import Assignment, JoiningNode, NodeReport

PRINTABLE = r"^[^\x00-\x1f\x7f]*$"
HEX = r"^[0-9a-f]{16}$"
HOST_PORT = (
    r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}"
    r"|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$"
)
LINK = r"^((tcp|udp|mqtt)://)?" + HOST_PORT
BROKER = r"^((tcp|mqtt|ssl|tls|mqtts)://)?" + HOST_PORT
TOKEN_NAME = r"^[A-Za-z0-9._-]{1,64}$"
PATTERN_MEANINGS = {
    PRINTABLE: "text without control characters",
    HEX: "16 of the digits 0-9a-f",
    LINK: "host:port, or tcp://, udp:// or mqtt:// before it",
    BROKER: "tcp://host:port, or ssl:// before a port with TLS",
    TOKEN_NAME: "1 to 64 of A-Z a-z 0-9 . _ -",
}
"""Texts for error messages, by pattern."""

Label = Annotated[str, StringConstraints(max_length=255, pattern=PRINTABLE)]
Hex = Annotated[str, StringConstraints(pattern=HEX)]
LinkAddress = Annotated[str, StringConstraints(max_length=255, pattern=LINK)]
BrokerUrl = Annotated[str, StringConstraints(max_length=255, pattern=BROKER)]
Milliseconds = Annotated[float, Field(ge=0, le=3_600_000, allow_inf_nan=False)]


class RequestBody(BaseModel):
    """Base of all requests; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


class ErrorResponse(BaseModel):
    """Why a request was refused."""

    error: str


class JoinRequest(RequestBody):
    """A node that joins. A federator of Bevilaqua 2023 sends only `ip`."""

    ip: BrokerUrl | None = Field(None, description="URL of the broker, as tcp://host:port")
    link: LinkAddress | None = Field(
        None, description="address for links of other agents, as host:port"
    )
    node: Hex | None = Field(None, description="the agent's own id")
    name: Label = ""
    capacity: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 1.0
    tags: Annotated[list[Label], Field(max_length=16)] = []
    announcements: bool = Field(
        False,
        description="publish changes at this node's broker (ip); always done for a federator"
        " without node",
    )

    @model_validator(mode="after")
    def _is_reachable(self) -> "JoinRequest":
        if not (self.ip or self.link):
            raise ValueError("ip or link is required")
        if self.node and not self.link:
            raise ValueError("an agent (node) requires link")
        if self.announcements and not self.ip:
            raise ValueError("announcements require ip")
        return self

    def to_joining_node(self, secret: str) -> JoiningNode:
        """Convert the request; `secret` is a digest."""
        return JoiningNode(
            self.ip or "", self.link or "", self.node or "", self.name, self.capacity,
            tuple(self.tags), self.announcements, secret,
        )  # fmt: skip


class NeighbourReport(RequestBody):
    """An agent that a node is linked to."""

    node: Hex
    rtt_ms: Milliseconds | None = None


class HealthReport(RequestBody):
    """Health of a node."""

    latency_ms: Milliseconds | None = Field(
        None, description="time for a publication to its broker and back"
    )
    neighbours: Annotated[list[NeighbourReport], Field(max_length=1024)] = []
    reachable_nodes: Annotated[list[Hex], Field(max_length=4096)] = Field(
        [], description="all reachable agents"
    )

    def to_node_report(self) -> NodeReport:
        near = {each.node: each.rtt_ms for each in self.neighbours}
        return NodeReport(self.latency_ms, near, frozenset(self.reachable_nodes))


class LinkRequest(RequestBody):
    """Two nodes by their numbers."""

    a: Annotated[int, Field(ge=0, le=1 << 31)]
    b: Annotated[int, Field(ge=0, le=1 << 31)]


class NewLink(RequestBody):
    """Two nodes to link: by their numbers, their names or their agents' ids."""

    a: Annotated[int, Field(ge=0, le=1 << 31)] | Label
    b: Annotated[int, Field(ge=0, le=1 << 31)] | Label


class DrainRequest(RequestBody):
    """Whether a node is about to leave."""

    draining: bool


class SettingsRequest(RequestBody):
    """Settings of the federation to change; the others stay."""

    announcement_interval: Annotated[float, Field(ge=0.1, le=3600)] | None = None
    beacon_interval: Annotated[float, Field(ge=0.1, le=3600)] | None = None
    redundancy: Annotated[int, Field(ge=1, le=16)] | None = None
    degree_max: Annotated[int, Field(ge=3, le=64)] | None = None
    health_interval: Annotated[float, Field(ge=0.1, le=3600)] | None = None
    approval: bool | None = None


class ProposalRequest(RequestBody):
    """A change of the plan that an operator approves."""

    kind: Literal["add", "remove"]
    a: Annotated[int, Field(ge=0, le=1 << 31)]
    b: Annotated[int, Field(ge=0, le=1 << 31)]


class TokenRequest(RequestBody):
    """A token to create."""

    name: Annotated[str, StringConstraints(pattern=TOKEN_NAME)]
    scopes: Annotated[
        list[Literal["join", "read", "operate", "admin"]], Field(min_length=1, max_length=4)
    ]


class RevocationRequest(RequestBody):
    """A revocation list that a node knows."""

    revocation_list: Annotated[str, StringConstraints(max_length=200_000)]


# ---------------------------------------------------------------- responses


class SettingsResponse(BaseModel):
    """All settings of the federation."""

    announcement_interval: float
    beacon_interval: float
    redundancy: int
    degree_max: int
    health_interval: float
    approval: bool


class NeighbourResponse(BaseModel):
    """A neighbour of a node; `id` and `ip` as in the paper."""

    id: int
    ip: str
    name: str
    node: str
    link: str
    dial: bool


class NodeResponse(BaseModel):
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
    suspected: bool
    draining: bool
    joined_at: str


class AssignmentResponse(BaseModel):
    """Id, neighbours and settings of a node."""

    id: int
    ip: str
    neighbors: list[NeighbourResponse]
    neighborsAmount: int
    latency: float | None
    latestHealthCheck: str | None
    version: int
    settings: SettingsResponse


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


class JoinResponse(AssignmentResponse):
    """Assignment of a new node; `status`, `code`, `data` and `description` are for the paper's
    federator."""

    status: str
    code: int
    description: str
    data: PaperConfiguration


class LinkResponse(BaseModel):
    """A planned link."""

    a: int
    b: int
    origin: Literal["planned", "operator", "healed"]
    since: str
    established: bool
    rtt_ms: float | None


class ChangeResponse(BaseModel):
    """A change that the planner would make."""

    kind: Literal["add", "remove"]
    a: int
    b: int
    reason: str


class HistoryResponse(BaseModel):
    """A change of the federation."""

    number: int
    at: str
    kind: str
    nodes: list[int]
    reason: str


class OverviewResponse(BaseModel):
    """Summary of the federation."""

    up: int
    gone: int
    left: int
    suspected: int
    links: int
    established: int
    bridges: list[LinkRequest] = Field(description="links whose loss would split the federation")
    version: int


class TokenResponse(BaseModel):
    """A token, without its value."""

    name: str
    scopes: list[str]
    created_at: str


class TokenCreatedResponse(BaseModel):
    """A new token; it cannot be shown again."""

    name: str
    token: str


class AuditResponse(BaseModel):
    """A request that changed something, or tried to."""

    number: int
    at: str
    who: str
    remote: str
    method: str
    path: str
    status: int


# ---------------------------------------------------------------- conversion


def format_time(at: float | None) -> str | None:
    """Return a time in the format of the paper."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def make_node_response(node: NodeRow, near: list[NodeRow], suspected: bool) -> NodeResponse:
    return NodeResponse(
        id=node.id,
        ip=node.ip,
        neighbors=[{"id": other.id, "ip": other.ip} for other in near],
        neighborsAmount=len(near),
        latency=node.latency_ms,
        latestHealthCheck=format_time(node.checked_at),
        name=node.name,
        node=node.node,
        link=node.link,
        capacity=node.capacity,
        tags=list(node.tags),
        state=node.state.value,
        suspected=suspected,
        draining=node.draining,
        joined_at=format_time(node.joined_at) or "",
    )


def make_link_response(link: LinkRow, established: bool, rtt_ms: float | None) -> LinkResponse:
    return LinkResponse(
        a=link.a, b=link.b, origin=link.origin.value, since=format_time(link.since) or "",
        established=established, rtt_ms=rtt_ms,
    )  # fmt: skip


def make_join_response(assignment: Assignment) -> JoinResponse:
    settings = assignment.settings
    near = [PaperNeighbour(id=each.node.id, ip=each.node.ip) for each in assignment.neighbours]
    data = PaperConfiguration(
        id=assignment.node.id,
        ip=assignment.node.ip,
        neighbors=near,
        redundancy=settings.redundancy,
        coreAnnInterval=round(settings.announcement_interval * 1e9),
        beaconInterval=round(settings.beacon_interval * 1e9),
    )
    fields = make_assignment_response(assignment).model_dump()
    return JoinResponse(**fields, status="success", code=200, description="", data=data)


def make_assignment_response(assignment: Assignment) -> AssignmentResponse:
    near = [
        NeighbourResponse(
            id=each.node.id, ip=each.node.ip, name=each.node.name, node=each.node.node,
            link=each.node.link, dial=each.dial,
        )
        for each in assignment.neighbours
    ]  # fmt: skip
    settings = assignment.settings
    return AssignmentResponse(
        id=assignment.node.id,
        ip=assignment.node.ip,
        neighbors=near,
        neighborsAmount=len(near),
        latency=assignment.node.latency_ms,
        latestHealthCheck=format_time(assignment.node.checked_at),
        version=assignment.version,
        settings=SettingsResponse.model_validate(settings, from_attributes=True),
    )
