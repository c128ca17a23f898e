"""`hansa status`: pages become tables, mistakes become one line."""

import json
import socket
import subprocess

import msgspec
import pytest
from tests.agent.live import eventually

from hansa.cli import status_client, status_tables
from hansa.cli.main import main
from hansa.cli.status_client import StatusResponse
from hansa.terminal import console

ALPHA, BETA, GAMMA = (f"{digits:0<16}" for digits in ("aa", "bb", "cc"))


def page(name="alpha", node=ALPHA, **changes):
    """What an agent of two says."""
    told = {
        "name": name,
        "node": node,
        "incarnation": 7,
        "broker": {"address": "127.0.0.1:1", "connected": True, "observed": True},
        "neighbours": {BETA if node == ALPHA else ALPHA: {"rtt_ms": 0.5, "bytes_in": 1234}},
        "members": [ALPHA, BETA],
        "cores": {ALPHA: {"distance": 0 if node == ALPHA else 1}},
        "groups": {
            "plant/#": {
                "core": ALPHA,
                "member": True,
                "interested_nodes": [ALPHA, BETA],
                "parents": [] if node == ALPHA else [ALPHA],
                "children": [BETA] if node == ALPHA else [],
            }
        },
        "interest": {"local": ["plant/#"], "installed": True},
        "counters": {"captured": 3, "dropped: broker away": 1},
        **changes,
    }
    status = msgspec.convert(told, status_client.AgentStatus, strict=False)
    return StatusResponse(f"http://{name}", json.dumps(told), status)


def drawn(*pages, rates=None):
    """The tables as text, blanks in a row as one."""
    out = console()
    with out.capture() as text:
        out.print(status_tables.render_tables(pages, rates))
    return [" ".join(line.split()) for line in text.get().splitlines()]


def test_all_that_an_operator_asks_is_there():
    lines = drawn(page(), page("beta", BETA))
    for line in (
        "alpha aa0000 127.0.0.1:1 2 in force everywhere",
        "alpha beta 0.50 1,234 0",
        "plant/# alpha alpha beta alpha 0 beta",
        "plant/# alpha alpha beta beta 1 alpha",
        "alpha 1 plant/# yes",
        "dropped: broker away 2 alpha",
    ):
        assert line in lines


def test_a_member_whose_page_was_not_read_has_its_id():
    lines = drawn(page())
    assert "also members: bb0000" in lines
    assert "alpha bb0000 0.50 1,234 0" in lines


def test_a_member_whose_page_was_not_read_is_called_by_its_name_if_that_is_told():
    lines = drawn(page(names={ALPHA: "alpha", BETA: "beta"}))
    assert "also members: beta" in lines
    assert "alpha beta 0.50 1,234 0" in lines


def test_trouble_is_shown():
    away = {"address": "b:1", "connected": False, "problem": "Connection refused"}
    blind = {"address": "b:1", "connected": True, "observed": False, "unobserved": "no log"}
    lines = drawn(
        page(broker=away), page("beta", BETA, broker=blind), StatusResponse("http://c", problem="x")
    )
    assert "alpha aa0000 b:1 2 in force everywhere broker: Connection refused" in lines
    assert "beta bb0000 b:1 2 in force everywhere observer incomplete: no log" in lines
    assert "? http://c: x" in lines
    parted = page(refused=["of a meets of b"], alarms={"clock": "behind"})
    (told,) = (at for at, line in enumerate(drawn(parted)) if "link refused: of a meets" in line)
    assert drawn(parted)[told + 1] == "clock: behind"


def test_an_incomplete_observer_is_shown_once_with_what_the_agent_asks_for():
    broker = {"address": "b:1", "connected": True, "observed": False, "unobserved": "no log"}
    interest = {"local": ["plant/#"], "installed": True, "wide": ["#"]}
    alarms = {"observer incomplete": "no log; meanwhile the agent asks other brokers for #"}
    lines = drawn(page(broker=broker, interest=interest, alarms=alarms))
    assert sum("observer incomplete" in line for line in lines) == 1
    assert "alpha 1 plant/#; others may be unknown: asks for # yes" in lines


