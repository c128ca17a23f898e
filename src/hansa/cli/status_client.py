"""Reading agents' status pages: from a URL, or from all nodes that a ready file names.

A page is parsed once, here, into a `Status` that cannot be wrong; fields that are not ours pass by.
"""

import json
import urllib.error
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from hansa import web
from hansa.errors import UsageError
from hansa.printable import printable_json

ANSWER_TIMEOUT_S = 5.0
RESPONSE_BYTES_MAX = 64 << 20
READERS_MAX = 16


class BrokerInfo(msgspec.Struct, frozen=True):
    """The broker that an agent stands beside."""

    address: str
    connected: bool
    problem: str = ""
    observed: bool = True
    unobserved: str = ""
    """Why subscriptions may be unknown; empty if none are."""


class NeighbourInfo(msgspec.Struct, frozen=True):
    """One link."""

    rtt_ms: float | None = None
    bytes_in: int = 0
    bytes_out: int = 0


class CoreInfo(msgspec.Struct, frozen=True):
    """How far a core is."""

    distance: int


class GroupInfo(msgspec.Struct, frozen=True):
    """One group, as a node sees it."""

    core: str | None
    member: bool
    interested_nodes: tuple[str, ...]
    parents: tuple[str, ...]
    children: tuple[str, ...]


class InterestInfo(msgspec.Struct, frozen=True):
    """What the clients of a broker want."""

    local: tuple[str, ...]
    installed: bool
    """Whether every node in reach acts on it."""
    wide: tuple[str, ...] = ()
    """Filters that are announced because subscriptions may be unknown."""


class AgentStatus(msgspec.Struct, frozen=True):
    """One agent's page."""

    name: str
    node: str
    incarnation: int
    broker: BrokerInfo
    neighbours: dict[str, NeighbourInfo]
    members: tuple[str, ...]
    cores: dict[str, CoreInfo]
    groups: dict[str, GroupInfo]
    interest: InterestInfo
    counters: dict[str, int]
    names: dict[str, str] = {}
    """What members are called, those included whose page is not read."""
    version: str = ""
    refused: tuple[str, ...] = ()
    """Why links were refused lately."""
    alarms: dict[str, str] = {}


class StatusResponse(msgspec.Struct, frozen=True):
    """What one address answered."""

    url: str
    body: str = ""
    status: AgentStatus | None = None
    problem: str = ""


def status_urls(target: str) -> tuple[str, ...]:
    """Return where the pages are that a person means: a URL, host:port, or a ready file."""
    path = Path(target)
    if path.is_file():
        return _from_ready_file(path)
    url = target if "://" in target else f"http://{target}"
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and parts.hostname and parts.port
    except ValueError:
        is_usable = False
    if not is_usable:
        raise UsageError(
            f"{target!r} is neither a ready file of `hansa up` nor the address of an agent's pages,"
            " such as http://127.0.0.1:8080"
        )
    return (url.removesuffix("/").removesuffix("/status"),)


def fetch_all(urls: Sequence[str]) -> tuple[StatusResponse, ...]:
    """Read all pages at once; raise UsageError if not one of them answers."""
    with ThreadPoolExecutor(min(len(urls), READERS_MAX)) as readers:
        pages = tuple(readers.map(_fetch, urls))
    if all(page.problem for page in pages):
        raise UsageError(f"{pages[0].url}: {pages[0].problem}")
    return pages


def _from_ready_file(path: Path) -> tuple[str, ...]:
    try:
        urls = tuple(str(node["admin"]) for node in json.loads(path.read_text())["nodes"])
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no ready file of `hansa up`") from error
    if not urls:
        raise UsageError(f"{path} names no nodes")
    return urls


def _fetch(url: str) -> StatusResponse:
    try:
        # Agents are on this machine or near: a proxy for the web does not lead to them.
        data, _ = web.fetch(f"{url}/status", ANSWER_TIMEOUT_S, RESPONSE_BYTES_MAX, proxies=False)
        told = json.loads(data)
        body = json.dumps(told, indent=1, sort_keys=True) + "\n"  # in ASCII, whatever came
        told = printable_json(told)
        if isinstance(told, dict) and told.get("mode") == "mqtt-fed":
            return StatusResponse(
                url, problem=f'mode = "mqtt-fed": no tables for it, see {url}/status'
            )
        return StatusResponse(url, body, msgspec.convert(told, AgentStatus, strict=False))
    except (ValueError, RecursionError, msgspec.ValidationError, HTTPException):
        return StatusResponse(url, problem="this is not the status page of an agent")
    except urllib.error.HTTPError as error:
        return StatusResponse(
            url, problem=f"this is not the status page of an agent (HTTP {error.code})"
        )
    except OSError as error:
        reason = getattr(error, "reason", error)
        words = getattr(reason, "strerror", None) or str(reason) or "no answer"
        return StatusResponse(url, problem=f"nothing answers ({words}); is the agent running?")
