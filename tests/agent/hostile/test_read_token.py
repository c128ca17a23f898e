"""A holder of the read token attacks the endpoints: no message of a client, and no command."""

import http.client
import json
from urllib.parse import quote

import pytest
from tests.agent.live import eventually
from tests.agent.process import Process, Scene

READ, ALL = "read-token", "all-token"
CANARY = "payload-canary"
TOPIC = "plant/b/1"
STREAMED_BYTES = 20_000


@pytest.fixture
def agent(scene: Scene) -> Process:
    broker = scene.broker()
    made = scene.agent(
        broker_port=broker.port,
        admin_read_token=READ,
        admin_token=ALL,
        record="#",
        telemetry_sample="all",
    )
    made.says("broker connected")
    client = scene.client(broker.port).subscribe("plant/#")
    client.publish(TOPIC, CANARY.encode())
    client.wait_for(CANARY.encode())
    return made


def ask(agent: Process, path: str, token: str = READ, method: str = "GET") -> tuple[int, str]:
    """Return status and body; of a stream only the beginning."""
    connection = http.client.HTTPConnection("127.0.0.1", agent.admin_port, timeout=20)
    try:
        connection.request(method, path, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        is_stream = (answer.getheader("Content-Type") or "").startswith("text/event-stream")
        body = answer.read1(STREAMED_BYTES) if is_stream else answer.read()
        return answer.status, body.decode()
    finally:
        connection.close()


def test_no_endpoint_shows_a_message_to_the_read_token(agent):
    status, listed = ask(agent, "/nonexistent")
    assert status == 404
    paths = [path for path in json.loads(listed)["endpoints"] if not path.startswith("POST ")]
    assert {"/status", "/stream", "/tail", "/history", "/trace", "/retained"} <= set(paths)
    node = json.loads(ask(agent, "/status")[1])["node"]
    queries = ("", f"?topic={quote(TOPIC)}", f"?node={node}", f"?node={node}&topic={quote(TOPIC)}")
    streams = (
        "?prefix=plant",
        "?documents=overview,federation,history,alarms,topics",
        "?filter=%23",
    )
    answers = {
        path + query: ask(agent, path + query) for path in paths for query in (*queries, *streams)
    }
    assert [path for path, (_, body) in answers.items() if CANARY in body] == []
    assert {status for path, (status, _) in answers.items() if path.startswith("/tail")} == {403}
    served = {path.partition("?")[0] for path, (status, _) in answers.items() if status == 200}
    assert {"/status", "/stream", "/history", "/trace"} <= served


@pytest.mark.parametrize("path", ["/logs", "/logs/telemetry", "/logs/audit", "/logs/journal"])
def test_recordings_are_closed_to_the_read_token(agent, path):
    assert ask(agent, path)[0] == 403


def test_no_command_is_performed_for_the_read_token(agent):
    commands = [
        *("/leave", f"/trace?topic={quote(TOPIC)}", "/links?add=127.0.0.1:1"),
        *("/quarantine/release?node=0", "/proposals/apply?id=1"),
    ]
    assert {path: ask(agent, path, method="POST")[0] for path in commands} == dict.fromkeys(
        commands, 403
    )
    assert ask(agent, "/status")[0] == 200
    refused = eventually(
        lambda: json.loads(ask(agent, "/status")[1])["counters"].get("security: admin_refused"),
        "refusals in the audit log",
    )
    assert refused >= len(commands)
