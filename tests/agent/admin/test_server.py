"""The agent's HTTP endpoints over a real socket."""

import asyncio

import pytest

from hansa.agent.admin.server import REQUEST_BYTES_MAX, HttpResponse, json_response, serve

PAGES = {
    "/status": lambda: json_response({"b": 1, "a": 2}),
    "/readyz": lambda: json_response({"ready": False}, 503),
    "/metrics": lambda: HttpResponse("x 1\n", content_type="text/plain; version=0.0.4"),
}


def ask(request: bytes) -> tuple[bytes, bytes]:
    """Send a raw request; return the status line and the body."""

    async def run() -> bytes:
        server = await serve("127.0.0.1", 0, PAGES)
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
    return head.split(b"\r\n")[0], body


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


def test_unknown_endpoint_lists_the_existing_ones():
    line, body = ask(b"GET /nothing HTTP/1.1\r\n\r\n")
    assert line == b"HTTP/1.1 404 Not Found"
    assert b'"no page /nothing"' in body and b'"/status"' in body


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
