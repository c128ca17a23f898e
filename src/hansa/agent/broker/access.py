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


def check_access(section: str, settings: AccessSettings) -> None:
    """Raise UsageError for what cannot be meant."""
    if settings.password and not settings.username:
        raise UsageError(f"[{section}] password needs a username")
    if settings.tls_ca and not settings.tls:
        raise UsageError(f"[{section}] tls_ca is for tls = true")


def tls_context(section: str, settings: AccessSettings) -> ssl.SSLContext | None:
    """Return what TLS needs, None without; raise UsageError if tls_ca is of no use."""
    if not settings.tls:
        return None
    try:
        return ssl.create_default_context(cafile=settings.tls_ca or None)
    except OSError as error:  # an SSLError if the file is there and holds no certificates
        reason = error.strerror or error
        raise UsageError(f"[{section}] tls_ca {settings.tls_ca}: {reason}") from error