def test_a_topic_without_members_among_the_pages_is_shown_once():
    topic = {"core": BETA, "member": False, "interested_nodes": [BETA]}
    topic |= {"parents": [], "children": []}
    lines = drawn(page(groups={"plant/#": topic}, cores={}))
    assert "plant/# bb0000 bb0000 alpha, no member" in lines


def test_long_tables_end_and_say_so(monkeypatch):
    monkeypatch.setattr(status_tables, "ROWS_MAX", 1)
    assert drawn(page(), page("beta", BETA)).count("1 more; --json has all") == 4


def test_markup_in_a_filter_is_text():
    lines = drawn(page(interest={"local": ["[red]x"], "installed": False}))
    assert "alpha 1 [red]x no" in lines


# ---------------------------------------------------------------- where pages are


@pytest.mark.parametrize(
    "target",
    ["http://h:1", "h:1", "http://h:1/", "http://h:1/status"],
)
def test_an_address_may_be_written_in_several_ways(target):
    assert status_client.status_urls(target) == ("http://h:1",)


@pytest.mark.parametrize("target", ["up.json", "ftp://h:1", "http://h", "h:x", "h:99999", ""])
def test_what_is_neither_file_nor_address_is_refused(target, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["status", target]) == 2
    assert capsys.readouterr() == (
        "",
        f"hansa: {target!r} is neither a ready file of `hansa up` nor the address of an agent's"
        " pages, such as http://127.0.0.1:8080\n",
    )


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", '{"nodes": 1}', '{"nodes": [{}]}'])
def test_a_file_that_is_no_ready_file_is_refused(text, tmp_path, capsys):
    path = tmp_path / "up.json"
    path.write_text(text)
    assert main(["status", str(path)]) == 2
    assert capsys.readouterr() == ("", f"hansa: {path} is no ready file of `hansa up`\n")


def test_nothing_answers(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert main(["status", url]) == 2
    assert capsys.readouterr() == (
        "",
        f"hansa: {url}: nothing answers (Connection refused); is the agent running?\n",
    )


# ---------------------------------------------------------------- live


def test_a_federation_is_shown_by_its_ready_file(ready_file, capsys):
    assert main(["status", str(ready_file)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Federation" in out
    assert "(federation)" in out
    assert "also members" not in out


def test_json_of_one_agent_is_what_it_says(nodes, capsys):
    assert main(["status", nodes[0]["admin"], "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["name"], told["broker"]["address"]) == (nodes[0]["name"], nodes[0]["broker"])


def test_json_of_a_federation_has_all_nodes(ready_file, nodes, capsys):
    assert main(["status", str(ready_file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [node["name"] for node in told["nodes"]] == [node["name"] for node in nodes]


def test_a_page_that_is_no_status_is_one_line(nodes, capsys):
    """Another page of an agent stands for any web server."""
    url = f"{nodes[0]['admin']}/healthz"
    assert main(["status", url]) == 2
    problem = "this is not the status page of an agent (HTTP 404)"
    assert capsys.readouterr() == ("", f"hansa: {url}: {problem}\n")


def test_a_broker_is_no_agent(nodes, capsys):
    assert main(["status", nodes[0]["broker"]]) == 2
    assert capsys.readouterr().err.startswith(f"hansa: http://{nodes[0]['broker']}: ")


def test_a_node_that_is_gone_is_shown_and_the_exit_code_says_so(nodes, tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{taken.getsockname()[1]}"
        path = tmp_path / "up.json"
        path.write_text(json.dumps({"nodes": [nodes[0], {"admin": gone}]}))
        assert main(["status", str(path)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert f"{gone}: nothing answers (Connection refused); is the agent running?" in out


def test_what_a_client_wants_is_shown(nodes, capsys):
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
