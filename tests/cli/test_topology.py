import json
import socket
import threading

import pytest
from tests.manager.serving import Served

from hansa.cli.main import main


def test_compare_shows_one_line_per_rule(capsys):
    assert main(["topology", "compare", "--nodes", "6"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("6 nodes join one by one")
    assert [line.split("  ")[0].strip() for line in lines[2:5]] == [
        "paper",
        "planner",
        "planner, measured",
    ]


def test_compare_prints_json_repeatably(capsys):
    said = []
    for _ in range(2):
        assert main(["topology", "compare", "--nodes", "5", "--json"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert [score["rule"] for score in json.loads(said[0])][0] == "paper"


def test_churn_prints_its_result(capsys):
    given = ["topology", "churn", "--nodes", "5", "--minutes", "1", "--manager-mode", "up"]
    assert main(given) == 0
    said = capsys.readouterr().out
    assert "5 nodes, 1 minutes, manager up, seed 1" in said
    assert "link changes per hour" in said
    assert main([*given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["violations"] == []


@pytest.fixture
def served(tmp_path):
    running = Served(f"sqlite:///{tmp_path / 'm.db'}")
    for number in range(5):
        link = f"127.0.0.1:{10500 + number}"
        body = {"link": link, "node": f"{number:016x}", "name": f"n{number}"}
        assert running.ask("POST", "/api/v1/join", body)[0] == 200
    yield running
    running.stop()


def advice(tmp_path, *pieces):
    place = tmp_path / "advice.json"
    named = [
        dict(zip(("kind", "actor", "subject", "text"), piece, strict=True)) for piece in pieces
    ]
    place.write_text(json.dumps({"advice": named}))
    return str(place)


def test_advice_for_the_manager_is_applied(served, capsys, tmp_path):
    links = {(k["a"], k["b"]) for k in served.ask("GET", "/api/v1/links")[1]}
    free = next((a, b) for a in range(5) for b in range(a + 1, 5) if (a, b) not in links)
    old = min(links)
    file = advice(
        tmp_path,
        ("add link", "manager", [f"{number:016x}" for number in free], "link them"),
        ("remove link", "manager", [f"{number:016x}" for number in old], "unlink them"),
        ("move core", "clients", ["a", "x"], "make x the core of a"),
    )
    assert main(["topology", "apply", served.url, "--advice", file]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "done: link them",
        "done: unlink them",
        "left to clients: make x the core of a",
    ]
    now = {(k["a"], k["b"]) for k in served.ask("GET", "/api/v1/links")[1]}
    assert free in now and old not in now


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "is not what `hansa advise --json` prints"),
        ("[]", "is not what `hansa advise --json` prints"),
        (
            '{"advice": [{"kind": "add link", "actor": "manager", "subject": ["x"], "text": ""}]}',
            "the manager knows no node 'x'",
        ),
    ],
)
def test_invalid_advice_is_one_line(served, capsys, tmp_path, text, said):
    (tmp_path / "advice.json").write_text(text)
    given = ["topology", "apply", served.url, "--advice", str(tmp_path / "advice.json")]
    assert main(given) == 2
    assert said in capsys.readouterr().err
    assert main(["topology", "apply", served.url]) == 2
    assert "needs --advice FILE" in capsys.readouterr().err


def test_graph_is_shown_and_changed(served, capsys, tmp_path):
    assert main(["topology", "show", served.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["0", "1", "2", "3", "4"]
    before = {(k["a"], k["b"]) for k in served.ask("GET", "/api/v1/links")[1]}
    free = next((a, b) for a in range(5) for b in range(a + 1, 5) if (a, b) not in before)
    capsys.readouterr()
    assert main(["topology", "add", served.url, *map(str, free)]) == 0
    assert capsys.readouterr().out == (
        f"added the link between {free[0]} (n{free[0]}) and {free[1]} (n{free[1]});"
        " the planner keeps it\n"
    )
    links = {(k["a"], k["b"]): k for k in served.ask("GET", "/api/v1/links")[1]}
    assert links[free]["origin"] == "operator"
    history = served.ask("GET", "/api/v1/history")[1]
    assert main(["topology", "add", served.url, *map(str, free)]) == 0
    assert capsys.readouterr().out.startswith("nothing changed: the link between")
    assert served.ask("GET", "/api/v1/history")[1] == history
    planned = next(key for key, link in links.items() if link["origin"] == "planned")
    assert main(["topology", "add", served.url, *map(str, planned)]) == 0
    assert "exists; from now on the planner keeps it" in capsys.readouterr().out
    names = [f"n{number}" for number in free]
    assert main(["topology", "remove", served.url, *names]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"removed the link between {free[0]} ({names[0]}) and {free[1]}")
    assert main(["topology", "drain", served.url, "n3"]) == 0
    assert capsys.readouterr().out.startswith("3 (n3) is draining")
    assert served.ask("GET", "/api/v1/nodes/3")[1]["draining"]
    assert main(["topology", "drain", served.url, "3", "--undo"]) == 0
    assert (
        capsys.readouterr().out
        == "3 (n3) is no longer draining: the planner gives it links again\n"
    )
    assert not served.ask("GET", "/api/v1/nodes/3")[1]["draining"]
    assert main(["topology", "leave", served.url, f"{3:016x}"]) == 0
    assert capsys.readouterr().out.startswith("3 (n3) has left")
    assert served.ask("GET", "/api/v1/nodes/3")[1]["state"] == "left"
    picture = tmp_path / "graph.svg"
    assert main(["topology", "show", served.url, "--format", "svg", "--output", str(picture)]) == 0
    assert picture.read_text().startswith("<svg")
    assert main(["topology", "plan", served.url]) == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["show"], "needs the manager"),
        (["show", "http://127.0.0.1:1"], "no manager answers at http://127.0.0.1:1"),
        (["show", "http://h:abc"], "no manager answers at http://h:abc"),
        (["show", "ftp://x"], "is not the URL of a manager"),
        (["add", "http://127.0.0.1:1", "3"], "needs two nodes"),
        (["drain", "http://127.0.0.1:1"], "needs one node"),
        (["dance"], "there is no 'dance'"),
    ],
)
def test_invalid_arguments_are_one_line(capsys, given, said):
    assert main(["topology", *given]) == 2
    assert said in capsys.readouterr().err


def test_refusal_of_the_manager_is_printed(served, capsys):
    assert main(["topology", "remove", served.url, "0", "99"]) == 2
    assert "the manager knows no node '99'; it knows 0 (n0), 1 (n1), 2" in capsys.readouterr().err
    assert main(["topology", "add", served.url, "0", "n0"]) == 2
    assert "the manager says: node 0 (n0) cannot be linked to itself" in capsys.readouterr().err


def test_name_that_is_the_number_of_another_node_must_be_qualified(served, capsys):
    body = {"link": "127.0.0.1:10600", "node": f"{160:016x}", "name": "1"}
    assert served.ask("POST", "/api/v1/join", body)[1]["id"] == 5
    assert main(["topology", "drain", served.url, "1"]) == 2
    said = "1 is the number of 1 (n1) and the name of 5 (1): write id:1 or name:1"
    assert said in capsys.readouterr().err
    assert main(["topology", "drain", served.url, "name:1"]) == 0
    assert capsys.readouterr().out.startswith("5 (1) is draining")
    assert main(["topology", "drain", served.url, "id:1"]) == 0
    assert capsys.readouterr().out.startswith("1 (n1) is draining")
    body = {"link": "127.0.0.1:10601", "node": f"{161:016x}", "name": "n2"}
    assert served.ask("POST", "/api/v1/join", body)[1]["id"] == 6
    assert main(["topology", "drain", served.url, "n2"]) == 2
    assert "'n2' is ambiguous: it names 2 (n2), 6 (n2)" in capsys.readouterr().err


def test_server_without_http_is_no_manager(capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def greet() -> None:
            caller, _ = server.accept()
            with caller:
                caller.sendall(b"220 hello\r\n")
                caller.recv(1 << 16)

        greeter = threading.Thread(target=greet)
        greeter.start()
        assert main(["topology", "show", url]) == 2
        greeter.join()
    assert f"no manager answers at {url}" in capsys.readouterr().err
