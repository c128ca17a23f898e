import asyncio

import pytest

from hansa.agent.topology import http
from hansa.agent.topology.http import HttpClient, ManagerRefused, ManagerUnavailable


async def serve(answer: bytes, hold: bool = False):
    """Start a server with a fixed answer; return it, its URL and the requests."""
    asked: list[bytes] = []

    async def handle(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
        body = await reader.readexactly(int(lines[0].split(b":")[1])) if lines else b""
        asked.append(head + body)
        try:
            writer.write(answer)
            await writer.drain()
            if hold:
                await reader.read()
        except ConnectionError:
            pass  # the client closed after it read enough
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


def test_json_request_and_response():
    async def scene() -> None:
        server, url, asked = await serve(b'HTTP/1.0 200 OK\r\nX: y\r\n\r\n{"a": 1}')
        async with server:
            http = HttpClient(url + "/base/", {"Authorization": "Bearer secret"})
            assert await http.request_json("POST", "/x", {"b": 2}) == {"a": 1}
        assert asked[0].startswith(b"POST /base/x HTTP/1.0\r\n")
        assert b"Authorization: Bearer secret\r\n" in asked[0]
        assert asked[0].endswith(b'{"b": 2}')

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (b'HTTP/1.0 404 No\r\n\r\n{"error": "no such"}', ManagerRefused, r"no such \(404\)"),
        (b"HTTP/1.0 500 Oh\r\n\r\n[]", ManagerRefused, "500"),
        (b"HTTP/1.0 200 OK\r\n\r\n{", ManagerUnavailable, "no JSON"),
        (b"SSH-2.0\r\n\r\n", ManagerUnavailable, "this is no HTTP"),
        (b"", ManagerUnavailable, "this is no HTTP"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + b" " * (1 << 20) + b"1", ManagerUnavailable, "more than"),
        (b"HTTP/1.0 " + b"x" * 70_000, ManagerUnavailable, "."),
    ],
)
def test_error_responses_are_distinguished(answer, kind, said):
    async def scene() -> None:
        server, url, _ = await serve(answer)
        async with server:
            with pytest.raises(kind, match=said):
                await HttpClient(url).request_json("GET", "/")

    asyncio.run(scene())


def test_unreachable_and_silent_servers_are_reported(monkeypatch):
    async def scene() -> None:
        with pytest.raises(ManagerUnavailable, match="^Connection refused$"):
            await HttpClient("http://127.0.0.1:1").request_json("GET", "/")
        server, url, _ = await serve(b"", hold=True)
        monkeypatch.setattr(http, "TIMEOUT_S", 0.05)
        async with server:
            with pytest.raises(ManagerUnavailable, match="no answer in time"):
                await HttpClient(url).request_json("GET", "/")

    asyncio.run(scene())


def test_stream_is_read_by_line_until_it_ends():
    async def scene() -> None:
        server, url, _ = await serve(b"HTTP/1.0 200 OK\r\n\r\n: hello\ndata: 1\n\n")
        seen = []
        async with server:
            with pytest.raises(ManagerUnavailable, match="the stream has ended"):
                async for line in HttpClient(url).stream_lines("/events", 5.0):
                    seen.append(line)
        assert seen == [": hello", "data: 1", ""]

    asyncio.run(scene())


def test_silent_or_refused_stream_ends():
    async def scene() -> None:
        server, url, _ = await serve(b"HTTP/1.0 200 OK\r\n\r\n: hello\n", hold=True)
        async with server:
            with pytest.raises(ManagerUnavailable, match="no answer in time"):
                async for _ in HttpClient(url).stream_lines("/events", 0.05):
                    pass
        server, url, _ = await serve(b'HTTP/1.0 403 No\r\n\r\n{"error": "lacks"}')
        async with server:
            with pytest.raises(ManagerRefused, match="lacks"):
                async for _ in HttpClient(url).stream_lines("/events", 5.0):
                    pass

    asyncio.run(scene())


def test_slow_reader_does_not_end_stream():
    async def scene() -> None:
        server, url, _ = await serve(b"HTTP/1.0 200 OK\r\n\r\n: hello\ndata: 1\n")
        seen = []
        async with server:
            with pytest.raises(ManagerUnavailable, match="the stream has ended"):
                async for line in HttpClient(url).stream_lines("/events", 1.0):
                    seen.append(line)
                    await asyncio.sleep(1.1)  # longer than the server's idle limit
        assert seen == [": hello", "data: 1"]

    asyncio.run(scene())
