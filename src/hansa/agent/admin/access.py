"""Who may use the HTTP endpoints: scoped tokens, and a limit for wrong ones.

| scope | token | may |
|---|---|---|
| read | `read_token` | read every endpoint but `/logs` and `/tail` |
| operate | `operate_token` | also send commands (POST), such as the release of a quarantined node |
| admin | `token` | also read `/logs` and `/tail`, which show the messages of clients |

On loopback, reading needs no token unless `read_token` is set. Commands need one there if
`read_token` or `operate_token` is set; otherwise they must come from a process of root or of the
agent's user.
Beyond loopback everything but `/healthz` needs a token. It comes as `Authorization: Bearer …`, or
as the password of HTTP Basic, so that a browser asks for it.
"""

import base64
import binascii
import hmac
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import IntEnum

OPEN_PATHS = ("/healthz",)
"""Endpoints that need no token: they only show that the agent runs."""

FAILURES_MAX = 10
FAILURES_WINDOW_S = 60.0
"""A sender of so many wrong tokens within this time gets 429 until the time is over."""

HOSTS_MAX = 1_024
"""Senders of wrong tokens that are remembered; the oldest one is forgotten first."""

NO_ADMIN_TOKEN = (
    "journals and messages of clients are shown only with the token of [admin] token, and none is"
    " set"
)

CHALLENGE = {"WWW-Authenticate": 'Basic realm="hansa", charset="UTF-8"'}


class Scope(IntEnum):
    """What a request needs; a token also has all scopes below its own."""

    NONE = 0
    READ = 1
    OPERATE = 2
    ADMIN = 3


LOGS_PATH = "/logs"

RESTRICTED_PATHS = {"/tail": Scope.ADMIN, LOGS_PATH: Scope.ADMIN}
"""Endpoints that need more than the scope read, with everything below them."""


def is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top}/")


def scope_of(path: str) -> Scope:
    """Return what a request to read an endpoint needs."""
    return next(
        (scope for top, scope in RESTRICTED_PATHS.items() if is_below(path, top)), Scope.READ
    )


class AdminAccess:
    """Checks tokens."""

    def __init__(
        self,
        token: str = "",
        read_token: str = "",
        is_exposed: bool = False,
        operate_token: str = "",
    ) -> None:
        """`is_exposed`: whether other machines reach the endpoints, so that all of them need a
        token."""
        named = {Scope.READ: read_token, Scope.OPERATE: operate_token, Scope.ADMIN: token}
        self._tokens = [(scope, each.encode()) for scope, each in named.items() if each]
        self._least_protected = Scope.ADMIN
        """The lowest scope that needs a token."""
        if operate_token:
            self._least_protected = Scope.OPERATE
        if read_token or is_exposed:
            self._least_protected = Scope.READ
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def protect_commands(self) -> None:
        """Require a token for commands, even if there is none: then they are refused."""
        self._least_protected = min(self._least_protected, Scope.OPERATE)

    def may_command(self, headers: Mapping[str, str]) -> bool:
        """Whether a request that is not refused may be a command of any user of this machine."""
        is_protected = self._least_protected <= Scope.OPERATE
        return is_protected or self._scope_of(presented_token(headers)) >= Scope.OPERATE

    def _scope_of(self, given: bytes) -> Scope:
        # All are compared, so that the time does not reveal which one is nearly right.
        found = [scope for scope, token in self._tokens if hmac.compare_digest(given, token)]
        return max(found, default=Scope.NONE)

    def refusal(
        self,
        path: str,
        headers: Mapping[str, str],
        identify: Callable[[], str],
        now: float,
        needed: Scope = Scope.READ,
    ) -> tuple[int, str] | None:
        """Return status and reason if a request is refused, None if it is accepted. `identify`
        returns who sends it."""
        if needed < self._least_protected or path in OPEN_PATHS:
            return None
        given = presented_token(headers)
        allowed = self._scope_of(given)
        is_wrong = bool(given) and allowed is Scope.NONE
        remote = identify() if is_wrong or self._failures else ""
        count, since = self._failures.get(remote, (0, now))
        if now - since > FAILURES_WINDOW_S:
            count, since = 0, now
        if count >= FAILURES_MAX:
            return 429, "too many wrong tokens; wait a minute"
        if needed is Scope.ADMIN and all(scope < Scope.ADMIN for scope, _ in self._tokens):
            return 403, NO_ADMIN_TOKEN
        if allowed >= needed:
            return None
        if allowed > Scope.NONE:
            return 403, f"this needs a token of scope {needed.name.lower()}"
        if is_wrong:
            self._failures[remote] = (count + 1, since)
            self._failures.move_to_end(remote)
            if len(self._failures) > HOSTS_MAX:
                self._failures.popitem(last=False)
        return 401, "the token is missing or wrong"


def presented_token(headers: Mapping[str, str]) -> bytes:
    """Return the token of a request, empty without one."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""
