"""Polls of an HTTP API: paging, conditional requests, logins, and servers that misbehave."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from hansa.agent.broker import rest_poller
from hansa.agent.broker.own_subscription import OwnSubscription
from hansa.agent.broker.rest_poller import RestPoller
from hansa.agent.broker.settings import RestSettings
from hansa.observers.base import ObserverOutput
from hansa.observers.rest.description import ListRequest
from hansa.observers.rest.observer import OWN_AWAITED, OWN_MISSING

ROWS = [{"clientid": "c", "topic": "a"}, {"clientid": "hansa-1-agent", "topic": "own"}]
LIST = ListRequest("/list", client="clientid", filter="topic", limit_parameter="")
PAGED = ListRequest(
    "/list?all=1", "data", "clientid", filter="topic", total="count", paging="page", limit=2
)

Handler = Callable[[str, dict[str, str]], Any]
"""Gets the path and the headers of a request; returns status, headers and body."""


def answer(body: object, status: int = 200, **headers: str) -> tuple[int, dict[str, str], bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, data


@asynccontextmanager
async def api(handler: Handler):
    """Serve an HTTP API; yield its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            result = handler(head[0].split()[1], headers)
            if isinstance(result, Awaitable):
                result = await result
            if isinstance(result, bytes):
                writer.write(result)
                return
            status, fields, body = result
            lines = [
                f"HTTP/1.0 {status} x",
                *(f"{name}: {value}" for name, value in fields.items()),
            ]
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def settings(url: str, request: ListRequest = LIST, **more: Any) -> RestSettings:
    return RestSettings(
        "custom", url, **{"interval": 0.1, "timeout": 0.3, "custom": request, **more}
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


def play(
    handler: Handler,
    request: ListRequest = LIST,
    polls: int = 1,
    is_agent_subscribed: Callable[[], bool] = lambda: False,
    own: OwnSubscription | None = None,
    **more: Any,
) -> RestPoller:
    """Poll a server some times."""

    async def scene() -> RestPoller:
        async with api(handler) as url:
            given = settings(url, request, **more)
            poller = RestPoller(given, "hansa-1-", is_agent_subscribed, own)
            outputs: list[ObserverOutput] = []
            poller.on_observer_output = outputs.append
            task = asyncio.create_task(poller.run())
            await until(lambda: len(outputs) >= polls)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return poller

    return asyncio.run(scene())


def test_list_of_the_broker_is_known_without_own_subscriptions():
    poller = play(lambda path, headers: answer(ROWS))
    assert (poller.observer.is_complete, poller.observer.subscribed_filters()) == (True, ("a",))


def test_pages_are_requested_until_the_total_is_reached():
    paths: list[str] = []

    def handler(path: str, headers: dict[str, str]) -> Any:
        paths.append(path)
        number = int(path.partition("page=")[2].partition("&")[0])
        rows = [{"clientid": "c", "topic": f"t{n}"} for n in range(5)][2 * number - 2 : 2 * number]
        return answer({"data": rows, "count": 5})

    poller = play(handler, PAGED, polls=2)
    assert poller.observer.subscribed_filters() == ("t0", "t1", "t2", "t3", "t4")
    assert paths[:4] == [f"/list?all=1&page={number}&limit=2" for number in (1, 2, 3, 1)]
    assert poller.observer.is_complete


def test_pages_without_total_end_with_an_empty_page():
    """A short page need not be the last: this broker sends at most two items."""
    request = ListRequest(
        "/x",
        client="clientid",
        filter="topic",
        paging="offset",
        page_parameter="start",
        limit=3,
    )
    asked: list[str] = []

    def handler(path: str, headers: dict[str, str]) -> Any:
        asked.append(path)
        start = int(path.partition("start=")[2].partition("&")[0])
        return answer(
            [{"clientid": "c", "topic": f"t{n}"} for n in range(start, min(start + 2, 3))]
        )

    assert play(handler, request).observer.subscribed_filters() == ("t0", "t1", "t2")
    assert asked[:3] == ["/x?start=0&limit=3", "/x?start=2&limit=3", "/x?start=3&limit=3"]


def unchanged(path: str, headers: dict[str, str]) -> Any:
    """A server that always says that nothing has changed."""
    if "if-none-match" in headers:
        assert headers["if-none-match"] == '"7"'
        return answer(b"", 304, Content_Length="400")
    return answer(ROWS, ETag='"7"')


def test_unchanged_list_is_not_sent_again():
    poller = play(unchanged, polls=3)
    assert poller.observer.is_complete
    assert poller.observer.subscribed_filters() == ("a",)
    assert poller.counters["broker API: not modified"] == 2


def test_list_is_requested_in_full_after_a_time(monkeypatch):
    monkeypatch.setattr(rest_poller, "UNCONDITIONAL_S", 0.0)
    assert play(unchanged, polls=3).counters["broker API: not modified"] == 0


def test_modification_time_is_no_proof():
    """Its unit is a second: the list may have changed twice in it."""
    asked: list[dict[str, str]] = []

    def handler(path: str, headers: dict[str, str]) -> Any:
        asked.append(headers)
        return answer(ROWS, Last_Modified="Tue, 17 Nov 2026 18:00:00 GMT")

    play(handler, polls=2)
    assert not [headers for headers in asked if "if-modified-since" in headers]
    assert {headers["cache-control"] for headers in asked} == {"no-cache"}


@pytest.mark.parametrize(
    ("login", "expected"),
    [
        ({"username": "u", "password": "p:ü"}, "basic dTpwOsO8"),
        ({"token": "secret"}, "bearer secret"),
        ({}, None),
    ],
)
def test_login_is_sent(login, expected):
    seen: list[str | None] = []

    def handler(path: str, headers: dict[str, str]) -> Any:
        seen.append(headers.get("authorization"))
        return answer(ROWS)

    play(handler, **login)
    assert seen[0] == (expected.lower() if expected else None)


# ---------------------------------------------------------------- brokers that misbehave


@pytest.mark.parametrize("rows", [[], ROWS[:1]], ids=["empty", "another virtual host"])
def test_list_without_the_subscriptions_of_the_agent_is_not_complete(rows):
    """A user without rights gets an empty list, and no error."""

    def handler(path: str, headers: dict[str, str]) -> Any:
        return answer(rows)

    poller = play(handler, polls=2, is_agent_subscribed=lambda: True)
    assert poller.observer.incomplete_reason == OWN_MISSING
    assert play(handler, polls=2).observer.is_complete
    nameless = replace(LIST, client_optional=True)
    assert play(handler, nameless, 2, is_agent_subscribed=lambda: True).observer.is_complete


def test_new_subscription_of_the_agent_need_not_be_listed_at_once():
    answers = iter([False, True, True, True])  # before the first poll; before and after the others
    poller = play(
        lambda path, headers: answer([]), polls=2, is_agent_subscribed=lambda: next(answers, False)
    )
    assert poller.observer.is_complete


def test_list_with_the_subscriptions_of_the_agent_is_complete():
    poller = play(lambda path, headers: answer(ROWS), polls=3, is_agent_subscribed=lambda: True)
    assert (poller.observer.is_complete, poller.observer.subscribed_filters()) == (True, ("a",))


class Own(OwnSubscription):
    """The agent's own subscription; its connection only records what is done with it."""

    def __init__(self, is_held: bool = False, is_refused: bool = False) -> None:
        self.calls: list[str] = []
        super().__init__(lambda on_effect: self)  # type: ignore[arg-type, return-value]
        self.is_held, self.is_refused = is_held, is_refused

    def start(self) -> None:
        self.calls.append("start")

    async def stop(self) -> None:
        self.calls.append("stop")

    def abort(self) -> None:
        self.calls.append("abort")


@pytest.mark.parametrize(
    ("own", "reason"),
    [(Own(), OWN_AWAITED), (Own(is_held=True), OWN_MISSING), (Own(is_refused=True), "")],
    ids=["not asked yet", "held", "refused"],
)
def test_empty_list_is_complete_only_if_the_broker_refuses_the_own_subscription(own, reason):
    poller = play(lambda path, headers: answer([]), polls=3, own=own)
    assert poller.observer.incomplete_reason == reason
    assert poller.observer.is_confirmation_pending == (reason == OWN_AWAITED)
    assert own.calls == ["start", "stop", "abort"]


def test_list_with_the_own_subscription_is_complete_at_once():
    poller = play(lambda path, headers: answer(ROWS), own=Own())
    assert poller.observer.is_complete


def test_list_without_client_ids_needs_no_own_subscription():
    own = Own(is_held=True)
    nameless = replace(LIST, client_optional=True)
    assert play(lambda path, headers: answer([]), nameless, 3, own=own).observer.is_complete
    assert own.calls == []


async def hang(path: str, headers: dict[str, str]) -> bytes:
    await asyncio.sleep(3600)
    return b""


async def drip(path: str, headers: dict[str, str]) -> bytes:
    await asyncio.sleep(0.5)
    return b"HTTP/1.0 200 OK\r\n\r\n[]"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (hang, "no answer in time"),
        (drip, "no answer in time"),
        (lambda path, headers: answer(b"oops", 500), "status 500"),
        (lambda path, headers: answer(b"<html>"), "it is not JSON"),
        (lambda path, headers: answer([{"clientid": "c"}]), "a row has no text 'topic'"),
        (lambda path, headers: b"", "this is no HTTP"),
        (lambda path, headers: b"SSH-2.0-x\r\n", "this is no HTTP"),
        (lambda path, headers: b"HTTP/1.0 200 OK\r\n", "the connection was closed before"),
        (lambda path, headers: answer([], Content_Length="999"), "2 of 999 bytes arrived"),
        (lambda path, headers: answer([], Transfer_Encoding="chunked"), "a chunked response"),
        (lambda path, headers: answer(b"", 304), "it answers with a redirect or without a list"),
        (lambda path, headers: answer([], 204), "it answers with a redirect or without a list"),
        (lambda path, headers: answer([], 401), "it refuses the login (401)"),
        (lambda path, headers: answer([], 404), "it has no such list (404)"),
        (lambda path, headers: answer(b"[" + b" " * 5_000 + b"]"), "an answer of more than 4096"),
        (lambda path, headers: b"HTTP/1.0 200 OK\r\n" + b"a: b\r\n" * 300, "more than 256 headers"),
        (
            lambda path, headers: b"HTTP/1.0 200 " + b"x" * 70_000,
            "more than 65536 bytes",
        ),
    ],
)
def test_wrong_answer_ends_completeness_and_keeps_filters(bad, reason, monkeypatch):
    monkeypatch.setattr(rest_poller, "ANSWER_BYTES_MAX", 4_096)
    is_bad = False

    def handler(path: str, headers: dict[str, str]) -> Any:
        return bad(path, headers) if is_bad else answer(ROWS)

    async def scene() -> None:
        nonlocal is_bad
        async with api(handler) as url:
            poller = RestPoller(settings(url), "hansa-1-")
            observer = poller.observer
            task = asyncio.create_task(poller.run())
            await until(lambda: observer.is_complete)
            is_bad = True
            await until(lambda: not observer.is_complete)
            assert reason in observer.incomplete_reason
            assert "127.0.0.1" not in observer.incomplete_reason
            assert observer.subscribed_filters() == ("a",)
            is_bad = False
            await until(lambda: observer.is_complete)
            task.cancel()

    asyncio.run(scene())


