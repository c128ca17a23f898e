"""A live federation with certificates over UDP: strangers and forged datagrams change nothing."""

import asyncio
import random
import socket
from collections.abc import Iterator
from itertools import count

import pytest
from tests.agent.links.listener import RecordingListener
from tests.agent.live import PATIENCE, Live, eventually, wait_until_reachable
from tests.identity.certified import certify, make_authority

from hansa.agent.links.admission import Admission
from hansa.agent.links.datagrams import ACCEPT, CLOSE, CONFIRM, DATA, HEADER_BYTES, OPEN
from hansa.agent.links.link import Address
from hansa.agent.links.security import LinkSecurity
from hansa.agent.links.udp import UdpLinks
from hansa.identity.keys import KEY_FILE
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LinkProfile, LocalFederation

NOT_AUTHENTICATED = "refused: not authenticated"


@pytest.fixture(scope="module")
def running_federation(mosquitto: str) -> Iterator[Live]:
    live = Live(LocalFederation(parse_topology("line:2", 1), {}, None, LinkProfile("udp")))
    try:
        live.start()
        yield live
    finally:
        live.close()


def assert_publications_arrive(live: Live) -> None:
    wait_until_reachable(live.client(0), [live.subscriber(1, "t/#")], "t/a")


def test_member_of_another_authority_is_refused(live, tmp_path):
    certify(make_authority(tmp_path / "ca"), tmp_path / "stranger")
    security = LinkSecurity(tmp_path / "stranger", tmp_path / "stranger" / KEY_FILE, print)
    before = live.counter(0, NOT_AUTHENTICATED)
    listener = RecordingListener()
    failures: list[str] = []

    async def dial() -> None:
        links = UdpLinks(listener, random.Random(1), count(1), Admission(security))
        address = Address("127.0.0.1", live.nodes[0].link_port)
        links.dialler.dial_once(address, lambda _, reason: failures.append(reason))
        async with asyncio.timeout(PATIENCE):
            while not failures:
                await asyncio.sleep(0.01)
        await links.stop()

    asyncio.run(dial())
    assert failures[0].endswith("unknown ca")
    assert listener.opened == []
    eventually(lambda: live.counter(0, NOT_AUTHENTICATED) == before + 1, "counted")
    assert "not signed by this federation's authority" in live.log(0)
    assert_publications_arrive(live)


def test_frames_in_clear_open_no_link_and_close_none(live):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.settimeout(PATIENCE)
        stranger.connect(("127.0.0.1", live.nodes[0].link_port))
        stranger.send(OPEN + b"12345678" + bytes(8))
        session = stranger.recv(2_000)[1:HEADER_BYTES]
        stranger.send(CONFIRM + session)
        assert stranger.recv(2_000) == ACCEPT + session
        for kind in (DATA, CLOSE):
            stranger.send(kind + session + b"\x00\x05hello")
    before = live.nodes[0].status()["neighbours"]
    assert_publications_arrive(live)
    assert live.nodes[0].status()["neighbours"].keys() == before.keys()
    assert live.log(0).count("neighbour up") == 1
