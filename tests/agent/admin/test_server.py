"""The agent's HTTP endpoints over a real socket."""

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping

import pytest

from hansa.agent.admin import server as server_module
from hansa.agent.admin.access import FAILURES_MAX, AdminAccess
from hansa.agent.admin.server import (
    REQUEST_BYTES_MAX,
    Endpoints,
    HttpResponse,
    Protection,
    StreamedResponse,
    json_response,
    serve,
)
from hansa.agent.exposure import HostRule

FORBIDDEN = b"HTTP/1.1 403 Forbidden"
PAGES: Endpoints = {
    "/status": lambda: json_response({"b": 1, "a": 2}),
    "/pieces": lambda: StreamedResponse(iter([b'{"a":', b"1" * 70_000, b"}"])),
    "/readyz": lambda: json_response({"ready": False}, 503),
    "/metrics": lambda: HttpResponse("x 1\n", content_type="text/plain; version=0.0.4"),
}


async def echo(path: str, query: str, headers: Mapping[str, str]) -> HttpResponse:
    return json_response({path: query}, is_compact=True)


HANDLERS = {"POST /do": echo}


def ask(request: bytes, access: AdminAccess | None = None) -> tuple[bytes, bytes]:
    """Send a raw request; return the status line and the body."""
    refusals: list[str] = []
    protection = Protection(
        HostRule("127.0.0.1"),
        access or AdminAccess(),
        on_refused=lambda *said: refusals.append(said[1]),
    )

    async def run() -> bytes:
        server = await serve("127.0.0.1", 0, PAGES, None, protection, HANDLERS)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        server.close()
        await server.wait_closed()
        return answer

    head, _, body = asyncio.run(run()).partition(b"\r\n\r\n")
    line = head.split(b"\r\n")[0]
    assert bool(refusals) == (line.split(b" ")[1] in (b"401", b"403", b"429"))
    return line, body


