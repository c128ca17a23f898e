"""`hansa node`, `link`, `topic`, `trace`, `alarm` and `context`."""

import json
import socket
import stat

import pytest

from hansa.cli.main import main
from hansa.console.contexts import contexts_file
from hansa.testbed.mosquitto import free_port


@pytest.fixture(autouse=True)
def own_configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("HANSA_CONTEXT", raising=False)


def words(capsys) -> str:
    return " ".join(capsys.readouterr().out.split())


# ---------------------------------------------------------------- contexts


def test_contexts_are_added_used_listed_and_removed(capsys):
    assert main(["context", "add", "plant", "127.0.0.1:1", "https://b.example:8080/"]) == 0
    assert main(["context", "add", "office", "http://127.0.0.1:2"]) == 0
    assert main(["context", "use", "office"]) == 0
    assert main(["context", "ls"]) == 0
    out = words(capsys)
    assert "plant http://127.0.0.1:1 https://b.example:8080" in out
    assert "* office http://127.0.0.1:2" in out
    assert main(["context", "rm", "office"]) == 0
    capsys.readouterr()
    assert main(["context", "ls", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "current": "",
        "contexts": {
            "plant": {
                "urls": ["http://127.0.0.1:1", "https://b.example:8080"],
                "token_file": "",
                "ca_file": "",
            }
        },
    }


def test_there_may_be_no_contexts(capsys):
    assert main(["context", "ls"]) == 0
    assert capsys.readouterr().out == ("no contexts; add one with `hansa context add NAME URL`\n")


def test_context_of_a_local_federation_is_its_ready_file(tmp_path, capsys):
    ready = tmp_path / "up.json"
    nodes = [{"admin": "http://127.0.0.1:1"}, {"admin": "http://127.0.0.1:2"}]
    ready.write_text(json.dumps({"nodes": nodes}))
    assert main(["context", "add", "local", str(ready)]) == 0
    capsys.readouterr()
    assert main(["context", "ls", "--json"]) == 0
    saved = json.loads(capsys.readouterr().out)["contexts"]["local"]
    assert saved["urls"] == ["http://127.0.0.1:1", "http://127.0.0.1:2"]


def test_contexts_are_private(tmp_path):
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    assert main(["context", "add", "plant", "127.0.0.1:1", "--token-file", str(token)]) == 0
    assert stat.S_IMODE(contexts_file().stat().st_mode) == 0o600
    assert "secret" not in contexts_file().read_text()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["add", "plant"], "name an admin address: `hansa context add NAME https://host:8080`"),
        (["add", "a b", "h:1"], "'a b' is no name: use letters, digits, dots and hyphens"),
        (["add", "plant", "h"], "'h' is neither a ready file"),
        (["add", "plant", "h:1", "--ca", "none.pem"], "--ca none.pem: there is no such file"),
        (["use"], "name the context: `hansa context use NAME`"),
        (["rm"], "name the context: `hansa context rm NAME`"),
        ([], "missing: action (add, use, ls, rm); see `hansa context --help`"),
        (["use", "plant"], "there is no context 'plant'; there are: none yet. Add one with"),
        (["rm", "plant"], "there is no context 'plant'"),
    ],
)
def test_wrong_context_is_refused(arguments, error, capsys):
    assert main(["context", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"hansa: {error}")


def test_token_file_that_others_read_is_refused(tmp_path, capsys):
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o644)
    assert main(["context", "add", "plant", "h:1", "--token-file", str(token)]) == 2
    assert "other users can read it: chmod 600" in capsys.readouterr().err


def test_damaged_file_is_refused(capsys):
    contexts_file().parent.mkdir(parents=True)
    contexts_file().write_text("{")
    assert main(["context", "ls"]) == 2
    assert "contexts.json is damaged" in capsys.readouterr().err


def test_missing_token_file_is_refused(tmp_path, capsys):
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    main(["context", "add", "plant", "127.0.0.1:1", "--token-file", str(token)])
    token.unlink()
    assert main(["node", "ls"]) == 2
    assert f"cannot read the token file {token}" in capsys.readouterr().err


def test_file_without_an_authority_is_refused(tmp_path, capsys):
    empty = tmp_path / "ca.pem"
    empty.write_text("")
    main(["context", "add", "plant", "https://127.0.0.1:1", "--ca", str(empty)])
    assert main(["node", "ls"]) == 2
    assert f"cannot use the authority {empty}" in capsys.readouterr().err


# ---------------------------------------------------------------- choice of the agent


