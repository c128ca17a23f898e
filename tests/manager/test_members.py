"""Agents at the manager's port for nodes, with certificates of the federation."""

import asyncio
import base64
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from tests.agent.live import eventually
from tests.identity.certified import certify, make_authority, now
from tests.manager.serving import Served

from hansa.agent.topology.http import HttpClient, ManagerRefused, ManagerUnavailable
from hansa.agent.topology.manager_client import ManagerAddress, ManagerCallbacks, ManagerClient
from hansa.errors import UsageError
from hansa.identity import certificates
from hansa.identity.authority import REVOKED_FILE, Bundle, CertificateAuthority
from hansa.identity.certificates import Claims
from hansa.identity.credentials import Credentials, install, load_credentials
from hansa.identity.keys import KEY_FILE, create_key, load_key
from hansa.identity.tls import LinkContexts, make_contexts
from hansa.manager import access
from hansa.manager.service import ManagerOptions, ManagerService
from hansa.manager.streams import STREAMS_PER_NODE_MAX
from hansa.manager.types import JoiningNode

MANAGER = Claims("manager", ("manager",))
DAY = timedelta(days=1)


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return make_authority(tmp_path / "ca", "plant")


@pytest.fixture
def served(authority: CertificateAuthority, tmp_path: Path) -> Iterator[Served]:
    certify(authority, tmp_path / "manager", MANAGER)
    made = Served(
        f"sqlite:///{tmp_path}/m.db",
        {"HANSA_MANAGER_TOKEN": "secret"},
        state=tmp_path / "manager", node_host="127.0.0.1", node_port=0,
    )  # fmt: skip
    yield made
    made.stop()


def contexts_of(credentials: Credentials) -> Callable[[], LinkContexts]:
    made = make_contexts(credentials)
    return lambda: made


def ask(served: Served, node: Credentials, method: str, path: str, body: Any = None) -> Any:
    """Send a request as a node; return the answer, or raise what the agent's client raises."""
    http = HttpClient(f"hansa://127.0.0.1:{served.node_port}", contexts=contexts_of(node))
    return asyncio.run(http.request_json(method, f"/api/v1{path}", body))


def joining(node: Credentials, **fields: Any) -> dict[str, Any]:
    number = f"{node.certificate.node:016x}"
    return {"node": number, "link": "127.0.0.1:1", "name": "a", **fields}


def report() -> dict[str, Any]:
    return {"latency_ms": 1.0, "neighbours": [], "reachable_nodes": []}


def refused(served: Served, node: Credentials, *request: Any) -> str:
    with pytest.raises((ManagerRefused, ManagerUnavailable)) as found:
        ask(served, node, *request)
    return str(found.value)


def test_agent_joins_and_reports_by_its_certificate(served, authority, tmp_path):
    node = certify(authority, tmp_path / "a")
    answer = ask(served, node, "POST", "/join", joining(node))
    number = answer["id"]
    assert ask(served, node, "POST", f"/nodes/{number}/health", report())["id"] == number
    assert ask(served, node, "GET", f"/nodes/{number}/topology")["id"] == number
    assert ask(served, node, "GET", "/settings")["redundancy"] == 2
    (row,) = served.manager.federation.nodes()
    assert (row.node, row.secret) == (f"{node.certificate.node:016x}", "")
    assert served.manager.store.audit(0, 10)[0].who == row.node


def test_node_speaks_only_for_itself(served, authority, tmp_path):
    """Whatever it says: also for a node that has not joined yet, and by number."""
    a, b = certify(authority, tmp_path / "a"), certify(authority, tmp_path / "b")
    only = f"your certificate is that of node {b.certificate.node:016x} only (403)"
    assert refused(served, b, "POST", "/join", joining(a)) == only
    number = ask(served, a, "POST", "/join", joining(a))["id"]
    for request in (
        ("POST", "/join", joining(a)),
        ("POST", f"/nodes/{number}/health", report()),
        ("GET", f"/nodes/{number}/topology"),
        ("POST", f"/nodes/{number}/leave"),
        ("POST", "/join", {"ip": "tcp://127.0.0.1:1883"}),
    ):
        assert refused(served, b, *request) == only
    assert [row.node for row in served.manager.federation.nodes()] == [f"{a.certificate.node:016x}"]


