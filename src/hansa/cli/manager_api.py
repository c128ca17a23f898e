"""Asks a topology manager over HTTP, and says in one line what went wrong."""

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

from hansa.errors import UsageError

TIMEOUT_S = 10.0


class ManagerApi:
    """One manager."""

    def __init__(self, url: str, token: str = "") -> None:
        """`url` is where it listens, as http://host:port."""
        self.url = url if "://" in url else f"http://{url}"
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(f"{url!r} is no address of a manager: write http://host:port")
        self._token = token

    def ask(self, path: str, method: str = "GET", body: object = None) -> Any:
        """Send a request; return what the answer's JSON says."""
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        address = f"{self.url.rstrip('/')}/api/v1{path}"
        try:
            request = urllib.request.Request(address, data, headers, method=method)
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise UsageError(f"the manager says: {_sentence(error.read())}") from error
        except (OSError, ValueError, HTTPException) as error:
            raise UsageError(f"no manager answers at {self.url}: {_reason(error)}") from error
        try:
            return json.loads(text) if text else None
        except ValueError as error:
            raise UsageError(f"what answers at {self.url} is no manager") from error


def _sentence(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return "something that is no manager's answer"


def _reason(error: Exception) -> object:
    return getattr(error, "reason", None) or error