def test_agent_of_this_machine_is_the_default(monkeypatch, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr("hansa.cli.target.LOCAL_URL", url)
        assert main(["node", "ls"]) == 2
    assert capsys.readouterr().err == (
        f"hansa: {url}: no answer (Connection refused); is the agent running?; name another one"
        " with --agent URL, or save it with hansa context add\n"
    )


def test_slow_agent_is_reported(monkeypatch, capsys):
    monkeypatch.setattr("hansa.console.admin_client.SLOW_S", 0.0)
    monkeypatch.setattr("hansa.console.admin_client.ANSWER_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert main(["status", "--agent", url]) == 2
    assert capsys.readouterr().err == (
        f"hansa: {url} has not answered yet; waiting up to 0 s\n"
        f"hansa: {url}: no answer (timed out); is the agent running?\n"
    )


def test_contexts_replace_addresses(nodes, monkeypatch, capsys):
    main(["context", "add", "plant", nodes[0]["admin"]])
    main(["context", "add", "broken", "127.0.0.1:1"])
    capsys.readouterr()
    assert main(["node", "ls"]) == 0
    monkeypatch.setenv("HANSA_CONTEXT", "broken")
    assert main(["node", "ls"]) == 2
    assert main(["node", "ls", "--context", "plant"]) == 0


def test_settings_of_an_agent_say_where_it_is(nodes, tmp_path, capsys):
    port = nodes[0]["admin"].rpartition(":")[2]
    file = tmp_path / "agent.toml"
    file.write_text(f"[admin]\nport = {port}\n")
    assert main(["node", "show", "--config", str(file)]) == 0
    assert f"Node {nodes[0]['name']}" in words(capsys)


# ---------------------------------------------------------------- live


def test_nodes_are_listed_with_names(nodes, ready_file, capsys):
    assert main(["node", "ls", "--agent", str(ready_file)]) == 0
    out = words(capsys)
    for node in nodes:
        assert f"{node['name']} up " in out
    assert main(["node", "ls", "--agent", str(ready_file), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["nodes"]
    assert [node["name"] for node in listed] == [node["name"] for node in nodes]


def test_any_node_is_shown(nodes, capsys):
    assert main(["node", "show", nodes[1]["name"], "--agent", nodes[0]["admin"]]) == 0
    assert f"broker {nodes[1]['broker']} connected" in words(capsys)
    assert main(["node", "show", "--json", "--agent", nodes[0]["admin"]]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == nodes[0]["name"]


def test_unknown_node_is_refused(nodes, capsys):
    assert main(["node", "show", "nobody", "--agent", nodes[0]["admin"]]) == 2
    names = ", ".join(node["name"] for node in nodes)
    assert capsys.readouterr().err == (
        f"hansa: {nodes[0]['admin']}: there is no node 'nobody'; there are {names}\n"
    )


def test_links_are_listed(nodes, capsys):
    assert main(["link", "ls", "--agent", nodes[0]["admin"]]) == 0
    out = words(capsys)
    a, b = (node["name"] for node in nodes)
    assert f"{a} {b} up" in out or f"{b} {a} up" in out
    assert main(["link", "ls", "--agent", nodes[0]["admin"], "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["links"]) == 1


def test_topics_are_listed(nodes, capsys):
    assert main(["topic", "ls", "--agent", nodes[0]["admin"]]) == 0
    assert capsys.readouterr().out.startswith("no client subscribes")
    assert main(["topic", "ls", "--agent", nodes[0]["admin"], "--json"]) == 0
    assert "" in json.loads(capsys.readouterr().out)["groups"]


@pytest.mark.parametrize("command", [["trace"], ["topic", "trace"]])
def test_topic_without_interest_is_traced(nodes, command, capsys):
    assert main([*command, "nobody/asks", "--agent", nodes[0]["admin"]]) == 0
    assert "no other node has a subscriber for it" in capsys.readouterr().out
    given = [*command, "nobody/asks", "--from", nodes[1]["name"], "--agent", nodes[0]["admin"]]
    assert main([*given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["origin_name"] == nodes[1]["name"]


def test_real_trace_of_a_topic_without_interest_ends_at_its_broker(nodes, capsys):
    assert main(["trace", "nobody/asks", "--real", "--agent", nodes[0]["admin"]]) == 1
    out = capsys.readouterr().out
    assert "(real message)" in out
    assert "did not get it from its broker" in " ".join(out.split())


def test_no_alarms(nodes, capsys):
    assert main(["alarm", "ls", "--agent", nodes[0]["admin"]]) == 0
    assert capsys.readouterr().out == "no alarms at 2 nodes\n"
    assert main(["alarm", "ls", "--agent", nodes[0]["admin"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"alarms": []}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["trace", "a/#"], "topic name 'a/#': '+' and '#' are for filters only"),
        (["trace", "a", "--from", "x"], "there is no node 'x'"),
        (["topic", "ls", "a"], "`hansa topic trace TOPIC` shows the path of a topic"),
        (["topic", "trace"], "name a topic: `hansa topic trace plant/temp`"),
        (
            ["link", "ls", "x"],
            "hansa link ls lists all links; --agent URL says which agent to ask",
        ),
        (["node", "ls", "x"], "hansa node ls lists all nodes; `hansa node show NODE` shows one"),
        (["node", "leave"], "name the node that shall leave: `hansa node leave NAME`"),
        (["link", "add"], "name the agent: `hansa link add HOST:PORT`"),
        (["alarm", "clear"], "argument action: there is no 'clear'; there are ls"),
    ],
)
def test_wrong_use_says_what_to_change(nodes, arguments, error, capsys):
    assert main([*arguments, "--agent", nodes[0]["admin"]]) == 2
    assert error in capsys.readouterr().err


def test_doctor_of_a_running_federation(nodes, capsys):
    assert main(["doctor", "federation", "--agent", nodes[0]["admin"], "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [each for each in findings if each["importance"] == "error"] == []
    assert main(["doctor", "federation", "--agent", nodes[0]["admin"]]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    "command",
    [
        "alarm ls FILE",
        "doctor federation --json FILE",
        "link ls FILE",
        "node ls --ids FILE",
        "node show north FILE",
        "quarantine ls FILE",
        "status FILE",
        "topic ls FILE",
        "topic trace plant/temp FILE",
        "trace plant/temp --from north FILE",
    ],
)
def test_every_command_takes_a_ready_file(tmp_path, capsys, command):
    ready = tmp_path / "up.json"
    url = f"http://127.0.0.1:{free_port()}"
    ready.write_text(json.dumps({"nodes": [{"admin": url}]}))
    assert main(command.replace("FILE", str(ready)).split()) == 2
    assert capsys.readouterr().err.startswith(f"hansa: {url}: no answer (Connection refused)")
