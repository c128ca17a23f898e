"""Checks which addresses an agent listens on and which Host headers it accepts.

Links are neither authenticated nor encrypted yet, and the HTTP endpoints require no password. So an
agent listens beyond loopback only with `insecure = true`, and raises the alarm `insecure` while it
runs.

Every web page that the operator's browser shows can reach an endpoint on loopback if the page's
host name resolves to 127.0.0.1 (DNS rebinding). The browser then sends that name as Host, so names
other than those of this machine are refused.
"""

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from hansa.errors import UsageError


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def check_link_exposure(host: str, insecure: bool) -> None:
    """Raise UsageError for links beyond loopback unless the operator accepts the risk."""
    if not insecure and not is_loopback(host):
        raise UsageError(
            f"[link] host {host!r} is reachable from other machines, and links are not"
            " authenticated or encrypted yet: whoever reaches the port can join, read and publish."
            " Listen on 127.0.0.1, or lead links through brokers with TLS"
            ' ([link] transport = "mqtt", [link.mqtt] tls = true), or, in a network that you trust,'
            " set [link] insecure = true"
        )


def check_admin_exposure(host: str, insecure: bool) -> None:
    """Raise UsageError for endpoints beyond loopback unless the operator accepts the risk."""
    if not insecure and not is_loopback(host):
        raise UsageError(
            f"[admin] host {host!r} is reachable from other machines, and /status and /metrics ask"
            " for no password. Listen on 127.0.0.1, with a proxy that asks for one if need be, or,"
            " in a network that you trust, set [admin] insecure = true"
        )


class HostRule:
    """Names that the Host header of requests may have."""

    def __init__(self, bound: str, names: Iterable[str] = ()) -> None:
        """`bound` is the address that the endpoint listens on. Beyond loopback any name is
        accepted unless names are configured."""
        self._names = {bound.strip("[]").lower(), *(name.lower() for name in names)}
        self._accepts_all = not is_loopback(bound) and len(self._names) == 1

    def accepts(self, header: str | None) -> bool:
        """Whether a request with this Host header is accepted. Only programs send none."""
        if header is None or self._accepts_all:
            return True
        name = host_of(header)
        return is_loopback(name) or name in self._names


def host_of(header: str) -> str:
    """Return the host of `host:port` in lower case; empty if invalid."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return ""
