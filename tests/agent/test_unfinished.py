"""Places of connections that have not proved anything: which one is ended."""

import asyncio
import logging
import socket
from collections import Counter
from functools import partial
from typing import cast

import pytest

from hansa.agent.unfinished import UnfinishedConnections


class Client:
    """A socket as far as its address counts."""

    def __init__(self, host: str) -> None:
        self._host = host

    def getpeername(self) -> tuple[str, int]:
        if not self._host:
            raise OSError("gone")
        return self._host, 1


def ended(most: int, *hosts: str) -> list[int]:
    """Return which connections of these hosts, in this order, were ended for later ones."""
    found: list[int] = []
    counters: Counter[str] = Counter()

    async def work() -> None:
        places = UnfinishedConnections(most, counters, "too many")
        for number, host in enumerate(hosts):
            client = cast(socket.socket, Client(host))
            places.add(number, client, partial(found.append, number))
        assert len(places) == min(most, len(hosts))

    asyncio.run(work())
    assert counters["too many"] == len(found)
    return found


def test_host_with_most_connections_loses_its_oldest():
    honest, flood = "192.0.2.1", ["192.0.2.2"] * 5
    assert ended(4, honest, *flood) == [1, 2]


def test_flood_of_one_host_ends_no_connection_of_many_others():
    others = [f"192.0.2.{number}" for number in range(10)]
    assert min(ended(12, *others, *["198.51.100.1"] * 100)) == 10


def test_oldest_of_all_is_ended_if_every_host_has_one():
    assert ended(2, "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4") == [0, 1]


def test_addresses_of_one_ipv6_network_are_one_host():
    flood = [f"2001:db8:0:1::{number}" for number in range(1, 6)]
    assert ended(4, "2001:db8:0:2::1", *flood) == [1, 2]
    assert ended(2, "fe80::1%lo", "2001:db8::1", "2001:db8::2") == [1]


def test_clients_that_have_gone_are_one_host():
    assert ended(2, "192.0.2.1", "", "") == [1]


def test_place_that_was_given_back_is_free():
    counters: Counter[str] = Counter()

    async def work() -> None:
        places = UnfinishedConnections(1, counters, "too many")
        for number in range(3):
            places.add(number, cast(socket.socket, Client("192.0.2.1")), lambda: None)
            places.remove(number)
            places.remove(number)
        assert not places.end_one()

    asyncio.run(work())
    assert not counters


def test_ended_connections_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    ended(1, *["192.0.2.1"] * 10)
    assert [each.getMessage() for each in caplog.records] == ["too many closed=1"]
