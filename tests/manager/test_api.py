import asyncio
import http.client
import json
import re
import threading
import time
import urllib.error
import urllib.request
from html.parser import HTMLParser
from typing import Any

import pytest
from tests.manager.serving import Served

from hansa.agent.exposure import is_loopback
from hansa.errors import UsageError
from hansa.manager.access import CLIENTS_MAX, AccessControl, RateLimiter
from hansa.manager.federators import FederatorClients
from hansa.manager.middleware import ANONYMOUS_PER_S, BODY_BYTES_MAX
from hansa.manager.registry import FederationRegistry
from hansa.manager.schemas import JoinRequest
from hansa.manager.service import ManagerOptions, ManagerService
from hansa.manager.types import JoiningNode, RequestRefused


@pytest.fixture
def served(tmp_path):
    running = Served(f"sqlite:///{tmp_path / 'm.db'}")
    yield running
    running.stop()


def hexes(number: int) -> str:
    return f"{number:016x}"


def join(served: Served, number: int) -> Any:
    body = {"link": f"127.0.0.1:{10500 + number}", "node": hexes(number), "name": f"n{number}"}
    status, answer = served.ask("POST", "/api/v1/join", body)
    assert status == 200
    return answer


def test_request_and_response_of_the_paper(served):
    status, first = served.ask("POST", "/api/v1/join", {"ip": "tcp://127.0.0.1:1883"})
    assert (status, first["id"], first["neighbors"]) == (200, 0, [])
    _, second = served.ask("POST", "/api/v1/join", {"ip": "tcp://127.0.0.1:1884"})
    assert second["id"] == 1
    (neighbour,) = second["neighbors"]
    assert (neighbour["id"], neighbour["ip"]) == (0, "tcp://127.0.0.1:1883")
    assert second["neighborsAmount"] == 1
    # The paper's federator expects an envelope, and times in nanoseconds.
    assert (second["status"], second["code"], second["description"]) == ("success", 200, "")
    assert second["data"] == {
        "id": 1,
        "ip": "tcp://127.0.0.1:1884",
        "neighbors": [{"id": 0, "ip": "tcp://127.0.0.1:1883"}],
        "redundancy": 2,
        "coreAnnInterval": 2_000_000_000,
        "beaconInterval": 2_000_000_000,
    }
    _, stored = served.ask("GET", "/api/v1/nodes/0")
    assert {name: stored[name] for name in ("id", "ip", "neighbors", "neighborsAmount")} == {
        "id": 0,
        "ip": "tcp://127.0.0.1:1883",
        "neighbors": [{"id": 1, "ip": "tcp://127.0.0.1:1884"}],
        "neighborsAmount": 1,
    }
    assert stored["latestHealthCheck"].endswith("Z")


