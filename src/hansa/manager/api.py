"""The HTTP routes of the manager: each parses a request, calls the registry, and responds.

Handlers that use the database are plain functions, which the server runs in threads. Every refusal
is a 4xx or 503 with one sentence in `error`.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from hansa import __version__
from hansa.errors import UsageError
from hansa.manager import docs_page, schemas
from hansa.manager.access import AccessControl, Caller, token_digest
from hansa.manager.federators import FederatorClients
from hansa.manager.members import Member, Members
from hansa.manager.registry import FederationRegistry
from hansa.manager.rows import NodeRow, NodeState
from hansa.manager.store import ManagerStore, StoreUnavailable
from hansa.manager.streams import EventStreams
from hansa.manager.types import RequestRefused

NUMBER_MAX = (1 << 53) - 1

After = Annotated[int, Query(ge=0, le=NUMBER_MAX, description="only rows with a higher number")]
Limit = Annotated[int, Query(ge=1, le=1000)]
Reference = Annotated[
    str, Path(max_length=255, description="a node: its number, its name, or its agent's id")
]
TAGS = {
    "Nodes": "Requests of agents, by certificate, and of federators. Scope: join.",
    "Reading": "State and history. Scope: read; /settings also with join, /events with join.",
    "Operating": "Changes. Scope: operate; settings, tokens and the audit log: admin.",
}
"""Groups of requests on the page /docs, with the scope that their token needs."""
_ONLY_CERTIFICATES = (
    "this manager takes agents by certificate only: set [topology] manager ="
    ' "hansa://HOST:10503" and enrol the agent'
)
_BEARER = HTTPBearer(auto_error=False, description="see docs/manager.md for tokens and scopes")
_ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.ErrorResponse}
    for status in (400, 401, 403, 404, 409, 413, 422, 429, 503)
}


def clock() -> float:
    """Return the Unix time in seconds; it is shown to users and compared across restarts."""
    return time.time_ns() / 1e9


def require_scope(*scopes: str) -> Any:
    """Return a dependency that requires one of these scopes, or one that includes it."""

    def check(
        request: Request,
        given: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
    ) -> Caller:
        access: AccessControl = request.app.state.access
        ends = (request.scope["client"], request.scope["server"])
        member: Member | None = getattr(request.state, "member", None)
        # While there is no token, any text would give a node the rights of local users.
        if member is not None and (given is None or access.is_open):
            caller = access.identify_node(member.node, ends)
        else:
            caller = access.identify(given.credentials if given else None, ends)
        request.state.caller = caller.name
        if not caller.has(*scopes):
            if caller.node:
                raise RequestRefused(403, f"a node needs a token of scope {scopes[0]} for this")
            if access.is_open:
                raise RequestRefused(403, "this needs root, the manager's user, or a token")
            raise RequestRefused(403, f"the token {caller.name!r} lacks the scope {scopes[0]}")
        return caller

    return Depends(check)


def make_app(
    store: ManagerStore,
    federation: FederationRegistry,
    access: AccessControl,
    streams: EventStreams,
    federators: FederatorClients,
    members: Members | None = None,
) -> FastAPI:
    app = FastAPI(
        title="Hansa topology manager",
        version=__version__,
        description="Registers the nodes of a federation, monitors them and plans their links.",
        responses=_ERROR_RESPONSES,
        openapi_tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        docs_url=None,
        redoc_url=None,
    )
    app.state.access = access
    nodes, readers, operators = (APIRouter(prefix="/api/v1", tags=[tag]) for tag in TAGS)
    _add_for_nodes(nodes, federation, federators, members)
    _add_for_readers(readers, federation, store, streams)
    _add_for_operators(operators, federation, store, access)
    for routes in (nodes, readers, operators):
        app.include_router(routes)
    _add_docs(app)
    _add_error_handlers(app)
    return app


def _add_docs(app: FastAPI) -> None:
    page = docs_page.render(app.openapi(), schemas.PATTERN_MEANINGS)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": docs_page.POLICY})


Joiner = Annotated[Caller, require_scope("join")]
Leaver = Annotated[Caller, require_scope("join", "operate")]
Secret = Annotated[
    str,
    Header(
        alias="Hansa-Node-Secret",
        max_length=255,
        description="secret of the join; only its owner, or an admin, may act as this node",
    ),
]


@dataclass(frozen=True, slots=True)
class NodeRights:
    """Who may speak for which node."""

    federation: FederationRegistry
    takes_certificates: bool

    def check_agent(self, node: str, caller: Caller) -> None:
        """Raise RequestRefused unless the caller may speak for an agent, given by its id."""
        if caller.node and node != caller.node:
            raise RequestRefused(403, f"your certificate is that of node {caller.node} only")
        if node and not caller.node and self.takes_certificates:
            raise RequestRefused(403, _ONLY_CERTIFICATES)

    def check(self, number: int, caller: Caller, secret: str) -> None:
        """Raise RequestRefused unless the caller may speak for a node that has joined."""
        self.check_agent(self.federation.agent_of(number), caller)
        if not caller.node and not caller.is_operator:
            self.federation.require_owner(number, token_digest(secret))


def _add_for_nodes(
    routes: APIRouter,
    federation: FederationRegistry,
    federators: FederatorClients,
    members: Members | None,
) -> None:
    rights = NodeRights(federation, takes_certificates=members is not None)

    @routes.post("/join")
    def join(
        body: schemas.JoinRequest, caller: Joiner, secret: Secret = ""
    ) -> schemas.JoinResponse:
        """Join, or join again; returns the node's id, its neighbours and all settings."""
        joining = body.to_joining_node(token_digest(secret) if secret else "")
        rights.check_agent(joining.node, caller)
        is_trusted = bool(caller.node) or caller.is_operator
        assignment = federation.join(joining, clock(), trusted=is_trusted)
        federators.on_node_joined(assignment)
        return schemas.make_join_response(assignment)

    @routes.post("/nodes/{number}/health")
    def report(
        number: int, body: schemas.HealthReport, caller: Joiner, secret: Secret = ""
    ) -> schemas.AssignmentResponse:
        """Report health; returns the assigned neighbours."""
        rights.check(number, caller, secret)
        return schemas.make_assignment_response(
            federation.report(number, body.to_node_report(), clock())
        )

    @routes.get("/nodes/{number}/topology")
    def topology(number: int, caller: Joiner, secret: Secret = "") -> schemas.AssignmentResponse:
        """Return the assigned neighbours."""
        rights.check(number, caller, secret)
        return schemas.make_assignment_response(federation.topology(number))

    @routes.post("/nodes/{node}/leave", status_code=204)
    def leave(node: Reference, caller: Leaver, secret: Secret = "") -> None:
        """Leave the federation permanently."""
        number = federation.find(node, names_shown=caller.is_operator)
        if not caller.is_operator:
            rights.check(number, caller, secret)
        federation.leave(number, clock())

    @routes.post("/revocations", status_code=204)
    async def revoke(body: schemas.RevocationRequest, caller: Joiner) -> None:
        """Give the manager a revocation list of the federation; needs the certificate of a node."""
        if members is None or not caller.node:
            raise RequestRefused(403, "only nodes with certificates send revocation lists")
        members.receive_list(body.revocation_list)