@pytest.mark.parametrize(
    ("path", "line", "body"),
    [
        (b"/status", b"HTTP/1.1 200 OK", b'{\n "a": 2,\n "b": 1\n}\n'),
        (b"/status?full=1", b"HTTP/1.1 200 OK", b'{\n "a": 2,\n "b": 1\n}\n'),
        (b"/readyz", b"HTTP/1.1 503 Service Unavailable", b'{\n "ready": false\n}\n'),
        (b"/metrics", b"HTTP/1.1 200 OK", b"x 1\n"),
    ],
)
def test_endpoint_answers(path, line, body):
    assert ask(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n") == (line, body)


def test_document_in_pieces_is_chunked():
    line, body = ask(b"GET /pieces HTTP/1.1\r\n\r\n")
    assert line == b"HTTP/1.1 200 OK"
    assert body == b'5\r\n{"a":\r\n%x\r\n%b\r\n1\r\n}\r\n0\r\n\r\n' % (70_000, b"1" * 70_000)


def test_agent_works_between_two_pieces():
    steps: list[str] = []

    def pieces() -> Iterator[bytes]:
        for number in range(3):
            steps.append("piece")
            yield b"%d" % number

    async def run() -> None:
        server = await serve("127.0.0.1", 0, {"/": lambda: StreamedResponse(pieces())})

        async def other_work() -> None:
            while steps.count("piece") < 3:
                if steps and steps[-1] == "piece":
                    steps.append("work")
                await asyncio.sleep(0)

        working = asyncio.create_task(other_work())
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert (await reader.read()).endswith(b"0\r\n\r\n")
        writer.close()
        await working
        server.close()

    asyncio.run(run())
    assert steps == ["piece", "work"] * 2 + ["piece"]


def test_client_that_does_not_read_is_cut_off(monkeypatch):
    """The pieces are not made meanwhile, so memory is bounded."""
    monkeypatch.setattr(server_module, "RESPONSE_TIMEOUT_S", 0.2)
    made, cut_off = 0, []

    def pieces() -> Iterator[bytes]:
        nonlocal made
        try:
            while True:
                made += 1
                yield bytes(1 << 20)
        finally:
            cut_off.append(True)

    async def run() -> None:
        server = await serve("127.0.0.1", 0, {"/": lambda: StreamedResponse(pieces())})
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        while not cut_off:
            await asyncio.sleep(0.01)
        writer.close()
        server.close()

    asyncio.run(run())
    assert made < 100


def test_unknown_endpoint_lists_the_existing_ones():
    line, body = ask(b"GET /nothing HTTP/1.1\r\n\r\n")
    assert line == b"HTTP/1.1 404 Not Found"
    assert b'"no endpoint /nothing"' in body and b'"/status"' in body


@pytest.mark.parametrize(
    ("head", "access", "line", "body"),
    [
        (b"", None, b"HTTP/1.1 200 OK", b'{"/do":"a=1&a=2"}\n'),
        (b"Host: localhost:1\r\nOrigin: http://localhost:1\r\n", None, b"HTTP/1.1 200 OK", b""),
        (b"Host: localhost:1\r\nOrigin: http://evil.example\r\n", None, FORBIDDEN, b""),
        (b"Host: localhost:1\r\nOrigin: null\r\n", None, FORBIDDEN, b""),
        (b"Host: evil.example\r\n", None, FORBIDDEN, b""),
        (b"", AdminAccess(operate_token="do"), b"HTTP/1.1 401 Unauthorized", b""),
        (b"Authorization: Bearer do\r\n", AdminAccess(operate_token="do"), b"HTTP/1.1 200 OK", b""),
    ],
)
def test_command_is_refused_to_other_pages_and_without_its_token(head, access, line, body):
    found = ask(b"POST /do?a=1&a=2 HTTP/1.1\r\n" + head + b"\r\n", access)
    assert found[0] == line and body in found[1]


@pytest.mark.parametrize("owner", [4711, None])
def test_command_without_token_is_refused_to_other_users(monkeypatch, owner):
    """Also if the owner of the client is unknown."""
    monkeypatch.setattr(server_module, "find_owner", lambda client, server: owner)
    line, body = ask(b"POST /do HTTP/1.1\r\n\r\n")
    assert line == FORBIDDEN
    assert b"[admin] operate_token" in body
    assert ask(b"GET /status HTTP/1.1\r\n\r\n")[0] == b"HTTP/1.1 200 OK"
    for access in (AdminAccess("do"), AdminAccess(operate_token="do")):
        request = b"POST /do HTTP/1.1\r\nAuthorization: Bearer do\r\n\r\n"
        assert ask(request, access)[0] == b"HTTP/1.1 200 OK"


CLIENT = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as client:
    client.sendall(b"POST /do HTTP/1.1\\r\\n\\r\\n")
    print(client.recv(100).split(b"\\r")[0].decode())
"""


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root can act as another user"
)
@pytest.mark.parametrize(
    ("user", "line"), [(0, "HTTP/1.1 200 OK"), (65_534, "HTTP/1.1 403 Forbidden")]
)
def test_process_of_another_user_cannot_send_commands(user, line):
    async def run() -> bytes:
        server = await serve("127.0.0.1", 0, PAGES, None, None, HANDLERS)
        port = server.sockets[0].getsockname()[1]
        program = ("/usr/bin/env", "python3", "-c", CLIENT, str(port))
        client = await asyncio.create_subprocess_exec(
            *program, stdout=asyncio.subprocess.PIPE, user=user, cwd="/"
        )
        said, _ = await client.communicate()
        server.close()
        await server.wait_closed()
        return said

    assert asyncio.run(run()).decode().strip() == line


def test_wrong_tokens_of_one_user_keep_no_other_user_out(monkeypatch):
    """All users of a machine have the same address."""
    owners = {"attacker": 65_534, "operator": 1_000}
    access = AdminAccess(read_token="read")

    def status_line(user: str, token: bytes) -> bytes:
        monkeypatch.setattr(server_module, "find_owner", lambda client, server: owners[user])
        return ask(b"GET /status HTTP/1.1\r\nAuthorization: Bearer %b\r\n\r\n" % token, access)[0]

    for _ in range(FAILURES_MAX):
        assert status_line("attacker", b"guess") == b"HTTP/1.1 401 Unauthorized"
    assert status_line("attacker", b"read") == b"HTTP/1.1 429 Too Many Requests"
    assert status_line("operator", b"read") == b"HTTP/1.1 200 OK"


def test_idle_connections_keep_no_request_out(monkeypatch):
    monkeypatch.setattr(server_module, "CONNECTIONS_MAX", 3)

    async def run() -> tuple[bytes, bytes]:
        server = await serve("127.0.0.1", 0, PAGES)
        port = server.sockets[0].getsockname()[1]
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for _, writer in idle:
            writer.write(b"GET /stat")
            await writer.drain()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /status HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        try:
            evicted = await idle[0][0].read()
        except ConnectionResetError:
            evicted = b""
        for kept, each in idle[1:]:
            each.write_eof()
            assert (await kept.read()).startswith(b"HTTP/1.1 400")
        for _, each in [*idle, (reader, writer)]:
            each.close()
        server.close()
        await server.wait_closed()
        return answer, evicted

    answer, evicted = asyncio.run(run())
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert evicted == b""


LARGE: Endpoints = {**PAGES, "/large": lambda: HttpResponse(b"x" * (64 << 20))}
"""More than the buffers of a socket take."""


async def ask_without_reading(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_024)
    writer.write(b"GET /large HTTP/1.1\r\n\r\n")
    assert await reader.readexactly(8) == b"HTTP/1.1"
    return reader, writer


async def is_cut_off(reader: asyncio.StreamReader) -> bool:
    """Read to the end; return whether a part is missing."""
    size = 0
    try:
        while piece := await reader.read(1 << 20):
            size += len(piece)
    except ConnectionResetError:
        pass
    return size < 64 << 20


def test_client_that_does_not_read_a_document_is_cut_off(monkeypatch):
    monkeypatch.setattr(server_module, "READ_TIMEOUT_S", 0.05)

    async def run() -> bool:
        server = await serve("127.0.0.1", 0, LARGE)
        reader, writer = await ask_without_reading(server.sockets[0].getsockname()[1])
        await asyncio.sleep(0.3)  # longer than the limit
        found = await is_cut_off(reader)
        writer.close()
        server.close()
        await server.wait_closed()
        return found

    assert asyncio.run(run())


def test_clients_that_do_not_read_keep_no_request_out(monkeypatch):
    monkeypatch.setattr(server_module, "CONNECTIONS_MAX", 2)

    async def run() -> tuple[bytes, list[bool]]:
        server = await serve("127.0.0.1", 0, LARGE)
        port = server.sockets[0].getsockname()[1]
        slow = [await ask_without_reading(port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /status HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        found = [await is_cut_off(each) for each, _ in slow]
        for _, each in [*slow, (reader, writer)]:
            each.close()
        server.close()
        await server.wait_closed()
        return answer, found

    answer, found = asyncio.run(run())
    assert answer.startswith(b"HTTP/1.1 200")
    assert found == [True, False]


@pytest.mark.parametrize(
    ("site", "mode", "use", "line"),
    [
        (b"cross-site", b"no-cors", b"script", FORBIDDEN),
        (b"same-site", b"cors", b"empty", FORBIDDEN),
        (b"cross-site", b"navigate", b"iframe", FORBIDDEN),
        (b"cross-site", b"navigate", b"embed", FORBIDDEN),
        (b"cross-site", b"navigate", b"document", b"HTTP/1.1 200 OK"),
        (b"same-origin", b"cors", b"empty", b"HTTP/1.1 200 OK"),
        (b"none", b"navigate", b"document", b"HTTP/1.1 200 OK"),
    ],
)
def test_requests_of_other_web_pages_are_refused(site, mode, use, line):
    head = b"GET /status HTTP/1.1\r\nSec-Fetch-Site: %b\r\nSec-Fetch-Mode: %b\r\n"
    assert ask(head % (site, mode) + b"Sec-Fetch-Dest: %b\r\n\r\n" % use)[0] == line


def test_command_is_not_a_page():
    assert ask(b"GET /do HTTP/1.1\r\n\r\n")[0] == b"HTTP/1.1 404 Not Found"


def test_endpoints_accept_only_get():
    assert ask(b"POST /status HTTP/1.1\r\n\r\n")[0] == b"HTTP/1.1 405 Method Not Allowed"


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"hello",
        b"hello\r\n\r\n",
        b"\x00\xff\r\n\r\n",
        b"GET /status HTTP/1.1\r\n" + b"x" * 2 * REQUEST_BYTES_MAX,
    ],
)
def test_garbage_gets_bad_request(garbage):
    assert ask(garbage)[0] == b"HTTP/1.1 400 Bad Request"
