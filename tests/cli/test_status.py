"""`hansa status`: errors in one line, and the status of a live federation."""

import json
import socket
import subprocess

import pytest
from tests.agent.live import eventually

from hansa.cli.main import main


@pytest.mark.parametrize("target", ["up.json", "ftp://h:1", "h:x", "h:99999", ""])
def test_target_must_be_a_file_or_an_address(target, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["status", target]) == 2
    assert capsys.readouterr() == (
        "",
        f"hansa: {target!r} is neither a ready file of `hansa up` nor the admin address of an"
        " agent, such as http://127.0.0.1:8080\n",
    )


@pytest.mark.parametrize("target", ["http://h", "https://h", "http://h/"])
def test_address_without_a_port_is_refused_with_the_usual_one(target, capsys):
    assert main(["status", target]) == 2
    usual = f"{target.removesuffix('/')}:8080"
    assert capsys.readouterr() == ("", f"hansa: {target!r} names no port: write {usual}\n")


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", '{"nodes": 1}', '{"nodes": [{}]}'])
def test_invalid_ready_file_is_refused(text, tmp_path, capsys):
    path = tmp_path / "up.json"
    path.write_text(text)
    assert main(["status", str(path)]) == 2
    assert capsys.readouterr() == ("", f"hansa: {path} is not a ready file of `hansa up`\n")


def test_unreachable_agent_is_one_line(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert main(["status", url]) == 2
    assert capsys.readouterr() == (
        "",
        f"hansa: {url}: no answer (Connection refused); is the agent running?\n",
    )


# ---------------------------------------------------------------- live


def test_ready_file_shows_the_federation(ready_file, nodes, capsys):
    assert main(["status", str(ready_file)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Nodes" in out
    assert "Links" in out
    for node in nodes:
        assert f"{node['name']} up " in out


def test_one_agent_reports_all_nodes(nodes, capsys):
    assert main(["status", nodes[1]["admin"], "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    brokers = {node["name"]: node["summary"]["broker"]["address"] for node in shown["nodes"]}
    assert brokers == {node["name"]: node["broker"] for node in nodes}
    assert len(shown["links"]) == 1


def test_ids_are_shown_on_request(nodes, capsys):
    main(["status", nodes[0]["admin"], "--json"])
    found = json.loads(capsys.readouterr().out)["asked"]
    assert main(["status", nodes[0]["admin"], "--ids"]) == 0
    assert found in capsys.readouterr().out
    assert main(["status", nodes[0]["admin"]]) == 0
    assert found not in capsys.readouterr().out


def test_other_page_of_an_agent_is_refused(nodes, capsys):
    url = f"{nodes[0]['admin']}/healthz"
    assert main(["status", url]) == 2
    assert capsys.readouterr().err == (
        f"hansa: {url}: this agent has no endpoint /federation: it runs an older version, or in the"
        " mode mqtt-fed, which only has /status\n"
    )


def test_broker_port_is_refused(nodes, capsys):
    assert main(["status", nodes[0]["broker"]]) == 2
    assert capsys.readouterr().err.startswith(f"hansa: http://{nodes[0]['broker']}: ")


def test_next_agent_is_asked_if_the_first_does_not_answer(nodes, tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{taken.getsockname()[1]}"
        path = tmp_path / "up.json"
        path.write_text(json.dumps({"nodes": [{"admin": gone}, nodes[0]]}))
        assert main(["status", str(path)]) == 0
    assert "Nodes" in capsys.readouterr().out


def test_filters_of_other_nodes_are_shown(nodes, capsys):
    port = nodes[0]["broker"].rpartition(":")[2]
    try:
        client = subprocess.Popen(["mosquitto_sub", "-p", port, "-t", "status/test/#"])
    except FileNotFoundError:
        pytest.skip("no mosquitto_sub on this machine: apt-get install mosquitto-clients")

    def is_shown() -> bool:
        main(["status", nodes[1]["admin"]])
        return "status/test/#" in capsys.readouterr().out

    try:
        eventually(is_shown, "what the client wants")
    finally:
        client.terminate()
        client.wait()
