"""Who may do what: bearer tokens with scopes, and how often anybody may ask.

A token is random and long, so its digest is all that is kept.
"""

import hashlib
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass

from hansa.agent.exposure import is_loopback
from hansa.errors import UsageError
from hansa.manager.exchange import RequestRefused
from hansa.manager.rows import TokenRow
from hansa.manager.store import ManagerStore

SCOPES = ("join", "read", "admin")
"""`join`: join, leave, report, be told. `read`: look at everything. `admin`: all, and change it."""

ENVIRONMENT_TOKEN_NAME = "environment"
"""What the audit log calls whoever holds the token of the environment."""

CLIENTS_MAX = 4_096
"""Clients whose rate is remembered; the one not seen for longest is forgotten first."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who asks."""

    name: str
    scopes: tuple[str, ...]

    @property
    def is_admin(self) -> bool:
        """Whether it may do everything."""
        return "admin" in self.scopes


class AccessControl:
    """The tokens of one manager."""

    def __init__(
        self, store: ManagerStore, admin_token: str = "", *, is_exposed: bool = False
    ) -> None:
        """Let in who has a token of the store's, and who has this one. Without any, everybody;
        who is exposed to other machines keeps the last."""
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
        """Whether nobody needs a token."""
        return not self._known

    def identify(self, token: str | None) -> Caller:
        """Return who holds a token; refuse who holds none that is known."""
        if self.is_open:
            return Caller("anybody", SCOPES)
        if not token:
            raise RequestRefused(401, "a token is needed: Authorization: Bearer …")
        wanted = token_digest(token)
        if wanted not in self._known:
            self._load()  # `hansa manager --add-token` may have made it since
        found = self._known.get(wanted)
        if found is None:
            raise RequestRefused(401, "this token is not known")
        return found

    def add_token(self, name: str, scopes: tuple[str, ...], now: float) -> str:
        """Make a token; return it, for it cannot be seen again."""
        token = secrets.token_urlsafe(32)
        self._store.save_token(TokenRow(name, scopes, token_digest(token), now))
        self._load()
        return token

    def remove_token(self, name: str) -> None:
        """Take a token back."""
        known = [caller.name for caller in self._known.values()]
        if self._is_exposed and known == [name]:
            raise RequestRefused(
                409, f"{name!r} is the last token: without any, everybody may do all"
            )
        if not self._store.drop_token(name):
            raise RequestRefused(404, f"there is no token {name!r}")
        self._load()

    def list_tokens(self) -> list[TokenRow]:
        """Return who has a token, without it."""
        return self._store.tokens()


def token_digest(token: str) -> str:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def check_exposure(host: str, access: AccessControl) -> None:
    """Refuse to be reachable from elsewhere while everybody may do everything."""
    if access.is_open and not is_loopback(host):
        raise UsageError(
            f"--host {host} is reachable from elsewhere, and no token is set: set"
            " HANSA_MANAGER_TOKEN, or add one with --add-token, or listen on 127.0.0.1"
        )


class RateLimiter:
    """How often each client may ask: so many per second, and a burst of twice as many."""

    def __init__(self, per_second: float) -> None:
        """Start with nobody known."""
        self._rate = per_second
        self._burst = 2 * per_second
        self._allowances: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def admit(self, client: str, now: float) -> bool:
        """Whether a client may ask now; if so, that counts."""
        with self._lock:
            left, at = self._allowances.pop(client, (self._burst, now))
            left = min(self._burst, left + (now - at) * self._rate)
            admitted = left >= 1
            self._allowances[client] = (left - 1 if admitted else left, now)
            if len(self._allowances) > CLIENTS_MAX:
                self._allowances.popitem(last=False)
            return admitted
