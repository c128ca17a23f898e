"""Documents of agents for tests of tables and screens."""

from typing import Any

from hansa.console.federation import Federation, check

ALPHA, BETA, GAMMA = (f"{digits:0<16}" for digits in ("aa", "bb", "cc"))


def summary(name: str, node: str, **changes: Any) -> dict[str, Any]:
    other = BETA if node == ALPHA else ALPHA
    return {
        "name": name,
        "node": node,
        "version": "0.2.0",
        "incarnation": 7,
        "broker": {"address": "127.0.0.1:1", "connected": True},
        "neighbours": {other: {"rtt_ms": 0.5, "bytes_in": 1234, "bytes_out": 77}},
        "interest": {"filters": 1, "installed": True},
        "delivery": {"pending": {}, "inbox": 0, "gaps": []},
        "alarms": {},
        "counters": {"captured": 3, "dropped: broker disconnected": 1},
        **changes,
    }


def node(name: str, node_id: str, **changes: Any) -> dict[str, Any]:
    """A node that answered; `changes` are of its summary."""
    return {
        "id": node_id,
        "name": name,
        "reachable": True,
        "summary": summary(name, node_id, **changes),
    }


def lost(name: str, node_id: str, absent_s: float = 65.0) -> dict[str, Any]:
    return {
        "id": node_id,
        "name": name,
        "reachable": False,
        "absent_s": absent_s,
        "problem": "the node is unreachable",
        "summary": None,
    }


def federation(*nodes: dict[str, Any], two_way: bool = True, is_lost: bool = False) -> Federation:
    """The federation that alpha reports."""
    links = [{"a": ALPHA, "b": BETA, "rtt_ms": 0.5, "two_way": two_way, "lost": is_lost}]
    return check({"asked": ALPHA, "nodes": list(nodes), "links": links}, Federation)