def test_join_report_change_and_leave(served):
    for number in range(4):
        answer = join(served, number)
    assert [(n["id"], n["dial"]) for n in answer["neighbors"]] == [(0, True), (1, True)]
    report = {
        "latency_ms": 0.4,
        "neighbours": [{"node": hexes(0), "rtt_ms": 1.5}, {"node": hexes(1)}],
        "reachable_nodes": [hexes(n) for n in range(4)],
    }
    status, answer = served.ask("POST", "/api/v1/nodes/3/health", report)
    assert status == 200
    links = {(link["a"], link["b"]): link for link in served.ask("GET", "/api/v1/links")[1]}
    assert (links[0, 3]["established"], links[0, 3]["rtt_ms"], links[0, 3]["origin"]) == (
        True, 1.5, "planned",
    )  # fmt: skip
    assert served.ask("GET", "/api/v1/nodes/3")[1]["latency"] == 0.4
    assert served.ask("GET", "/api/v1/plan") == (200, [])
    overview = served.ask("GET", "/api/v1/health")[1]
    assert (overview["up"], overview["links"], overview["bridges"]) == (4, len(links), [])
    assert served.ask("PATCH", "/api/v1/settings", {"degree_max": 4})[1]["degree_max"] == 4
    assert served.ask("GET", "/api/v1/settings")[1]["degree_max"] == 4
    assert served.ask("POST", "/api/v1/nodes/0/drain", {"draining": True})[1]["draining"]
    assert served.ask("POST", "/api/v1/links", {"a": 2, "b": 3})[0] == 201
    assert served.ask("DELETE", "/api/v1/links/3/2") == (204, None)
    assert served.ask("POST", "/api/v1/nodes/1/leave") == (204, None)
    assert served.ask("GET", "/api/v1/nodes/2/topology")[0] == 200
    history = served.ask("GET", "/api/v1/history")[1]
    assert [row["number"] for row in history] == list(range(1, len(history) + 1))
    assert history[0]["reason"] == "0 (n0) joined"
    assert served.ask("GET", "/api/v1/history?after=1&limit=1")[1] == [history[1]]
    audit = served.ask("GET", "/api/v1/audit")[1]
    assert [(row["method"], row["path"], row["status"]) for row in audit][-1] == (
        "POST", "/api/v1/nodes/1/leave", 204,
    )  # fmt: skip
    assert {row["who"] for row in audit} == {"anybody"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("POST", "/join", {}, 422, "ip or link is required"),
        ("POST", "/join", {"ip": "here"}, 422, "ip: it must be tcp://host:port"),
        ("POST", "/join", {"ip": "tcp://a:65536"}, 422, "ip: it must be tcp://host:port"),
        ("POST", "/join", {"link": "http://a:1"}, 422, "link: it must be host:port"),
        ("POST", "/join", {"link": "a:1", "announcements": True}, 422, "announcements require ip"),
        ("POST", "/join", {"ip": "tcp://a:1", "colour": 1}, 422, "colour: Extra inputs"),
        ("POST", "/join", {"link": "a:1", "node": "xyz"}, 422, "node: it must be 16 of"),
        ("POST", "/join", {"ip": "tcp://a:1", "node": "0" * 16}, 422, "requires link"),
        ("POST", "/join", {"ip": "a:1", "name": "a\0b"}, 422, "name: it must be text without"),
        ("POST", "/join", [], 422, "the body must be a JSON object"),
        ("POST", "/join", None, 422, "the body must be a JSON object"),
        ("POST", "/nodes/7/health", {}, 404, "there is no node 7"),
        ("GET", "/nodes/7", None, 404, "there is no node 7"),
        ("GET", "/nodes/x", None, 404, "there is no node 'x'"),
        ("DELETE", "/links/0/1", None, 404, "there is no node 0"),
        ("PATCH", "/settings", {"degree_max": 1}, 422, "degree_max: Input should be greater"),
        ("GET", "/history?after=-1", None, 422, "after: Input should be greater"),
        ("GET", "/nowhere", None, 404, "there is no such path"),
        ("PUT", "/join", {}, 405, "this path has other methods"),
        ("DELETE", "/tokens/nobody", None, 404, "there is no token 'nobody'"),
    ],
)
def test_invalid_requests_get_a_reason(served, method, path, body, status, said):
    got, answer = served.ask(method, f"/api/v1{path}", body)
    assert (got, said in answer["error"]) == (status, True), answer


def test_invalid_json_and_large_bodies_get_a_reason(served):
    status, answer = served.ask("POST", "/api/v1/join", raw=b"{")
    assert (status, "JSON" in answer["error"]) == (422, True)
    status, answer = served.ask("POST", "/api/v1/join", raw=b" " * (BODY_BYTES_MAX + 1))
    assert (status, answer["error"]) == (413, f"a body may have {BODY_BYTES_MAX} bytes at most")


