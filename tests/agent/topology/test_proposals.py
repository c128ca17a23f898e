"""The manager's proposals, as an agent shows and applies them for its operators."""

import asyncio
import json

import pytest

from hansa.agent.topology.proposals import ManagerProposals
from hansa.agent.topology.settings import TopologySettings

pytest.importorskip("fastapi", reason="the manager is not installed")

from tests.manager.serving import Served

ADMIN = {"HANSA_MANAGER_TOKEN": "all scopes", "HANSA_MANAGER_APPROVAL": "yes"}


def listed(proposals: ManagerProposals):
    return json.loads(asyncio.run(proposals.handle_list("/proposals", "", {})).body)


def applied(proposals: ManagerProposals, query: str):
    response = asyncio.run(proposals.handle_apply("/proposals/apply", query, {}))
    return response.status, json.loads(response.body)


def settings_of(manager: Served) -> TopologySettings:
    return TopologySettings(manager=manager.url, operator_token="all scopes")


@pytest.fixture
def manager(tmp_path):
    made = Served(f"sqlite:///{tmp_path / 'manager.db'}", ADMIN)
    for number in range(3):
        body = {"link": f"h{number}:1", "node": f"{number + 160:016x}", "name": f"n{number}"}
        assert made.ask("POST", "/api/v1/join", body, "all scopes")[0] == 200
    yield made
    made.stop()


def test_proposals_have_names_and_are_applied_once(manager):
    proposals = ManagerProposals(settings_of(manager))
    found = listed(proposals)
    (change,) = found.pop("changes")
    assert found == {"manager": manager.url, "problem": "", "approval": True}
    assert {change["a_name"], change["b_name"]} < {"n0", "n1", "n2"}
    assert change["reason"] == "second path: one lost link must not split the federation"
    query = f"kind={change['kind']}&a={change['a']}&b={change['b']}"
    assert applied(proposals, query) == (200, {"done": "add link"})
    assert listed(proposals)["changes"] == []
    status, answer = applied(proposals, query)
    assert (status, answer["error"]) == (
        409,
        "the manager refuses: this change is no longer in the plan; look again (409)",
    )


def test_reason_has_the_name_of_the_node(manager):
    for change in listed(ManagerProposals(settings_of(manager)))["changes"]:
        applied(ManagerProposals(settings_of(manager)), f"kind=add&a={change['a']}&b={change['b']}")
    manager.ask("POST", "/api/v1/nodes/n2/drain", {"draining": True}, "all scopes")
    (change,) = listed(ManagerProposals(settings_of(manager)))["changes"]
    assert (change["kind"], change["reason"]) == ("remove", "n2 is draining")


@pytest.mark.parametrize("token", ["", "wrong"])
def test_refusal_names_the_setting(manager, token):
    proposals = ManagerProposals(TopologySettings(manager=manager.url, operator_token=token))
    assert "set [topology] operator_token" in listed(proposals)["problem"]
    status, answer = applied(proposals, "kind=add&a=1&b=2")
    assert status == 409
    assert "set [topology] operator_token" in answer["error"]


def test_manager_that_does_not_answer_is_a_problem():
    proposals = ManagerProposals(TopologySettings(manager="http://127.0.0.1:1"))
    assert listed(proposals)["problem"].startswith("the manager does not answer: ")
    assert applied(proposals, "kind=add&a=1&b=2")[0] == 503


@pytest.mark.parametrize("query", ["", "kind=add", "kind=x&a=1&b=2", "kind=add&a=-1&b=2"])
def test_incomplete_change_is_refused(query):
    assert applied(ManagerProposals(TopologySettings()), query)[0] == 400


def test_agent_without_a_manager_has_no_proposals():
    proposals = ManagerProposals(TopologySettings())
    assert listed(proposals) == {"manager": "", "problem": "", "changes": []}
    assert applied(proposals, "kind=add&a=1&b=2")[0] == 409
