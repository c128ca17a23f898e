"""Requests with a token: not redirected, bounded, and complete."""

import urllib.error
from collections.abc import Callable
from http.client import IncompleteRead

import pytest

from hansa import web
from hansa.errors import AgentUnreachable, JournalUnusable, UsageError
from hansa.journal import remote
from hansa.journal.remote import LogClient, token_for
from hansa.manager.client import ManagerRequests
from tests.agent.hostile.capture import Capture

TOKEN = "secret-token"


def answering(head: str, body: bytes = b"") -> Callable[[bytes], bytes]:
    return lambda data: f"HTTP/1.1 {head}\r\n\r\n".encode() + body


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_token_does_not_follow_a_redirect(status):
    with Capture() as elsewhere:
        location = f"Location: http://127.0.0.1:{elsewhere.port}/logs"
        head = f"{status} Moved\r\n{location}\r\nContent-Length: 0"
        with Capture(answering(head)) as agent:
            with pytest.raises(JournalUnusable, match="the agent redirects"):
                LogClient(f"http://127.0.0.1:{agent.port}", TOKEN).list_logs()
        with Capture(answering(head)) as manager:
            with pytest.raises(UsageError, match="the manager says"):
                ManagerRequests(f"http://127.0.0.1:{manager.port}", TOKEN).request("/nodes")
    for asked in (agent, manager):
        assert TOKEN.encode() in b"".join(asked.received)
    assert elsewhere.received == []


def test_answer_is_bounded(monkeypatch):
    monkeypatch.setattr(remote, "ANSWER_BYTES_MAX", 1_000)
    with Capture(answering("200 OK", b"x" * 100_000)) as agent:
        with pytest.raises(JournalUnusable, match="the response has more than 1000 bytes"):
            LogClient(f"http://127.0.0.1:{agent.port}", TOKEN).list_logs()


def test_slow_answer_times_out(monkeypatch):
    monkeypatch.setattr(web, "DEADLINE_S", -1.0)
    with Capture(answering("200 OK", b"x")) as agent:
        with pytest.raises(web.TooLarge, match="takes more than"):
            web.fetch(f"http://127.0.0.1:{agent.port}", 5, 1_000)


def test_truncated_answer_is_an_error():
    with Capture(answering("200 OK\r\nContent-Length: 10", b"short")) as agent:
        url = f"http://127.0.0.1:{agent.port}"
        with pytest.raises(IncompleteRead):
            web.fetch(url, 5, 1_000)
        with pytest.raises(AgentUnreachable):
            LogClient(url, TOKEN).list_logs()


def test_refusal_is_raised():
    with Capture(answering("401 Unauthorized\r\nContent-Length: 2", b"[]")) as agent:
        url = f"http://127.0.0.1:{agent.port}"
        with pytest.raises(urllib.error.HTTPError):
            web.fetch(url, 5, 1_000)
        with pytest.raises(JournalUnusable, match="Unauthorized"):
            LogClient(url, TOKEN).list_logs()


@pytest.mark.parametrize(
    ("url", "tokens", "token"),
    [
        ("http://a:1", "one", "one"),
        ("http://a:1", "base64==", "base64=="),
        ("http://a:1", "a:1=one,b:2=two", "one"),
        ("http://b:2/", "a:1=one,b:2=two==", "two=="),
        ("http://c:3", "a:1=one,b:2=two", ""),
    ],
)
def test_each_agent_can_have_its_own_token(url, tokens, token):
    assert token_for(url, tokens) == token