def test_node_reads_and_changes_nothing_else(served, authority, tmp_path):
    node = certify(authority, tmp_path / "a")
    for method, path, scope in (
        ("GET", "/nodes", "read"),
        ("POST", "/links", "operate"),
        ("GET", "/tokens", "admin"),
    ):
        said = f"a node needs a token of scope {scope} for this (403)"
        assert refused(served, node, method, path, {} if method == "POST" else None) == said


def test_node_with_a_text_in_place_of_a_token_reads_nothing(authority, tmp_path, monkeypatch):
    """A manager without tokens lets this machine read; its port for nodes is open to others."""
    monkeypatch.setattr(access, "find_owner", lambda client, server: None)
    certify(authority, tmp_path / "manager", MANAGER)
    served = Served(
        f"sqlite:///{tmp_path}/m.db",
        state=tmp_path / "manager", node_host="127.0.0.1", node_port=0,
    )  # fmt: skip
    try:
        node = certify(authority, tmp_path / "a")
        url = f"hansa://127.0.0.1:{served.node_port}"
        http = ManagerAddress(url, "any", contexts=contexts_of(node)).client()
        with pytest.raises(ManagerRefused, match="a node needs a token of scope read"):
            asyncio.run(http.request_json("GET", "/api/v1/nodes"))
        with pytest.raises(ManagerRefused, match="your certificate is that of node"):
            body = {"ip": "tcp://127.0.0.1:1883"}
            asyncio.run(http.request_json("POST", "/api/v1/join", body))
        asyncio.run(http.request_json("POST", "/api/v1/join", joining(node)))
    finally:
        served.stop()


def test_node_follows_only_what_concerns_it(served, authority, tmp_path):
    a, b = certify(authority, tmp_path / "a"), certify(authority, tmp_path / "b")
    assert refused(served, b, "GET", "/events") == "this node has not joined (404)"
    ask(served, a, "POST", "/join", joining(a, name="one"))
    ask(served, b, "POST", "/join", joining(b, name="other"))
    served.manager.federation.change_settings({"redundancy": 3}, 0.0)
    assert events(served, a)[0] == ("joined", [0])
    assert [kind for kind, nodes in events(served, b) if 1 not in nodes] == ["settings"]


def events(served: Served, node: Credentials) -> list[tuple[str, list[int]]]:
    """Return the kinds and nodes of all changes that a node may follow."""
    found: list[tuple[str, list[int]]] = []

    async def follow() -> None:
        url = f"hansa://127.0.0.1:{served.node_port}"
        http = HttpClient(url, contexts=contexts_of(node))
        async with aclosing(http.stream_lines("/api/v1/events?after=0", 20.0)) as lines:
            async for line in lines:
                if line.startswith("data: "):
                    event = json.loads(line[6:])
                    found.append((event["kind"], event["nodes"]))
                if found and found[-1][0] == "settings":
                    return

    asyncio.run(asyncio.wait_for(follow(), 20))
    return found


def test_node_has_few_streams(served, authority, tmp_path):
    a, b = certify(authority, tmp_path / "a"), certify(authority, tmp_path / "b")
    for each in (a, b):
        ask(served, each, "POST", "/join", joining(each))
    url = f"hansa://127.0.0.1:{served.node_port}"

    async def open_one(stack: AsyncExitStack, node: Credentials) -> None:
        http = HttpClient(url, contexts=contexts_of(node))
        lines = http.stream_lines("/api/v1/events", 20.0)
        await stack.enter_async_context(aclosing(lines))
        await anext(lines)

    async def scene() -> None:
        async with AsyncExitStack() as stack:
            for _ in range(STREAMS_PER_NODE_MAX):
                await open_one(stack, a)
            with pytest.raises(ManagerRefused, match="8 streams of this node are open"):
                await open_one(stack, a)
            await open_one(stack, b)

    asyncio.run(asyncio.wait_for(scene(), 20))