def _add_for_readers(
    routes: APIRouter, federation: FederationRegistry, store: ManagerStore, streams: EventStreams
) -> None:
    may_read = [require_scope("read")]

    @routes.get("/health", dependencies=may_read)
    def health() -> schemas.OverviewResponse:
        """Show a summary of the federation."""
        states = [node.state for node in federation.nodes()]
        links = federation.links()
        return schemas.OverviewResponse(
            up=states.count(NodeState.UP),
            gone=states.count(NodeState.GONE),
            left=states.count(NodeState.LEFT),
            suspected=len(federation.suspected(clock())),
            links=len(links),
            established=sum(is_established for _, is_established, _ in links),
            bridges=[schemas.LinkRequest(a=a, b=b) for a, b in federation.bridge_links()],
            version=store.version,
        )

    @routes.get("/nodes", dependencies=may_read)
    def nodes() -> list[schemas.NodeResponse]:
        """Show all nodes that ever joined."""
        return _node_responses(federation)

    @routes.get("/nodes/{node}", dependencies=may_read)
    def show_node(node: Reference) -> schemas.NodeResponse:
        """Show one node."""
        number = federation.find(node)
        return next(each for each in _node_responses(federation) if each.id == number)

    @routes.get("/links", dependencies=may_read)
    def links() -> list[schemas.LinkResponse]:
        """Show the planned links, and whether they are established."""
        return [schemas.make_link_response(*each) for each in federation.links()]

    @routes.get("/plan", dependencies=may_read)
    def plan() -> list[schemas.ChangeResponse]:
        """Show the changes that the planner would make now, with reasons."""
        return [
            schemas.ChangeResponse(
                kind=change.kind, a=int(change.link[0]), b=int(change.link[1]),
                reason=change.reason,
            )
            for change in federation.plan()
        ]  # fmt: skip

    @routes.get("/settings", dependencies=[require_scope("read", "join")])
    def settings() -> schemas.SettingsResponse:
        """Show the settings of the federation."""
        return schemas.SettingsResponse.model_validate(federation.settings, from_attributes=True)

    @routes.get("/history", dependencies=may_read)
    def history(after: After = 0, limit: Limit = 100) -> list[schemas.HistoryResponse]:
        """Show all changes with reasons, the oldest first."""
        return [
            schemas.HistoryResponse(
                number=row.number, at=schemas.format_time(row.at) or "", kind=row.kind,
                nodes=list(row.nodes), reason=row.reason,
            )
            for row in store.history(after, limit)
        ]  # fmt: skip

    @routes.get("/events", response_class=StreamingResponse)
    async def events(
        caller: Joiner,
        after: Annotated[int | None, Query(ge=0, le=NUMBER_MAX)] = None,
        last_event_id: Annotated[int | None, Header(ge=0, le=NUMBER_MAX)] = None,
    ) -> StreamingResponse:
        """Stream changes as server-sent events, numbered like the history. A node that shows its
        certificate gets those that concern it."""
        is_member = bool(caller.node) and not caller.is_operator
        only = federation.number_of(caller.node) if is_member else None
        stream = await streams.open(last_event_id if after is None else after, only)
        return StreamingResponse(stream, media_type="text/event-stream")


