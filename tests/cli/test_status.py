"""`hansa status`: errors in one line, and the status of a live federation."""

import json
import socket
import subprocess

import pytest
from tests.agent.live import eventually

from hansa.cli.main import main


@pytest.mark.parametrize("target", ["up.json", "ftp://h:1", "http://h", "h:x", "h:99999", ""])
def test_target_must_be_a_file_or_an_address(target, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["status", target]) == 2
    assert capsys.readouterr() == (
        "",
        f"hansa: {target!r} is neither a ready file of `hansa up` nor the admin address of an"
        " agent, such as http://127.0.0.1:8080\n",
    )


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


def test_ready_file_shows_the_federation(ready_file, capsys):
    assert main(["status", str(ready_file)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Federation" in out
    assert "(federation)" in out
    assert "also members" not in out


def test_json_of_one_agent_is_its_status(nodes, capsys):
    assert main(["status", nodes[0]["admin"], "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["name"], told["broker"]["address"]) == (nodes[0]["name"], nodes[0]["broker"])


def test_json_of_a_federation_has_all_nodes(ready_file, nodes, capsys):
    assert main(["status", str(ready_file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [node["name"] for node in told["nodes"]] == [node["name"] for node in nodes]


def test_other_http_server_is_one_line(nodes, capsys):
    """Another endpoint of an agent stands for any web server."""
    url = f"{nodes[0]['admin']}/healthz"
    assert main(["status", url]) == 2
    problem = "this is not the status of an agent (HTTP 404)"
    assert capsys.readouterr() == ("", f"hansa: {url}: {problem}\n")


def test_broker_port_is_refused(nodes, capsys):
    assert main(["status", nodes[0]["broker"]]) == 2
    assert capsys.readouterr().err.startswith(f"hansa: http://{nodes[0]['broker']}: ")


def test_unreachable_node_is_shown_with_exit_code_1(nodes, tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{taken.getsockname()[1]}"
        path = tmp_path / "up.json"
        path.write_text(json.dumps({"nodes": [nodes[0], {"admin": gone}]}))
        assert main(["status", str(path)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert f"{gone}: no answer (Connection refused); is the agent running?" in out


def test_local_filters_are_shown(nodes, capsys):
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
