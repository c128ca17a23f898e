"""Access control: bearer tokens with scopes, and a rate limit per client.

Tokens are long and random, so only their SHA-256 digests are stored.
"""

import hashlib
import os
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass

from hansa.agent.admin.socket_owner import find_owner
from hansa.agent.exposure import is_loopback
from hansa.errors import UsageError
from hansa.manager.rows import TokenRow
from hansa.manager.store import ManagerStore
from hansa.manager.types import RequestRefused

SCOPES = ("join", "read", "operate", "admin")
"""`join`: join, leave, report, stream. `read`: read everything. `operate`: also change links and
nodes. `admin`: everything, tokens and settings included."""

INCLUDED = {"operate": ("read",), "admin": ("join", "read", "operate")}
"""Scopes that another one includes."""

OPEN_SCOPES = ("join", "read")
"""Scopes of all users of this machine while there is no token."""

ConnectionEnds = tuple[tuple[str, int] | None, tuple[str, int] | None]
"""Addresses of client and server, if they are known."""

ENVIRONMENT_TOKEN_NAME = "environment"
"""Name in the audit log of the token given by an environment variable."""

CLIENTS_MAX = 4_096
"""Clients with a stored rate; the least recently seen one is evicted first."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a token, or a node."""

    name: str
    scopes: tuple[str, ...]
    node: str = ""
    """Id of the node that has shown its certificate."""

    def has(self, *scopes: str) -> bool:
        """Whether the caller has one of these scopes."""
        own = {*self.scopes, *(each for s in self.scopes for each in INCLUDED.get(s, ()))}
        return not own.isdisjoint(scopes)

    @property
    def is_operator(self) -> bool:
        return self.has("operate")


class AccessControl:
    def __init__(
        self, store: ManagerStore, admin_token: str = "", *, is_exposed: bool = False
    ) -> None:
        """Accept the tokens of the store and `admin_token`. Without any token every request is
        accepted, but only root and the user of the manager are admins. If the manager is exposed
        to other machines, the last token cannot be removed."""
        self._store = store
        self._is_exposed = is_exposed
        self._admin = token_digest(admin_token) if admin_token else ""
        self._load()

    def _load(self) -> None:
        self._known = {row.digest: Caller(row.name, row.scopes) for row in self._store.tokens()}
        if self._admin:
            self._known[self._admin] = Caller(ENVIRONMENT_TOKEN_NAME, SCOPES)

    @property
    def is_open(self) -> bool:
        """Whether requests need no token."""
        return not self._known

    def identify(self, token: str | None, ends: ConnectionEnds = (None, None)) -> Caller:
        """Return the owner of a token; raise RequestRefused if it is missing or unknown. While
        there is no token, the ends of the connection show whose process sends the request."""
        if self.is_open:
            return Caller("anybody", SCOPES if _is_own_process(ends) else OPEN_SCOPES)
        if not token:
            raise RequestRefused(401, "a token is required: Authorization: Bearer …")
        digest = token_digest(token)
        if digest not in self._known:
            self._load()  # `hansa manager --add-token` may have added it
        found = self._known.get(digest)
        if found is None:
            raise RequestRefused(401, "this token is unknown")
        return found

    def identify_node(self, node: str, ends: ConnectionEnds) -> Caller:
        """Return a node that has shown its certificate. While there is no token, the manager's user
        may do everything on this machine, and so may an agent of that user."""
        is_own = self.is_open and _is_own_process(ends)
        return Caller(node, SCOPES if is_own else ("join",), node)

    def add_token(self, name: str, scopes: tuple[str, ...], now: float) -> str:
        """Create and return a token; it cannot be shown again."""
        token = secrets.token_urlsafe(32)
        self._store.save_token(TokenRow(name, scopes, token_digest(token), now))
        self._load()
        return token

    def remove_token(self, name: str) -> None:
        known = [caller.name for caller in self._known.values()]
        if self._is_exposed and known == [name]:
            raise RequestRefused(
                409, f"{name!r} is the last token: without one, every request would be accepted"
            )
        if not self._store.drop_token(name):
            raise RequestRefused(404, f"there is no token {name!r}")
        self._load()

    def list_tokens(self) -> list[TokenRow]:
        return self._store.tokens()


def _is_own_process(ends: ConnectionEnds) -> bool:
    """Whether root or the user of the manager has sent a request, on this machine."""
    client, server = ends
    owner = find_owner(client, server) if client and server else None
    return owner in (0, os.geteuid())


def token_digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def check_exposure(host: str, access: AccessControl) -> None:
    """Raise UsageError if the manager would listen beyond loopback without a token."""
    if access.is_open and not is_loopback(host):
        raise UsageError(
            f"--host {host} is reachable from other machines, and no token is set: set"
            " HANSA_MANAGER_TOKEN, or add one with --add-token, or listen on 127.0.0.1"
        )


class RateLimiter:
    """A token bucket per client, with a burst of twice the rate."""

    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        self._burst = 2 * per_second
        self._allowances: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def admit(self, client: str, now: float) -> bool:
        """Return whether a client may send a request now, and count it."""
        with self._lock:
            left, at = self._allowances.pop(client, (self._burst, now))
            left = min(self._burst, left + (now - at) * self._rate)
            admitted = left >= 1
            self._allowances[client] = (left - 1 if admitted else left, now)
            if len(self._allowances) > CLIENTS_MAX:
                self._allowances.popitem(last=False)
            return admitted