def _add_for_operators(
    routes: APIRouter, federation: FederationRegistry, store: ManagerStore, access: AccessControl
) -> None:
    may_change, may_administer = [require_scope("operate")], [require_scope("admin")]

    @routes.patch("/settings", dependencies=may_administer)
    def change_settings(body: schemas.SettingsRequest) -> schemas.SettingsResponse:
        """Change settings of the federation."""
        changed = federation.change_settings(body.model_dump(exclude_none=True), clock())
        return schemas.SettingsResponse.model_validate(changed, from_attributes=True)

    @routes.post("/plan/apply", dependencies=may_change, status_code=204)
    def apply_change(body: schemas.ProposalRequest) -> None:
        """Make one change of the plan; needed if `approval` is set."""
        federation.apply_change(body.kind, body.a, body.b, clock())

    @routes.post("/links", dependencies=may_change, status_code=201)
    def add_link(body: schemas.NewLink) -> schemas.LinkResponse:
        """Add a link that the planner must keep."""
        a, b = federation.find(str(body.a)), federation.find(str(body.b))
        return schemas.make_link_response(federation.add_link(a, b, clock()), False, None)

    @routes.delete("/links/{a}/{b}", dependencies=may_change, status_code=204)
    def remove_link(a: Reference, b: Reference) -> None:
        """Remove a link; the planner adds it again only if no other path connects its ends."""
        federation.remove_link(federation.find(a), federation.find(b), clock())

    @routes.post("/nodes/{node}/drain", dependencies=may_change)
    def drain(node: Reference, body: schemas.DrainRequest) -> schemas.NodeResponse:
        """Start or end draining: the planner plans around a draining node."""
        number = federation.find(node)
        federation.drain(number, body.draining, clock())
        return next(each for each in _node_responses(federation) if each.id == number)

    @routes.get("/tokens", dependencies=may_administer)
    def tokens() -> list[schemas.TokenResponse]:
        """List the tokens, without their values."""
        return [
            schemas.TokenResponse(
                name=row.name,
                scopes=list(row.scopes),
                created_at=schemas.format_time(row.created_at) or "",
            )
            for row in access.list_tokens()
        ]

    @routes.post("/tokens", dependencies=may_administer, status_code=201)
    def add_token(body: schemas.TokenRequest) -> schemas.TokenCreatedResponse:
        """Create a token. Once there is one, every request needs a token."""
        return schemas.TokenCreatedResponse(
            name=body.name, token=access.add_token(body.name, tuple(body.scopes), clock())
        )

    @routes.delete("/tokens/{name}", dependencies=may_administer, status_code=204)
    def remove_token(name: str) -> None:
        """Remove a token."""
        access.remove_token(name)

    @routes.get("/audit", dependencies=may_administer)
    def audit(after: After = 0, limit: Limit = 100) -> list[schemas.AuditResponse]:
        """Show the audit log: requests that changed something, or tried to."""
        return [
            schemas.AuditResponse(**asdict(row) | {"at": schemas.format_time(row.at)})
            for row in store.audit(after, limit)
        ]


