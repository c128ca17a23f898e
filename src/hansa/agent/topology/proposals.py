"""The manager's proposals for operators of this agent: `/proposals` and `POST /proposals/apply`.

The agent asks the manager with `[topology] operator_token`, so that a browser needs neither an
address nor a token of the manager. Only users with the scope operate of this agent may apply.
"""

from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import parse_qs

import msgspec

from hansa.agent.admin.server import HttpResponse, json_response
from hansa.agent.topology.http import ManagerRefused, ManagerUnavailable
from hansa.agent.topology.manager_client import ManagerAddress, parse_answer
from hansa.agent.topology.member_connection import Contexts
from hansa.agent.topology.settings import TopologySettings

T = TypeVar("T")

CHANGES_SHOWN_MAX = 200

KINDS = ("add", "remove")


class _Change(msgspec.Struct, frozen=True):
    kind: str
    a: int
    b: int
    reason: str


class _ManagedNode(msgspec.Struct, frozen=True):
    id: int
    name: str = ""
    node: str = ""


class _ManagerSettings(msgspec.Struct, frozen=True):
    approval: bool = False


class ManagerProposals:
    """Shows and applies what the manager proposes."""

    def __init__(self, settings: TopologySettings, contexts: Contexts = lambda: None) -> None:
        """`contexts` returns the certificate of this node, for hansa:// as the manager."""
        self._url = settings.manager
        token = settings.operator_token or settings.token
        self._http = (
            ManagerAddress(settings.manager, token, contexts=contexts).client()
            if settings.manager
            else None
        )

    async def handle_list(self, path: str, query: str, headers: Mapping[str, str]) -> HttpResponse:
        """Handle `GET /proposals`."""
        document: dict[str, object] = {"manager": self._url, "problem": "", "changes": []}
        if self._http is None:
            return json_response(document)
        try:
            changes = await self._read("plan", tuple[_Change, ...])
            nodes = await self._read("nodes", tuple[_ManagedNode, ...])
            settings = await self._read("settings", _ManagerSettings)
        except (ManagerRefused, ManagerUnavailable) as error:
            return json_response({**document, "problem": _explain(error)})
        names = {node.id: node.name or node.node or str(node.id) for node in nodes}
        shown = [
            {
                **msgspec.structs.asdict(change),
                "a_name": names.get(change.a, str(change.a)),
                "b_name": names.get(change.b, str(change.b)),
                "reason": _with_name(change.reason, names),
            }
            for change in changes[:CHANGES_SHOWN_MAX]
        ]
        return json_response({**document, "changes": shown, "approval": settings.approval})

    async def _read(self, name: str, kind: type[T]) -> T:
        assert self._http is not None
        return parse_answer(await self._http.request_json("GET", f"/api/v1/{name}"), kind)

    async def handle_apply(self, path: str, query: str, headers: Mapping[str, str]) -> HttpResponse:
        """Handle `POST /proposals/apply?kind=add&a=1&b=2`."""
        given = {name: values[-1] for name, values in parse_qs(query).items()}
        kind, ends = given.get("kind"), [given.get("a", ""), given.get("b", "")]
        if kind not in KINDS or not all(end.isdecimal() and len(end) < 10 for end in ends):
            text = "give kind=add or kind=remove, and the numbers of two nodes as a and b"
            return json_response({"error": text}, 400)
        if self._http is None:
            return json_response({"error": "this agent has no manager ([topology] manager)"}, 409)
        try:
            body = {"kind": kind, "a": int(ends[0]), "b": int(ends[1])}
            await self._http.request_json("POST", "/api/v1/plan/apply", body)
        except ManagerRefused as error:
            return json_response({"error": _explain(error)}, 409)
        except ManagerUnavailable as error:
            return json_response({"error": _explain(error)}, 503)
        return json_response({"done": f"{kind} link"})


def _with_name(reason: str, names: Mapping[int, str]) -> str:
    """Return a reason with the name of the node that it begins with, such as `4 is draining`: the
    planner knows numbers only."""
    first, blank, rest = reason.partition(" ")
    number = int(first) if first.isdecimal() else -1
    return f"{names[number]}{blank}{rest}" if number in names else reason


def _explain(error: ManagerRefused | ManagerUnavailable) -> str:
    if isinstance(error, ManagerRefused) and error.status in (401, 403):
        return (
            f"the manager refuses: {error}; set [topology] operator_token of this agent to a token"
            " of scope operate"
        )
    if isinstance(error, ManagerRefused):
        return f"the manager refuses: {error}"
    return f"the manager does not answer: {error}"
