"""A bounded number of connections that have not proved anything yet.

Everyone who reaches a port can connect to it and stay silent. Such connections have a limited
number of places. If all are taken, a new one ends the oldest connection of the host that has most:
a flood from one host takes no place of another host, and never keeps a new connection out.
"""

import asyncio
import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import Callable

log = logging.getLogger("hansa.agent")

REPORT_INTERVAL_S = 60.0
"""Seconds between two log lines about ended connections."""

IPV6_HOST_BITS = 64
"""Bits of an IPv6 address that a host can choose freely."""


class UnfinishedConnections:
    """Holds connections until they are finished, and ends some of them if there are too many."""

    def __init__(self, most: int, counters: Counter[str], counter: str) -> None:
        """`counters` gets the number of connections that were ended, as `counter`, which is also
        logged."""
        self.most = most
        self._counters = counters
        self._counter = counter
        self._host_of: dict[object, str] = {}
        self._by_host: dict[str, dict[object, Callable[[], None]]] = {}
        """Each host's connections and how to end them, the oldest first."""
        self._reported_at: float | None = None

    def __len__(self) -> int:
        return len(self._host_of)

    def add(self, key: object, client: socket.socket, end: Callable[[], None]) -> None:
        """Give a connection a place, at the cost of another one if all are taken. `end` closes
        it."""
        host = _host(client)
        self._host_of[key] = host
        self._by_host.setdefault(host, {})[key] = end
        if len(self) > self.most:
            self.end_one()

    def remove(self, key: object) -> None:
        """Give a place back, if the connection has one."""
        host = self._host_of.pop(key, None)
        if host is not None:
            connections = self._by_host[host]
            del connections[key]
            if not connections:
                del self._by_host[host]

    def end_one(self) -> bool:
        """End the oldest connection of the host with most; return whether there was one."""
        if not self._host_of:
            return False
        crowded = max(self._by_host.values(), key=len)
        key, end = next(iter(crowded.items()))
        self.remove(key)
        end()
        self._counters[self._counter] += 1
        self._report()
        return True

    def end_all(self) -> None:
        """End all connections, without counting them."""
        ends = [end for connections in self._by_host.values() for end in connections.values()]
        self._host_of.clear()
        self._by_host.clear()
        for end in ends:
            end()

    def _report(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._reported_at is None or now - self._reported_at >= REPORT_INTERVAL_S:
            self._reported_at = now
            log.warning("%s closed=%d", self._counter, self._counters[self._counter])


def _host(client: socket.socket) -> str:
    """Return the address of a client; of IPv6 its network, whose addresses belong to one host."""
    try:
        host = str(client.getpeername()[0])
    except OSError:  # it has gone
        return ""
    if ":" not in host:
        return host
    address = int(ipaddress.IPv6Address(host.partition("%")[0]))
    return str(ipaddress.IPv6Address(address >> IPV6_HOST_BITS << IPV6_HOST_BITS))