def _node_responses(federation: FederationRegistry) -> list[schemas.NodeResponse]:
    nodes = {node.id: node for node in federation.nodes()}
    near: dict[int, list[NodeRow]] = {number: [] for number in nodes}
    for link, _, _ in federation.links():
        near[link.a].append(nodes[link.b])
        near[link.b].append(nodes[link.a])
    suspected = federation.suspected(clock())
    return [
        schemas.make_node_response(node, near[node.id], node.id in suspected)
        for node in nodes.values()
    ]


# ---------------------------------------------------------------- errors


def _add_error_handlers(app: FastAPI) -> None:
    def add(kind: type[Exception], answer: Callable[[Any], tuple[int, str]]) -> None:
        async def handle(_: Request, error: Exception) -> JSONResponse:
            status, reason = answer(error)
            headers = dict(getattr(error, "headers", None) or {})  # such as Allow
            if status == 401:
                headers["WWW-Authenticate"] = "Bearer"
            return JSONResponse({"error": reason}, status, headers)

        app.add_exception_handler(kind, handle)

    add(RequestRefused, lambda error: (error.status, str(error)))
    add(UsageError, lambda error: (422, str(error)))
    add(StoreUnavailable, lambda error: (503, f"the database does not answer: {error}"))
    add(RequestValidationError, lambda error: (422, _describe_validation_error(error)))
    add(
        HTTPException,
        lambda error: (error.status_code, _ERROR_TEXTS.get(error.detail, error.detail)),
    )


_ERROR_TEXTS = {
    "Not Found": "there is no such path; /docs lists all paths",
    "Method Not Allowed": "this path has other methods; /docs lists them",
}


def _describe_validation_error(error: RequestValidationError) -> str:
    """Return the first error of a request, with the name of the field."""
    first = error.errors()[0]
    if first["loc"] == ("body",) and first["type"] != "value_error":
        return "the body must be a JSON object, sent with Content-Type: application/json"
    field = ".".join(str(step) for step in first["loc"][1:])
    text = str(first["msg"]).removeprefix("Value error, ")
    if meaning := schemas.PATTERN_MEANINGS.get(first.get("ctx", {}).get("pattern", "")):
        text = f"it must be {meaning}"
    return f"{field}: {text}" if field else text
