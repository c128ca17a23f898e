"""How to be let in at a broker, as settings say it: a name, a password, TLS."""

import ssl
from typing import Protocol

from hansa.errors import UsageError


class AccessSettings(Protocol):
    """The settings that every section about a broker has."""

    @property
    def username(self) -> str:
        """As whom; empty is nobody."""

    @property
    def password(self) -> str:
        """With a username."""

    @property
    def tls(self) -> bool:
        """Whether to speak TLS."""

    @property
    def tls_ca(self) -> str:
        """File with the authorities to trust; the system's if empty."""


def check_access(place: str, given: AccessSettings) -> None:
    """Raise UsageError for what cannot be meant."""
    if given.password and not given.username:
        raise UsageError(f"[{place}] password needs a username")
    if given.tls_ca and not given.tls:
        raise UsageError(f"[{place}] tls_ca is for tls = true")


def tls_context(place: str, given: AccessSettings) -> ssl.SSLContext | None:
    """Return what TLS needs, None without; raise UsageError if tls_ca is of no use."""
    if not given.tls:
        return None
    try:
        return ssl.create_default_context(cafile=given.tls_ca or None)
    except OSError as error:  # an SSLError if the file is there and holds no certificates
        reason = error.strerror or error
        raise UsageError(f"[{place}] tls_ca {given.tls_ca}: {reason}") from error
