"""Limits for connections before their hellos are accepted.

Every machine that reaches a link port can connect. Until the node accepts the hello, a connection
therefore gets little: `HELLO_S` seconds, `HELLO_BYTES` bytes and one of `PENDING_MAX` places. When
all places are taken, a pending connection is evicted for a new one, so idle connections never shut
a neighbour out: its hello needs milliseconds. Every refusal is counted with its reason.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

from hansa.agent.links.link import Link
from hansa.agent.links.security import LinkSecurity

HELLO_S = 5.0
"""Seconds from the connection to accepted hellos. Less cuts off neighbours on slow paths, where
a hello takes a round trip; more lets idle connections keep their places longer."""

HELLO_BYTES = 4_096
"""Bytes that may arrive until then. A hello has about 200 bytes, and 1,700 with the longest names;
more would let strangers fill buffers."""

REFUSED_BYTES = 1 << 16
"""Bytes that may still arrive after a hello was refused: what the other side had already sent, and
its goodbye, which may carry a record."""

PENDING_MAX = 64
"""Connections opened by others whose hellos are not accepted yet. Less makes it easier to push
out a neighbour that is about to say hello; more costs memory and work for the node."""

NO_HELLO = f"no hello within {HELLO_S:.0f} s"
TOO_MANY_BYTES = f"more than {HELLO_BYTES} bytes before an agreed hello"
EVICTED = f"{PENDING_MAX} connections without hello, one evicted for a new connection"
NO_ROOM = "no room for another link"
NOT_AUTHENTICATED = "not authenticated"

OnUnauthenticated = Callable[[str, str], None]
"""Called with the address and the reason if a peer cannot prove to be a member."""


def ignore_peer(remote: str, reason: str) -> None:
    """Report nothing."""


class Admission:
    """Watches the connections that others opened until their hellos are accepted."""

    def __init__(self, security: LinkSecurity | None = None) -> None:
        """Without `security`, links are neither authenticated nor encrypted."""
        self.security = security
        self.counters: Counter[str] = Counter()
        self.on_unauthenticated: OnUnauthenticated = ignore_peer
        self.on_dialled_refused: OnUnauthenticated = ignore_peer
        """Called for a dialled peer that could not prove to be a member, or refused us."""
        self._pending: dict[Link, asyncio.TimerHandle] = {}
        """In the order of opening."""

    def refuse_unauthenticated(self, remote: str, reason: str) -> None:
        """Count and report a peer that could not prove to be a member."""
        self.count_refused(NOT_AUTHENTICATED)
        self.on_unauthenticated(remote, reason)

    def count_refused(self, reason: str) -> None:
        """Count a connection that was refused."""
        self.counters[f"refused: {reason}"] += 1

    def watch(self, link: Link) -> None:
        """Give a new connection a place, at the cost of another one if all are taken."""
        self._prune()
        if len(self._pending) >= PENDING_MAX:
            self._refuse(self._choose_victim(), EVICTED)
        loop = asyncio.get_running_loop()
        self._pending[link] = loop.call_later(HELLO_S, self._on_hello_timeout, link)

    def _prune(self) -> None:
        for link in [each for each in self._pending if each.is_admitted or each.closed.is_set()]:
            self._pending.pop(link).cancel()

    def _choose_victim(self) -> Link:
        """Return the oldest connection of the host that has most: a flood from one host does not
        affect other hosts."""
        hosts = Counter(map(_host, self._pending))
        (crowded, _), *_ = hosts.most_common(1)
        return next(link for link in self._pending if _host(link) == crowded)

    def _on_hello_timeout(self, link: Link) -> None:
        if not link.is_admitted and not link.closed.is_set():
            self._refuse(link, NO_HELLO)
        self._pending.pop(link, None)

    def _refuse(self, link: Link, reason: str) -> None:
        self._pending.pop(link).cancel()
        self.count_refused(reason)
        link.close(reason)


def _host(link: Link) -> str:
    return link.remote.rpartition(":")[0]
