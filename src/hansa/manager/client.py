"""Operator's client of the manager's HTTP API: requests, and look-up of nodes by name.

Every failure is a UsageError with one line: no answer, a refusal of the manager, or a server that
is not a manager.
"""

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

from hansa import web
from hansa.errors import UsageError
from hansa.printable import printable, printable_json

TIMEOUT_S = 10.0
RESPONSE_BYTES_MAX = 64 << 20
ERROR_BYTES_MAX = 1 << 16
TITLES_MAX = 20
"""Nodes that one error lists."""


class ManagerRequests:
    def __init__(self, url: str, token: str = "") -> None:
        self.url = url if "://" in url else f"http://{url}"
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(f"{url!r} is not the URL of a manager: write http://host:port")
        self._token = token

    def request(self, path: str, method: str = "GET", body: object = None) -> Any:
        """Send a request to `/api/v1` + path; return the JSON of the response."""
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        address = f"{self.url.rstrip('/')}/api/v1{path}"
        try:
            request = urllib.request.Request(address, data, headers, method=method)
            text, _ = web.fetch(request, TIMEOUT_S, RESPONSE_BYTES_MAX)
        except urllib.error.HTTPError as error:
            with error:
                reason = _error_text(error.read(ERROR_BYTES_MAX))
                raise UsageError(f"the manager says: {reason}") from error
        except (OSError, ValueError, HTTPException) as error:
            raise UsageError(f"no manager answers at {self.url}: {_reason(error)}") from error
        try:
            return printable_json(json.loads(text)) if text else None
        except (ValueError, RecursionError) as error:
            raise UsageError(f"the server at {self.url} is not a manager") from error


class NodeDirectory:
    """The nodes that a manager knows, by number, name and agent's id."""

    def __init__(self, api: ManagerRequests) -> None:
        try:
            nodes = [(n["id"], n["name"], n["node"], n["state"]) for n in api.request("/nodes")]
        except (KeyError, TypeError) as error:
            raise UsageError(f"the server at {api.url} is not a manager") from error
        self._names = {number: name for number, name, _, _ in nodes}
        self._present = [number for number, _, _, state in nodes if state != "left"]
        self._agents = {number: agent for number, _, agent, _ in nodes}

    def title(self, number: int) -> str:
        """Return the number with the name, as `3 (press)`."""
        name = self._names.get(number)
        return f"{number} ({name})" if name else str(number)

    def find(self, text: str) -> int:
        """Return the number of a node given by number, name or agent's id.

        A name may look like a number. If a text matches two nodes, it must have the prefix `id:` or
        `name:`.
        """
        if text.startswith("name:"):
            return self.named(text.removeprefix("name:"))
        by_number = [n for n in self._names if str(n) == text.removeprefix("id:")]
        if text.startswith("id:"):
            return self._only(text, by_number)
        by_name = self._named(text)
        if by_number and set(by_name) - set(by_number):
            raise UsageError(
                f"{text} is the number of {self.title(by_number[0])} and the name of"
                f" {self._titles(by_name)}: write id:{text} or name:{text}"
            )
        return self._only(text, by_number or by_name)

    def named(self, name: str) -> int:
        """Return the number of the one node with this name or agent's id."""
        return self._only(name, self._named(name))

    def _named(self, name: str) -> list[int]:
        return [n for n in self._present if name and name in (self._names[n], self._agents[n])]

    def _only(self, text: str, candidates: list[int]) -> int:
        if len(candidates) > 1:
            raise UsageError(f"{text!r} is ambiguous: it names {self._titles(candidates)}")
        if not candidates:
            known = self._titles(self._present) or "none"
            raise UsageError(f"the manager knows no node {text!r}; it knows {known}")
        return candidates[0]

    def _titles(self, numbers: list[int]) -> str:
        shown = ", ".join(map(self.title, numbers[:TITLES_MAX]))
        more = len(numbers) - TITLES_MAX
        return f"{shown} and {more} more" if more > 0 else shown


def _error_text(body: bytes) -> str:
    try:
        return printable(str(json.loads(body)["error"]))
    except (ValueError, KeyError, TypeError):
        return "an error without a reason; it may not be a manager"


def _reason(error: Exception) -> object:
    return getattr(error, "reason", None) or error
