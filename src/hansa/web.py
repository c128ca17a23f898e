"""HTTP requests to agents and managers: never redirected, bounded in bytes and in time.

A request may carry a token. An answer that redirects would send the token to another address, which
the answering side chose, so a redirect is an error (`urllib.error.HTTPError`).
"""

import time
import urllib.request
from email.message import Message
from http.client import IncompleteRead
from typing import IO

CHUNK_BYTES = 1 << 16

DEADLINE_S = 120.0
"""Seconds for a whole answer; the timeout of a request only bounds each read."""


class TooLarge(ValueError):
    """An answer has more bytes than it may have, or takes too long."""


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
        """Follow none: the opener then raises the answer as an error."""


_OPENER = urllib.request.build_opener(_NoRedirects())
_DIRECT = urllib.request.build_opener(_NoRedirects(), urllib.request.ProxyHandler({}))


def fetch(
    request: urllib.request.Request | str, timeout_s: float, bytes_max: int, proxies: bool = True
) -> tuple[bytes, Message]:
    """Return the body and the headers of an answer. `proxies` says whether the proxies of the
    environment count."""
    opener = _OPENER if proxies else _DIRECT
    ends = time.monotonic() + DEADLINE_S
    with opener.open(request, timeout=timeout_s) as answer:
        body = bytearray()
        while chunk := answer.read1(CHUNK_BYTES):
            body += chunk
            if len(body) > bytes_max:
                raise TooLarge(f"the answer has more than {bytes_max} bytes")
            if time.monotonic() > ends:
                raise TooLarge(f"the answer takes more than {DEADLINE_S:.0f} s")
        if answer.length:  # bytes that were announced and did not come
            raise IncompleteRead(bytes(body), answer.length)
        return bytes(body), answer.headers
