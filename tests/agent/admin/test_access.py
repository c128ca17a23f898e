"""Tokens of the HTTP endpoints."""

import base64
from functools import partial

import pytest

from hansa.agent.admin import access
from hansa.agent.admin.access import FAILURES_MAX, FAILURES_WINDOW_S, AdminAccess, Scope

HOST = partial(str, "192.0.2.1")
REFUSED = (401, "the token is missing or wrong")


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def basic(password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"me:{password}".encode()).decode()}


@pytest.mark.parametrize(
    ("made", "headers", "answer"),
    [
        (AdminAccess(), {}, None),
        (AdminAccess("all"), {}, None),
        (AdminAccess("all", is_exposed=True), {}, REFUSED),
        (AdminAccess("all", is_exposed=True), bearer("all"), None),
        (AdminAccess("all", "read"), {}, REFUSED),
        (AdminAccess("all", "read"), bearer("read"), None),
        (AdminAccess("all", "read"), bearer("all"), None),
        (AdminAccess("", "read"), bearer(""), REFUSED),
        (AdminAccess("", "read"), bearer("other"), REFUSED),
        (AdminAccess("", "read"), {"authorization": "bearer read"}, None),
        (AdminAccess("", "read"), basic("read"), None),
        (AdminAccess("", "read"), basic("other"), REFUSED),
        (AdminAccess("", "read"), {"authorization": "Basic ä"}, REFUSED),
        (AdminAccess("", "read"), {"authorization": "Digest read"}, REFUSED),
    ],
)
def test_pages_need_a_token_once_one_is_required(made, headers, answer):
    assert made.refusal("/status", headers, HOST, 0.0) == answer


def test_health_needs_no_token():
    assert AdminAccess("", "read").refusal("/healthz", {}, HOST, 0.0) is None


def test_host_with_many_wrong_tokens_has_to_wait():
    made = AdminAccess("", "read")
    for _ in range(FAILURES_MAX):
        assert made.refusal("/", bearer("guess"), HOST, 1.0) == REFUSED
    assert made.refusal("/", bearer("read"), HOST, 2.0) == (
        429,
        "too many wrong tokens; wait a minute",
    )
    assert made.refusal("/", bearer("read"), lambda: "192.0.2.2", 2.0) is None
    assert made.refusal("/", bearer("read"), HOST, 2.0 + FAILURES_WINDOW_S) is None


def test_request_without_token_is_not_counted_as_guess():
    """A browser asks without a token first."""
    made = AdminAccess("", "read")
    for _ in range(2 * FAILURES_MAX):
        assert made.refusal("/", {}, HOST, 1.0) == REFUSED
    assert made.refusal("/", bearer("read"), HOST, 1.0) is None


def test_remembered_hosts_are_bounded(monkeypatch):
    monkeypatch.setattr(access, "HOSTS_MAX", 3)
    made = AdminAccess("", "read")
    for host in "abcd":
        for _ in range(FAILURES_MAX):
            made.refusal("/", bearer("guess"), partial(str, host), 1.0)
    held = [
        made.refusal("/", bearer("read"), partial(str, host), 1.0) is not None for host in "abcd"
    ]
    assert held == [False, True, True, True]


@pytest.mark.parametrize(
    ("made", "headers", "needed", "answer"),
    [
        (AdminAccess(), {}, Scope.OPERATE, None),
        (AdminAccess("all"), {}, Scope.OPERATE, None),
        (AdminAccess(operate_token="do"), {}, Scope.READ, None),
        (AdminAccess(operate_token="do"), {}, Scope.OPERATE, REFUSED),
        (AdminAccess(operate_token="do"), bearer("do"), Scope.OPERATE, None),
        (AdminAccess("all", operate_token="do"), bearer("all"), Scope.OPERATE, None),
        (AdminAccess("", "read", operate_token="do"), bearer("do"), Scope.READ, None),
        (AdminAccess("", "read"), {}, Scope.OPERATE, REFUSED),
        (
            AdminAccess("", "read", operate_token="do"),
            bearer("read"),
            Scope.OPERATE,
            (403, "this needs a token of scope operate"),
        ),
        (AdminAccess("all", is_exposed=True), {}, Scope.OPERATE, REFUSED),
    ],
)
def test_commands_need_the_scope_operate(made, headers, needed, answer):
    assert made.refusal("/quarantine/release", headers, HOST, 0.0, needed) == answer


def test_exposed_endpoints_without_tokens_take_no_commands():
    made = AdminAccess()
    made.protect_commands()
    assert made.refusal("/status", {}, HOST, 0.0) is None
    assert made.refusal("/x", bearer(""), HOST, 0.0, Scope.OPERATE) == REFUSED


@pytest.mark.parametrize(
    ("made", "headers", "answer"),
    [
        (AdminAccess(), {}, (403, access.NO_ADMIN_TOKEN)),
        (AdminAccess("", "read", operate_token="do"), bearer("do"), (403, access.NO_ADMIN_TOKEN)),
        (AdminAccess("all"), {}, REFUSED),
        (AdminAccess("all", "read"), bearer("read"), (403, "this needs a token of scope admin")),
        (AdminAccess("all"), bearer("all"), None),
    ],
)
@pytest.mark.parametrize("path", ["/tail", "/logs", "/logs/journal/1"])
def test_messages_of_clients_need_the_admin_token(made, headers, answer, path):
    assert made.refusal(path, headers, HOST, 0.0, access.scope_of(path)) == answer


def test_sender_is_looked_up_only_for_wrong_tokens():
    """On loopback that reads a table of all connections of the machine."""

    def fail() -> str:
        raise AssertionError

    made = AdminAccess("all", "read")
    assert made.refusal("/status", bearer("read"), fail, 0.0) is None
    assert made.refusal("/status", {}, fail, 0.0) == REFUSED
