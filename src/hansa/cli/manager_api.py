"""Asks a topology manager over HTTP, and says in one line what went wrong; finds nodes by name."""

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

from hansa import web
from hansa.errors import UsageError
from hansa.printable import printable, printable_json

TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 64 << 20
ERROR_BYTES_MAX = 1 << 16
TITLES_MAX = 20
"""Nodes that one error lists."""


class ManagerRequests:
    """One manager."""

    def __init__(self, url: str, token: str = "") -> None:
        """`url` is where it listens, as http://host:port."""
        self.url = url if "://" in url else f"http://{url}"
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(f"{url!r} is no address of a manager: write http://host:port")
        self._token = token

    def request(self, path: str, method: str = "GET", body: object = None) -> Any:
        """Send a request; return what the answer's JSON says."""
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        address = f"{self.url.rstrip('/')}/api/v1{path}"
        try:
            request = urllib.request.Request(address, data, headers, method=method)
            text, _ = web.fetch(request, TIMEOUT_S, ANSWER_BYTES_MAX)
        except urllib.error.HTTPError as error:
            with error:
                said = _sentence(error.read(ERROR_BYTES_MAX))
                raise UsageError(f"the manager says: {said}") from error
        except (OSError, ValueError, HTTPException) as error:
            raise UsageError(f"no manager answers at {self.url}: {_reason(error)}") from error
        try:
            return printable_json(json.loads(text)) if text else None
        except (ValueError, RecursionError) as error:
            raise UsageError(f"what answers at {self.url} is no manager") from error


class Nodes:
    """The nodes that a manager knows, by number, name and agent's id."""

    def __init__(self, api: ManagerRequests) -> None:
        """Ask the manager."""
        try:
            nodes = [(n["id"], n["name"], n["node"], n["state"]) for n in api.request("/nodes")]
        except (KeyError, TypeError) as error:
            raise UsageError(f"what answers at {api.url} is no manager") from error
        self._names = {number: name for number, name, _, _ in nodes}
        self._present = [number for number, _, _, state in nodes if state != "left"]
        self._agents = {number: agent for number, _, agent, _ in nodes}

    def title(self, number: int) -> str:
        """Return what to call a node in a sentence, as `3 (press)`."""
        name = self._names.get(number)
        return f"{number} ({name})" if name else str(number)

    def find(self, text: str) -> int:
        """Return the number of the node that a user means: by number, name or agent's id.

        Names may look like numbers. If such a text fits two nodes, `id:` or `name:` before it says
        which is meant.
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


def _sentence(body: bytes) -> str:
    try:
        return printable(str(json.loads(body)["error"]))
    except (ValueError, KeyError, TypeError):
        return "something that is no manager's answer"


def _reason(error: Exception) -> object:
    return getattr(error, "reason", None) or error