def test_agent_without_certificate_is_refused_at_the_other_port(served, authority, tmp_path):
    """Also with a token that may join; a federator of the paper has no certificate."""
    node = certify(authority, tmp_path / "a")
    said = "this manager takes agents by certificate only: set [topology] manager ="
    status, answer = served.ask("POST", "/api/v1/join", joining(node), "secret")
    assert (status, answer["error"].startswith(said)) == (403, True)
    number = ask(served, node, "POST", "/join", joining(node))["id"]
    token = served.manager.access.add_token("agents", ("join",), 0.0)
    for path, body in (
        ("/join", joining(node)),
        (f"/nodes/{number}/health", report()),
        (f"/nodes/{number}/leave", {}),
    ):
        status, answer = served.ask("POST", f"/api/v1{path}", body, token)
        assert (status, answer["error"].startswith(said)) == (403, True), path
    joined = served.ask("POST", "/api/v1/join", {"ip": "tcp://127.0.0.1:1883"}, token)
    assert joined[0] == 200


def test_certificate_replaces_the_secret_of_an_earlier_join(served, authority, tmp_path):
    """An agent that joined with a token, before the manager had a certificate."""
    node = certify(authority, tmp_path / "a")
    before = served.manager.federation.join(
        JoiningNode(node=f"{node.certificate.node:016x}", link="127.0.0.1:1", secret="x"), 1.0
    )
    assert ask(served, node, "POST", "/join", joining(node))["id"] == before.node.id


@pytest.mark.parametrize("is_expired", [False, True])
def test_stranger_is_refused_with_the_reason_in_the_log(
    served, authority, tmp_path, caplog, is_expired
):
    """It accepts every manager, and sees no certificate: it must show its own first."""
    stranger = (
        certify(authority, tmp_path / "x", valid=DAY, at=now() - 10 * DAY)
        if is_expired
        else certify(make_authority(tmp_path / "other", "plant"), tmp_path / "x")
    )
    contexts = make_contexts(stranger)
    contexts.dialling.verify_mode = ssl.CERT_NONE
    http = HttpClient(f"hansa://127.0.0.1:{served.node_port}", contexts=lambda: contexts)
    with pytest.raises(ManagerUnavailable, match="closed during the handshake: the manager ref"):
        asyncio.run(http.request_json("GET", "/api/v1/settings"))
    reason = "has expired" if is_expired else "is not signed by this federation's authority"
    text = f"node refused remote=127.0.0.1 reason=the peer's certificate {reason}"
    eventually(lambda: text in caplog.text, "the log says why")


def test_manager_of_another_authority_is_refused(served, tmp_path):
    node = certify(make_authority(tmp_path / "other", "plant"), tmp_path / "x")
    assert refused(served, node, "GET", "/settings")


def test_node_of_another_federation_with_the_same_root_is_refused(served, authority, tmp_path):
    key = load_key(authority.directory / KEY_FILE)
    assert key
    office = certificates.cross_sign(
        certificates.issue_root(key, "office", now()), authority.roots[0], key, now()
    )
    (tmp_path / "x").mkdir()
    own = create_key(tmp_path / "x" / KEY_FILE)
    made = certificates.issue_node(office, key, own.public_key(), Claims(), now())
    roots = authority.roots[0].public_bytes(Encoding.PEM)
    node = install(tmp_path / "x", Bundle(made.pem, roots), now())
    said = refused(served, node, "GET", "/settings")
    assert said == "the manager's certificate is refused: the certificate is for federation" + (
        " 'plant', not 'office'"
    )


