"""Checks which addresses an agent listens on and which Host headers it accepts.

Links without a certificate are neither authenticated nor encrypted, and on loopback the HTTP
endpoints can be read without a token. So an agent listens for links beyond loopback only with a
certificate, for HTTP requests only with TLS and a token, or with `insecure = true`; then the alarm
`insecure` is active.

Every web page that the operator's browser shows can reach an endpoint on loopback if the page's
host name resolves to 127.0.0.1 (DNS rebinding). The browser then sends that name as Host, so names
other than those of this machine are refused.
"""

import ipaddress
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from hansa.errors import UsageError


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def check_link_exposure(host: str, has_certificate: bool) -> None:
    """Raise UsageError for links that other machines reach without a certificate."""
    if is_loopback(host) or has_certificate:
        return
    raise UsageError(
        f"[link] host {host!r} is reachable from other machines, and this node has no certificate:"
        " every machine that reaches the port can join, read and publish. Get a certificate with"
        " hansa invite and hansa join, or hansa ca sign; or listen on 127.0.0.1; or, in a network"
        " that you trust, set [link] insecure = true"
    )


def check_admin_exposure(host: str) -> None:
    """Raise UsageError for endpoints that other machines reach without TLS and a token."""
    if not is_loopback(host):
        raise UsageError(
            f"[admin] host {host!r} is reachable from other machines, which could read the"
            " endpoints. Set [admin] tls_certificate and read_token; or listen on 127.0.0.1;"
            " or, in a network that you trust, set [admin] insecure = true"
        )


def is_by_foreign_page(header: Callable[[str], str | None]) -> bool:
    """Whether a page of another site or server causes a request, by the headers that browsers add;
    `header` returns one of them by its name in lower case. The page could not read the answer, but
    hold streams open and let the agent ask all nodes, also in frames. A link to a page is
    allowed."""
    if header("sec-fetch-site") not in ("cross-site", "same-site"):
        return False
    return header("sec-fetch-mode") != "navigate" or header("sec-fetch-dest") != "document"


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