def test_broker_that_lies_about_its_total_is_never_complete():
    def handler(path: str, headers: dict[str, str]) -> Any:
        rows = ROWS if "page=1" in path else []
        return answer({"data": rows, "count": 7})

    poller = play(handler, PAGED, polls=2)
    assert poller.observer.incomplete_reason == "the broker's HTTP API: it lists 2 of 7 items"


def test_endless_pages_end(monkeypatch):
    monkeypatch.setattr(rest_poller, "PAGES_MAX", 3)
    poller = play(lambda path, headers: answer({"data": ROWS, "count": 10**9}), PAGED)
    assert poller.observer.incomplete_reason == ("the broker's HTTP API: it has more than 3 pages")


def test_list_as_long_as_the_limit_may_be_cut_off():
    request = ListRequest("/", client="clientid", filter="topic", limit=2)
    poller = play(lambda path, headers: answer(ROWS), request)
    assert "may be cut off" in poller.observer.incomplete_reason


def test_redirect_is_refused_and_gets_no_password():
    elsewhere: list[str] = []

    def other(path: str, headers: dict[str, str]) -> Any:
        elsewhere.append(headers.get("authorization", ""))
        return answer(ROWS)

    async def scene() -> None:
        async with api(other) as target:
            redirect = answer(b"", 302, Location=f"{target}/list")
            async with api(lambda path, headers: redirect) as url:
                poller = RestPoller(settings(url, username="u", password="secret"), "hansa-1-")
                outputs: list[ObserverOutput] = []
                poller.on_observer_output = outputs.append
                task = asyncio.create_task(poller.run())
                await until(lambda: len(outputs) >= 2)
                task.cancel()
                reason = poller.observer.incomplete_reason
                assert "redirects are refused" in reason
                assert target not in reason

    asyncio.run(scene())
    assert elsewhere == []


def test_unreachable_api_is_reported_without_its_address():
    async def scene() -> str:
        async with api(lambda path, headers: answer(ROWS)) as url:
            pass
        poller = RestPoller(settings(url), "hansa-1-")
        outputs: list[ObserverOutput] = []
        poller.on_observer_output = outputs.append
        task = asyncio.create_task(poller.run())
        await until(lambda: bool(outputs))
        task.cancel()
        return poller.observer.incomplete_reason

    assert asyncio.run(scene()) == "the broker's HTTP API: Connection refused"
