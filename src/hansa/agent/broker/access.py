"""Credentials and TLS of a broker connection, as the settings give them."""

import ssl
from typing import Protocol

from hansa.errors import UsageError


class AccessSettings(Protocol):
    """Settings that every section about a broker has."""

    @property
    def username(self) -> str:
        """User name; empty: connect without one."""

    @property
    def password(self) -> str:
        """Password; requires a user name."""

    @property
    def tls(self) -> bool:
        """Whether to use TLS."""

    @property
    def tls_ca(self) -> str:
        """File with the certificate authorities to trust; empty: those of the system."""


def check_access(section: str, settings: AccessSettings) -> None:
    """Raise UsageError for settings that contradict each other."""
    if settings.password and not settings.username:
        raise UsageError(f"[{section}] password needs a username")
    if settings.tls_ca and not settings.tls:
        raise UsageError(f"[{section}] tls_ca is for tls = true")


def tls_context(section: str, settings: AccessSettings) -> ssl.SSLContext | None:
    """Return the TLS context, None without TLS; raise UsageError if tls_ca is unusable."""
    if not settings.tls:
        return None
    try:
        return ssl.create_default_context(cafile=settings.tls_ca or None)
    except OSError as error:  # includes SSLError: the file holds no certificates
        reason = error.strerror or error
        raise UsageError(f"[{section}] tls_ca {settings.tls_ca}: {reason}") from error
