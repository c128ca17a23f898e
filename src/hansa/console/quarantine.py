"""Reads and releases the nodes that agents have in quarantine, over their HTTP endpoints."""

import msgspec

from hansa.console.admin_client import AdminClient
from hansa.errors import UsageError
from hansa.printable import printable_json


class QuarantinedNode(msgspec.Struct, frozen=True):
    node: str
    name: str
    reason: str
    remaining_s: float
    duration_s: float


class _Answer(msgspec.Struct, frozen=True):
    quarantined: tuple[QuarantinedNode, ...]


def fetch_quarantined(agent: AdminClient) -> tuple[QuarantinedNode, ...]:
    """Return the nodes that an agent has in quarantine; raise UsageError if it does not answer."""
    try:
        document = printable_json(agent.get("/quarantine"))
        return msgspec.convert(document, _Answer).quarantined
    except msgspec.ValidationError as error:
        raise UsageError(f"{agent.urls[0]}: this is not an agent") from error


def holds(agent: AdminClient, node: str) -> bool:
    """Whether an agent has a node, given by its id or its name, in quarantine."""
    return any(node in (each.node, each.name) for each in fetch_quarantined(agent))


def release(agent: AdminClient, node: str) -> str:
    """Release a node, given by its id or its name; return its id."""
    matches = [each.node for each in fetch_quarantined(agent) if node in (each.node, each.name)]
    if len(matches) > 1:
        raise UsageError(f"{len(matches)} quarantined nodes are called {node!r}: give an id")
    found = matches[0] if matches else node
    agent.post("/quarantine/release", {"node": found})
    return found
