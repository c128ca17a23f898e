"""Requests to the HTTP endpoints of agents: the first agent that answers is enough.

A token is sent only over https or to this machine. Every failure is a UsageError that says what to
change.
"""

import json
import os
import re
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from hansa import web
from hansa.console.contexts import AgentContext
from hansa.errors import UsageError

ANSWER_TIMEOUT_S = 30.0
"""An agent that collects the state of others waits for each of them for seconds."""

SLOW_S = 3.0

RESPONSE_BYTES_MAX = 64 << 20

TOKEN_BYTES_MAX = 4_096

TOKEN_VARIABLE = "HANSA_ADMIN_TOKEN"
"""Environment variable with `[admin] read_token` or `token` of the agents."""

NOT_AN_AGENT = "this is not an agent of Hansa: name its address of [admin], port 8080 by default"

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class AgentRefused(UsageError):
    """An agent answered with an error, which is the text."""


class AdminClient:
    """Sends requests to agents of one federation."""

    def __init__(
        self,
        urls: Sequence[str],
        token: str = "",
        tls: ssl.SSLContext | None = None,
        hint: str = "",
    ) -> None:
        """`urls` are admin addresses, tried in order; `hint` is printed if none answers."""
        self.urls = tuple(urls)
        self._token = token
        self._tls = tls
        self._hint = hint
        self.on_slow: Callable[[str], None] | None = None
        """Gets a line about an agent that has not answered within SLOW_S."""

    def with_token(self, token: str) -> "AdminClient":
        """Return the same client with another token."""
        return AdminClient(self.urls, token, self._tls)

    def split(self) -> list["AdminClient"]:
        """Return a client for each agent alone."""
        return [AdminClient((url,), self._token, self._tls) for url in self.urls]

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        """Return the JSON document of the first agent that answers; raise UsageError if none does,
        AgentRefused if it answers with an error."""
        return self._first("GET", path, query)

    def post(self, path: str, query: Mapping[str, str]) -> Any:
        """Ask the first agent that answers for a change."""
        return self._first("POST", path, query)

    def _first(self, method: str, path: str, query: Mapping[str, str] | None) -> Any:
        suffix = f"?{urlencode(query)}" if query else ""
        problems = []
        for url in self.urls:
            try:
                return self._request(method, url, f"{path}{suffix}")
            except _NoAnswer as problem:
                problems.append(f"{url}: {problem}")
        raise UsageError("; ".join([*problems, *filter(None, [self._hint])]))

    def _request(self, method: str, url: str, target: str) -> Any:
        try:
            request = urllib.request.Request(
                f"{url}{target}", headers=self._headers(url), method=method
            )
            # Agents are on the local network, which an HTTP proxy usually does not reach.
            with self._watched(url):
                data, _ = web.fetch(
                    request, ANSWER_TIMEOUT_S, RESPONSE_BYTES_MAX, proxies=False, tls=self._tls
                )
            return json.loads(data)
        except urllib.error.HTTPError as error:
            raise _http_problem(url, target, error) from error
        except (ValueError, RecursionError, HTTPException) as error:
            raise _NoAnswer(NOT_AN_AGENT) from error
        except OSError as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise _NoAnswer(
                    f"its certificate is not trusted ({reason.verify_message}): name the authority"
                    " with --ca in the context, or in the file SSL_CERT_FILE"
                ) from error
            text = getattr(reason, "strerror", None) or str(reason) or "unknown error"
            if isinstance(reason, ConnectionResetError):
                raise _NoAnswer(f"{NOT_AN_AGENT} ({text})") from error
            raise _NoAnswer(f"no answer ({text}); is the agent running?") from error

    @contextmanager
    def _watched(self, url: str) -> Iterator[None]:
        """Report an agent that is slow."""
        if self.on_slow is None:
            yield
            return
        text = f"{url} has not answered yet; waiting up to {ANSWER_TIMEOUT_S:.0f} s"
        timer = threading.Timer(SLOW_S, self.on_slow, (text,))
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _headers(self, url: str) -> dict[str, str]:
        if not self._token or not _is_private(url):
            return {}
        return {"Authorization": f"Bearer {self._token}"}


def _is_private(url: str) -> bool:
    """Whether a token that is sent there stays secret."""
    parts = urlsplit(url)
    return parts.scheme == "https" or parts.hostname in LOOPBACK


class _NoAnswer(Exception):
    """No agent answers at an address; the next one may."""


def _http_problem(url: str, target: str, error: urllib.error.HTTPError) -> Exception:
    try:
        text = str(json.loads(error.read(65_536))["error"])
    except (OSError, ValueError, KeyError, TypeError, HTTPException):
        return _NoAnswer(f"{NOT_AN_AGENT} (HTTP {error.code})")
    if error.code == 401:
        https = "" if _is_private(url) else ", and use https"
        return AgentRefused(
            f"{url}: {text}: set {TOKEN_VARIABLE}, or --token-file in the context{https}"
        )
    if error.code == 404:
        path = target.partition("?")[0]
        return AgentRefused(
            f"{url}: this agent has no endpoint {path}: it runs an older version, or in the mode"
            " mqtt-fed, which only has /status"
        )
    return AgentRefused(f"{url}: {text}")


def admin_url(text: str) -> str:
    """Return the admin URL that a text names; raise UsageError if it names none."""
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and parts.hostname and parts.port
    except ValueError:
        is_usable = False
    if not is_usable and re.fullmatch(r"https?://[^/:]+/?", text):
        raise UsageError(f"{text!r} names no port: write {text.removesuffix('/')}:8080")
    if not is_usable:
        raise UsageError(
            f"{text!r} is neither a ready file of `hansa up` nor the admin address of an agent,"
            " such as http://127.0.0.1:8080"
        )
    return url.removesuffix("/").removesuffix("/status")


def urls_of_target(target: str) -> tuple[str, ...]:
    """Return the admin URLs that a target names: a URL, host:port, or a ready file."""
    path = Path(target)
    if not target or not path.is_file():
        return (admin_url(target),)
    try:
        urls = tuple(str(node["admin"]) for node in json.loads(path.read_text())["nodes"])
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a ready file of `hansa up`") from error
    if not urls:
        raise UsageError(f"{path} names no nodes")
    return urls


def client_for_context(context: AgentContext) -> AdminClient:
    """Return the client of a saved context; raise UsageError if its files are unusable."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if context.token_file and not token:
        try:
            with open(context.token_file, encoding="ascii") as stream:
                token = stream.read(TOKEN_BYTES_MAX).strip()
        except (OSError, UnicodeError) as error:
            text = getattr(error, "strerror", None) or "it is not text"
            raise UsageError(f"cannot read the token file {context.token_file}: {text}") from error
    tls = None
    if context.ca_file:
        try:
            tls = ssl.create_default_context(cafile=context.ca_file)
        except OSError as error:
            text = error.strerror or "it holds no certificate"
            raise UsageError(f"cannot use the authority {context.ca_file}: {text}") from error
    return AdminClient(context.urls, token, tls)
