"""HTTP requests to agents and managers, without redirects, bounded in bytes and time.

A redirect is an error (`urllib.error.HTTPError`): it would send the token of the request to an
address that the server chose.
"""

import ssl
import time
import urllib.request
from email.message import Message
from http.client import IncompleteRead
from typing import IO

CHUNK_BYTES = 1 << 16

DEADLINE_S = 120.0
"""Seconds for a whole response; the timeout of a request bounds each read only."""


class TooLarge(ValueError):
    """A response exceeds its limit of bytes or time."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> None:
        """Return None, so that the opener raises an error."""


_OPENER = urllib.request.build_opener(_NoRedirects())
_DIRECT = urllib.request.build_opener(_NoRedirects(), urllib.request.ProxyHandler({}))


def fetch(
    request: urllib.request.Request | str,
    timeout_s: float,
    bytes_max: int,
    proxies: bool = True,
    tls: ssl.SSLContext | None = None,
) -> tuple[bytes, Message]:
    """Return body and headers of a response. `proxies`: whether to use proxies of the environment.
    `tls` replaces the system's authorities; such a request uses no proxy."""
    opener = _OPENER if proxies else _DIRECT
    if tls is not None:
        opener = urllib.request.build_opener(
            _NoRedirects(),
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=tls),
        )
    deadline = time.monotonic() + DEADLINE_S
    with opener.open(request, timeout=timeout_s) as response:
        body = bytearray()
        while chunk := response.read1(CHUNK_BYTES):
            body += chunk
            if len(body) > bytes_max:
                raise TooLarge(f"the response has more than {bytes_max} bytes")
            if time.monotonic() > deadline:
                raise TooLarge(f"the response takes more than {DEADLINE_S:.0f} s")
        if response.length:  # less than the announced Content-Length
            raise IncompleteRead(bytes(body), response.length)
        return bytes(body), response.headers