def test_revoked_node_is_refused_with_the_reason(served, authority, tmp_path):
    """The list comes from another node, which got it over a link."""
    a, b = certify(authority, tmp_path / "a"), certify(authority, tmp_path / "b")
    ask(served, a, "POST", "/join", joining(a))
    authority.revoke("a", now())
    data = base64.b64encode(authority.revoked.data).decode()
    assert ask(served, b, "POST", "/revocations", {"revocation_list": data}) is None
    said = refused(served, a, "GET", "/settings")
    assert said == "the certificate is revoked (403)"
    assert ask(served, b, "GET", "/settings")["redundancy"] == 2
    assert (tmp_path / "manager" / REVOKED_FILE).read_bytes() == authority.revoked_pem


def test_list_that_is_not_signed_is_refused(served, authority, tmp_path):
    node = certify(authority, tmp_path / "a")
    other = make_authority(tmp_path / "other", "plant")
    certify(other, tmp_path / "b")
    other.revoke("b", now())
    for data in (other.revoked.data, b"nonsense"):
        body = {"revocation_list": base64.b64encode(data).decode()}
        said = refused(served, node, "POST", "/revocations", body)
        assert said == "the revocation list is not valid here (422)"
    status, _ = served.ask("POST", "/api/v1/revocations", {"revocation_list": ""}, "secret")
    assert status == 403


def test_stream_of_a_node_that_is_revoked_is_closed(served, authority, tmp_path):
    node = certify(authority, tmp_path / "a")
    ask(served, node, "POST", "/join", joining(node))
    http = HttpClient(f"hansa://127.0.0.1:{served.node_port}", contexts=contexts_of(node))
    said: list[str] = []

    async def follow() -> None:
        async for line in http.stream_lines("/api/v1/events", 20.0):
            said.append(line)
            if len(said) == 1:
                authority.revoke("a", now())
                (tmp_path / "manager" / REVOKED_FILE).write_bytes(authority.revoked_pem)

    with pytest.raises(ManagerUnavailable):
        asyncio.run(asyncio.wait_for(follow(), 20))
    assert said


def test_certificate_of_an_intermediate_is_accepted_until_that_is_revoked(
    served, authority, tmp_path
):
    authority.issue_intermediate(tmp_path / "site", Claims("site"), now())
    node = certify(CertificateAuthority(tmp_path / "site"), tmp_path / "a")
    assert ask(served, node, "GET", "/settings")["redundancy"] == 2
    authority.revoke_intermediate("site", now())
    (tmp_path / "manager" / REVOKED_FILE).write_bytes(authority.revoked_pem)
    text = "the authority that issued the certificate is revoked (403)"
    eventually(lambda: _answer(served, node) == text, "the list is in force")


def _answer(served: Served, node: Credentials) -> str:
    try:
        return str(ask(served, node, "GET", "/settings"))
    except (ManagerRefused, ManagerUnavailable) as error:  # or the connection is closed meanwhile
        return str(error)


def test_agent_refuses_a_member_that_poses_as_the_manager(authority, tmp_path):
    """A node with a genuine certificate, at the address of the manager."""
    a, b = certify(authority, tmp_path / "a"), certify(authority, tmp_path / "b")

    async def scene() -> None:
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        listening = socket.create_server(("127.0.0.1", port))
        listening.setblocking(False)
        loop = asyncio.get_running_loop()

        async def pose() -> None:
            raw, _ = await loop.sock_accept(listening)
            await loop.create_connection(
                asyncio.Protocol, sock=raw, ssl=make_contexts(b).accepting, server_hostname=""
            )

        posing = asyncio.create_task(pose())
        http = HttpClient(f"hansa://127.0.0.1:{port}", {"X": "y"}, contexts_of(a))
        with pytest.raises(ManagerUnavailable, match="that of a node, without the role manager"):
            await http.request_json("GET", "/")
        await posing
        listening.close()

    asyncio.run(scene())


