"""Which user is at the other end of a connection on loopback."""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hansa.agent.admin.socket_owner import find_owner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists owners")
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout"
LINE = "   0: {} {} 01 00000000:00000000 00:00000000 00000000  {}        0 {} 1 0 20 4 30 10 -1"
CLIENT, SERVER = ("127.0.0.1", 0xD431), ("127.0.0.1", 0x1F90)
CLIENT_TEXT, SERVER_TEXT = "0100007F:D431", "0100007F:1F90"
MAPPED = "0000000000000000FFFF0000"


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    host = "127.0.0.1" if request.param == socket.AF_INET else "::1"
    try:
        listening = socket.create_server((host, 0), family=request.param)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listening, socket.socket(request.param) as client:
        client.connect(listening.getsockname())
        accepted, _ = listening.accept()
        with accepted:
            yield client, accepted


def owner_at(accepted: socket.socket) -> int | None:
    return find_owner(accepted.getpeername()[:2], accepted.getsockname()[:2])


def test_owner_of_an_open_socket_is_known_even_if_it_sends_nothing_more(pair):
    client, accepted = pair
    assert owner_at(accepted) == os.geteuid()
    client.shutdown(socket.SHUT_WR)
    assert owner_at(accepted) == os.geteuid()


def test_closed_socket_has_no_owner(pair):
    """The kernel lists it as root's: otherwise everybody could become root by closing early."""
    client, accepted = pair
    accepted.setblocking(True)
    client.close()
    assert accepted.recv(1) == b""
    assert owner_at(accepted) is None


def table(path: Path, client: str, server: str, uid: int, inode: int) -> tuple[Path, ...]:
    (path / "tcp").write_text(f"{HEAD}\n{LINE.format(client, server, uid, inode)}\n")
    return path / "absent", path / "tcp"


@pytest.mark.skipif(sys.byteorder != "little", reason="the lines are of a little-endian machine")
@pytest.mark.parametrize("prefix", ["", MAPPED])
def test_owner_is_read_from_the_line_of_the_client(tmp_path, prefix):
    """A client may reach an address of IPv4 through a socket of IPv6."""
    lines = (prefix + CLIENT_TEXT, prefix + SERVER_TEXT)
    assert find_owner(CLIENT, SERVER, table(tmp_path, *lines, 1234, 77)) == 1234
    assert find_owner(("::ffff:127.0.0.1", CLIENT[1]), SERVER, table(tmp_path, *lines, 5, 7)) == 5
    assert find_owner(CLIENT, SERVER, table(tmp_path, *lines, 0, 0)) is None
    assert find_owner(SERVER, CLIENT, table(tmp_path, *lines, 1234, 77)) is None


def test_unreadable_addresses_have_no_owner():
    assert find_owner(("-", 0), SERVER) is None