def test_tokens_are_limited_to_their_scopes(tmp_path):
    served = Served(f"sqlite:///{tmp_path / 'm.db'}", {"HANSA_MANAGER_TOKEN": "root"})
    try:
        for name in ("join", "read"):
            status, made = served.ask(
                "POST", "/api/v1/tokens", {"name": name, "scopes": [name]}, token="root"
            )
            assert status == 201
            if name == "join":
                joiner = made["token"]
            else:
                reader = made["token"]
        body = {"ip": "tcp://127.0.0.1:1883"}
        asked = [
            ("POST", "/api/v1/join", body, "", 401),
            ("POST", "/api/v1/join", body, "wrong", 401),
            ("POST", "/api/v1/join", body, reader, 403),
            ("POST", "/api/v1/join", body, joiner, 200),
            ("GET", "/api/v1/nodes", None, joiner, 403),
            ("GET", "/api/v1/nodes", None, reader, 200),
            ("POST", "/api/v1/links", {"a": 0, "b": 1}, reader, 403),
            ("GET", "/api/v1/audit", None, "root", 200),
            ("GET", "/api/v1/tokens", None, reader, 403),
        ]
        for method, path, sent, token, status in asked:
            assert served.ask(method, path, sent, token)[0] == status, (method, path, status)
        audit = served.ask("GET", "/api/v1/audit", token="root")[1]
        assert [(row["who"], row["status"]) for row in audit[2:]] == [
            ("-", 401), ("-", 401), ("read", 403), ("join", 200), ("read", 403),
        ]  # fmt: skip
        shown = served.ask("GET", "/api/v1/tokens", token="root")[1]
        assert [(row["name"], row["scopes"]) for row in shown] == [
            ("join", ["join"]), ("read", ["read"]),
        ]  # fmt: skip
        assert served.ask("DELETE", "/api/v1/tokens/read", token="root")[0] == 204
        assert served.ask("GET", "/api/v1/nodes", token=reader)[0] == 401
    finally:
        served.stop()


