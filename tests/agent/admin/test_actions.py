"""Changes through the endpoints: links are added and removed, and a node leaves."""

import json
from functools import partial

import pytest
from tests.agent.live import PATIENCE, eventually
from tests.agent.process import Scene

from hansa.cli.main import main

TOKEN = "a secret"


@pytest.fixture
def pair(scene: Scene, monkeypatch):
    """Two agents without a link; the operator has the token."""
    monkeypatch.setenv("HANSA_ADMIN_TOKEN", TOKEN)
    agents = []
    for name in ("north", "south"):
        broker = scene.broker()
        made = scene.agent(name=name, broker_port=broker.port, admin_operate_token=TOKEN)
        agents.append((made, broker.port))
    for agent, _ in agents:
        eventually(partial(is_ready, agent), "the agent is ready")
    return agents


def is_ready(agent) -> bool:
    return bool(agent.page("/readyz")[0] == 200)


def at(agent) -> list[str]:
    return ["--agent", f"http://127.0.0.1:{agent.admin_port}"]


def link_address(agent) -> str:
    return str(json.loads(agent.page("/status")[1])["link"])


def sees(agent, *texts):
    """Whether `hansa node ls` shows all these texts."""

    def holds() -> bool:
        page = agent.page("/federation")[1]
        return all(text in page for text in texts)

    return holds


def test_link_is_added_and_removed_and_the_node_leaves(pair, scene, capsys):
    (north, _), (south, port) = pair
    address = link_address(south)
    assert main(["link", "add", address, *at(north)]) == 0
    assert "north dials" in capsys.readouterr().out
    eventually(sees(north, '"name":"south"', '"two_way":true'), "the link is up")
    scene.client(port).subscribe("plant/#")
    eventually(lambda: "plant/#" in north.page("/status")[1], "north knows the interest")

    assert main(["node", "leave", "north", *at(south)]) == 2
    assert "only this agent can leave here, and it is south" in capsys.readouterr().err
    assert main(["node", "leave", "south", *at(south)]) == 0
    assert capsys.readouterr().out == "node south has withdrawn its interest and stops\n"
    assert south.process.wait(PATIENCE) == 0
    assert "plant/#" not in north.page("/status")[1]

    assert main(["link", "rm", address, *at(north)]) == 0
    assert "there was no open link to it" in capsys.readouterr().out


def test_removed_link_closes(pair, capsys):
    (north, _), (south, _) = pair
    address = link_address(south)
    assert main(["link", "add", address, *at(north)]) == 0
    eventually(sees(north, '"two_way":true'), "the link is up")
    assert main(["link", "rm", address, *at(north)]) == 0
    assert capsys.readouterr().out.endswith(f"north no longer dials {address}\n")
    eventually(lambda: not sees(north, '"two_way":true')(), "the link is closed")


def test_wrong_change_says_what_to_do(pair, monkeypatch, capsys):
    (north, _), _ = pair
    assert main(["link", "add", "no address", *at(north)]) == 2
    assert "neighbour 'no address': a host has no blanks" in capsys.readouterr().err
    assert main(["link", "rm", "127.0.0.1:1", *at(north)]) == 2
    assert "north does not dial 127.0.0.1:1: a link is removed" in capsys.readouterr().err
    monkeypatch.setenv("HANSA_ADMIN_TOKEN", "wrong")
    assert main(["link", "add", "127.0.0.1:1", *at(north)]) == 2
    assert "the token is missing or wrong" in capsys.readouterr().err


def test_configured_link_is_removed_in_the_settings(scene, monkeypatch, capsys):
    monkeypatch.setenv("HANSA_ADMIN_TOKEN", TOKEN)
    agent = scene.agent(
        name="north",
        broker_port=scene.broker().port,
        admin_operate_token=TOKEN,
        link_neighbours="127.0.0.1:1",
    )
    eventually(lambda: agent.page("/healthz")[0] == 200, "the agent answers")
    assert main(["link", "rm", "127.0.0.1:1", *at(agent)]) == 2
    assert "is one of [link] neighbours of north: remove it there" in capsys.readouterr().err