def test_agent_without_certificate_says_what_to_do():
    http = HttpClient("hansa://127.0.0.1:1")
    with pytest.raises(ManagerUnavailable, match="this node has no certificate, which hansa://"):
        asyncio.run(http.request_json("GET", "/"))


def test_agent_sends_revocation_lists_once(served, authority, tmp_path):
    certify(authority, tmp_path / "b")
    authority.revoke("b", now())
    certify(authority, tmp_path / "a")
    node = load_credentials(tmp_path / "a", tmp_path / "a" / "key.pem", now())

    async def scene() -> None:
        async def make_report() -> dict[str, Any]:
            return report()

        answered = asyncio.Event()
        callbacks = ManagerCallbacks(
            lambda: joining(node), make_report, lambda _: answered.set(), follows_events=False
        )
        url = f"hansa://127.0.0.1:{served.node_port}"
        client = ManagerClient(ManagerAddress(url, contexts=contexts_of(node)), callbacks)
        running = asyncio.create_task(client.run())
        path = tmp_path / "manager" / REVOKED_FILE
        async with asyncio.timeout(20):
            while not path.exists():
                client.request_report()
                await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scene())
    assert (tmp_path / "manager" / REVOKED_FILE).read_bytes() == authority.revoked_pem
    rows = [row for row in served.manager.store.audit(0, 100) if row.path.endswith("revocations")]
    assert len(rows) == 1


def test_operator_with_a_token_uses_the_same_port(served, authority, tmp_path):
    node = certify(authority, tmp_path / "a")
    number = ask(served, node, "POST", "/join", joining(node))["id"]
    token = served.manager.access.add_token("page", ("operate",), 0.0)
    url = f"hansa://127.0.0.1:{served.node_port}"
    http = ManagerAddress(url, token, contexts=contexts_of(node)).client()
    assert len(asyncio.run(http.request_json("GET", "/api/v1/nodes"))) == 1
    drained = asyncio.run(
        http.request_json("POST", f"/api/v1/nodes/{number}/drain", {"draining": True})
    )
    assert drained["id"] == number
    with pytest.raises(ManagerRefused, match="lacks the scope admin"):
        asyncio.run(http.request_json("GET", "/api/v1/tokens"))
    asyncio.run(http.request_json("POST", f"/api/v1/nodes/{number}/leave", {}))


def test_agent_of_the_managers_user_operates_while_there_is_no_token(authority, tmp_path):
    """As every process of that user does; it still joins as itself only."""
    certify(authority, tmp_path / "manager", MANAGER)
    served = Served(
        f"sqlite:///{tmp_path}/m.db",
        state=tmp_path / "manager", node_host="127.0.0.1", node_port=0,
    )  # fmt: skip
    try:
        a, b = certify(authority, tmp_path / "a"), certify(authority, tmp_path / "b")
        ask(served, a, "POST", "/join", joining(a))
        assert len(ask(served, b, "GET", "/nodes")) == 1
        assert "your certificate is that of" in refused(served, b, "POST", "/join", joining(a))
    finally:
        served.stop()


@pytest.mark.parametrize(
    ("claims", "problem"),
    [(Claims("a"), "its certificate is that of a node"), (None, "has no certificate: make one")],
)
def test_manager_needs_a_certificate_of_its_own(authority, tmp_path, claims, problem):
    if claims:
        certify(authority, tmp_path / "state", claims)
    options = ManagerOptions(database=f"sqlite:///{tmp_path}/m.db", state=tmp_path / "state")
    with pytest.raises(UsageError, match=problem):
        ManagerService(options, {})


def test_node_port_that_is_in_use_is_named(authority, tmp_path):
    certify(authority, tmp_path / "manager", MANAGER)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = ManagerOptions(
            port=0, database=f"sqlite:///{tmp_path}/m.db", state=tmp_path / "manager",
            node_host="127.0.0.1", node_port=taken.getsockname()[1],
        )  # fmt: skip
        with pytest.raises(UsageError, match="choose another port with --node-port"):
            ManagerService(options, {}).bind_for_nodes()