def test_token_is_required_beyond_loopback(tmp_path):
    database = f"sqlite:///{tmp_path / 'm.db'}"
    with pytest.raises(UsageError, match="no token is set"):
        Served(database, host="0.0.0.0")
    assert all(map(is_loopback, ("127.0.0.1", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.0.2.1", "example.org")))


def test_too_many_requests_are_refused(tmp_path):
    served = Served(f"sqlite:///{tmp_path / 'm.db'}", rate=1.0)
    try:
        answers = [served.ask("GET", "/api/v1/settings")[0] for _ in range(2)]
        assert answers == [200, 200]
        # One more request per second is accepted.
        assert any(served.ask("GET", "/api/v1/settings")[0] == 429 for _ in range(50))
    finally:
        served.stop()


def test_rate_limit_allows_a_burst_per_client():
    pace = RateLimiter(2.0)
    assert [pace.admit("a", 0.0) for _ in range(5)] == [True] * 4 + [False]
    assert pace.admit("b", 0.0)
    assert [pace.admit("a", 1.0) for _ in range(3)] == [True, True, False]
    for number in range(CLIENTS_MAX + 1):
        pace.admit(str(number), 2.0)
    assert pace.admit("a", 2.0)  # it was evicted, and has a full burst again


def test_event_stream_can_be_resumed(served):
    join(served, 0)
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    connection.request("GET", "/api/v1/events?after=0")
    answer = connection.getresponse()
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    seen: list[Any] = []

    def read() -> None:
        while len(seen) < 3:
            line = answer.readline().decode().strip()
            if line.startswith("data: "):
                seen.append(json.loads(line.removeprefix("data: ")))

    reading = threading.Thread(target=read)
    reading.start()
    join(served, 1)
    reading.join(20)
    connection.close()
    assert [(event["kind"], event["nodes"]) for event in seen] == [
        ("joined", [0]), ("joined", [1]), ("link added", [0, 1]),
    ]  # fmt: skip


def test_stop_closes_event_streams(served):
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    connection.request("GET", "/api/v1/events")
    answer = connection.getresponse()
    assert answer.readline() == b": changes\n"
    served.stop()
    assert answer.read() == b"\n"
    connection.close()


def test_last_token_of_an_exposed_manager_is_kept(store):
    exposed = AccessControl(store, is_exposed=True)
    for name in ("ops", "agents"):
        exposed.add_token(name, ("admin",), 0.0)
    exposed.remove_token("agents")
    with pytest.raises(RequestRefused, match="'ops' is the last token"):
        exposed.remove_token("ops")
    assert not exposed.is_open
    AccessControl(store).remove_token("ops")  # on loopback the last token may be removed


def test_requests_without_token_do_not_fill_the_audit_log(tmp_path):
    served = Served(f"sqlite:///{tmp_path / 'm.db'}", {"HANSA_MANAGER_TOKEN": "root"}, rate=1000)
    try:
        began = time.monotonic()
        for _ in range(20):
            assert served.ask("POST", "/api/v1/join", {})[0] == 401
        for _ in range(20):
            served.ask("POST", "/api/v1/nodes/9/leave", token="root")
        rows = served.ask("GET", "/api/v1/audit", token="root")[1]
        anonymous = sum(row["who"] == "-" for row in rows)
        assert 1 <= anonymous <= 2 + ANONYMOUS_PER_S * (time.monotonic() - began)
        assert len(rows) - anonymous == 20
    finally:
        served.stop()


def test_failed_background_task_ends_the_manager(tmp_path, monkeypatch):
    manager = ManagerService(ManagerOptions(port=0, database=f"sqlite:///{tmp_path / 'm.db'}"), {})

    def fail(now: float) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(manager.federation, "tick", fail)
    with pytest.raises(RuntimeError, match="a fault"):
        asyncio.run(manager.serve(manager.bind()))


def test_token_added_by_another_process_is_accepted(store):
    running = AccessControl(store, "root")
    made = AccessControl(store).add_token("agents", ("join",), 0.0)
    assert running.identify(made).name == "agents"
    with pytest.raises(RequestRefused, match="is unknown"):
        running.identify("other")


@pytest.mark.parametrize("ip", ["[0]:1", "tcp://[::::]:1", "a..b:1", f"{'a' * 70}:1"])
def test_invalid_broker_does_not_stop_the_other_clients(store, ip):
    assert JoinRequest.model_validate({"ip": ip}).ip == ip
    federation = FederationRegistry(store)
    federation.join(JoiningNode(ip=ip), 0.0)

    async def look() -> None:
        async with asyncio.timeout(0.3):
            await FederatorClients(federation, time.monotonic).run()

    with pytest.raises(TimeoutError):  # no further event
        asyncio.run(look())


def test_nodes_are_accepted_by_name_and_agent_id(served):
    for number in range(4):
        join(served, number)
    assert served.ask("GET", "/api/v1/nodes/n2")[1]["id"] == 2
    assert served.ask("GET", f"/api/v1/nodes/{hexes(3)}")[1]["id"] == 3
    links = {(k["a"], k["b"]) for k in served.ask("GET", "/api/v1/links")[1]}
    a, b = next((a, b) for a in range(4) for b in range(a + 1, 4) if (a, b) not in links)
    status, link = served.ask("POST", "/api/v1/links", {"a": f"n{a}", "b": hexes(b)})
    assert (status, link["a"], link["b"]) == (201, a, b)
    assert served.ask("DELETE", f"/api/v1/links/n{a}/n{b}") == (204, None)
    status, answer = served.ask("DELETE", f"/api/v1/links/n{a}/n{b}")
    assert (status, answer["error"]) == (404, f"there is no link between {a} (n{a}) and {b} (n{b})")
    status, node = served.ask("POST", "/api/v1/nodes/n1/drain", {"draining": True})
    assert (status, node["id"], node["draining"]) == (200, 1, True)
    assert served.ask("POST", "/api/v1/nodes/n1/leave") == (204, None)
    assert served.ask("GET", "/api/v1/nodes/n1")[1]["state"] == "left"


def test_unknown_and_ambiguous_names_list_the_candidates(served):
    for number, name in enumerate(("press", "mixer", "press")):
        body = {"link": f"127.0.0.1:{10500 + number}", "node": hexes(number), "name": name}
        assert served.ask("POST", "/api/v1/join", body)[0] == 200
    status, answer = served.ask("GET", "/api/v1/nodes/pres")
    listed = "there is no node 'pres'; there are 0 (press), 1 (mixer), 2 (press)"
    assert (status, answer["error"]) == (404, listed)
    status, answer = served.ask("POST", "/api/v1/links", {"a": "press", "b": "mixer"})
    assert (status, answer["error"]) == (409, "'press' is ambiguous: it names 0 (press), 2 (press)")
    assert served.ask("POST", "/api/v1/nodes/2/leave")[0] == 204
    assert served.ask("GET", "/api/v1/nodes/press")[1]["id"] == 0  # the other has left


def test_refusal_hides_names_from_join_tokens(tmp_path):
    running = Served(f"sqlite:///{tmp_path / 'm.db'}", {"HANSA_MANAGER_TOKEN": "admin"})
    try:
        body = {"link": "127.0.0.1:1", "node": hexes(1), "name": "press"}
        assert running.ask("POST", "/api/v1/join", body, token="admin")[0] == 200
        made = {"name": "agents", "scopes": ["join"]}
        token = running.ask("POST", "/api/v1/tokens", made, token="admin")[1]["token"]
        status, answer = running.ask("POST", "/api/v1/nodes/x/leave", token=token)
        assert (status, answer["error"]) == (404, "there is no node 'x'")
    finally:
        running.stop()


class Loaded(HTMLParser):
    """Collects the resources that a browser would load, and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        found = {name: value or "" for name, value in attrs}
        self.addresses += [found[name] for name in ("src", "href", "action") if name in found]
        self.ids.add(found.get("id", ""))


def test_docs_page_shows_every_request_and_loads_nothing_from_elsewhere(served):
    with urllib.request.urlopen(f"{served.url}/docs", timeout=20) as answer:
        text, headers = answer.read().decode(), answer.headers
    page = Loaded(text)
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "form"})
    assert not re.search(r"@import|url\(", text)
    inside = {address for address in page.addresses if address.startswith("#")}
    assert set(page.addresses) - inside == {"openapi.json"}
    assert {address.removeprefix("#") for address in inside} <= page.ids
    paths = served.ask("GET", "/openapi.json")[1]["paths"]
    requests = {f"{method}-{path}" for path, methods in paths.items() for method in methods}
    assert requests <= page.ids


def test_other_users_of_the_machine_are_no_admins(served, monkeypatch):
    monkeypatch.setattr("hansa.manager.access.find_owner", lambda client, server: 65_534)
    join(served, 0)
    assert served.ask("GET", "/api/v1/nodes")[0] == 200
    for method, path, body in (
        ("PATCH", "settings", {"redundancy": 3}),
        ("POST", "tokens", {"name": "mine", "scopes": ["admin"]}),
        ("POST", "nodes/0/drain", None),
    ):
        assert served.ask(method, f"/api/v1/{path}", body)[0] == 403
    monkeypatch.undo()
    assert served.ask("PATCH", "/api/v1/settings", {"redundancy": 3})[0] == 200
    assert served.manager.access.is_open


@pytest.mark.parametrize(("origin", "status"), [("", 200), (":1", 403)])
def test_page_of_another_server_of_this_machine_sends_no_commands(served, origin, status):
    request = urllib.request.Request(
        f"{served.url}/api/v1/settings",
        data=b'{"redundancy": 3}',
        headers={"Content-Type": "application/json"},
        method="PATCH",
    )
    request.add_header("Origin", f"http://127.0.0.1{origin or f':{served.port}'}")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            found = answer.status
    except urllib.error.HTTPError as error:
        found = error.code
    assert found == status
