"""One agent answers for the whole federation: /federation, /nodes and /trace."""

import json
import signal
import urllib.error
import urllib.request
from typing import Any

import pytest
from tests.agent.live import Live, eventually
from tests.console.documents import ALPHA, summary

from hansa.agent.admin.overview import brief_federation, describe_answer
from hansa.agent.queries import QueryFailed
from hansa.console.node_answers import UNREADABLE


def get(live: Live, number: int, path: str):
    """Return status and document of a request to the agent of a node."""
    url = f"{live.nodes[number].admin_url}{path}"
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def summaries(live: Live) -> dict[str, Any]:
    """Return the summaries that node 0 collects, by name."""
    nodes = get(live, 0, "/federation")[1]["nodes"]
    return {node["name"]: node["summary"] for node in nodes if node["summary"]}


def test_one_agent_collects_the_summaries_of_all(ring):
    found = eventually(lambda: len(all_ := summaries(ring)) == 3 and all_, "three summaries")
    for node in ring.nodes:
        summary = found[node.name]
        assert summary["broker"]["address"] == f"127.0.0.1:{node.broker.port}"
        assert len(summary["neighbours"]) == 2
        assert summary["alarms"] == node.status()["alarms"]
    document = get(ring, 0, "/federation")[1]
    assert document["asked"] == found[ring.nodes[0].name]["node"]
    assert len(document["links"]) == 3


def test_any_node_is_asked_by_name_or_id(ring):
    ring.subscriber(2, "details/#")
    name = ring.nodes[2].name
    status, by_name = get(ring, 0, f"/nodes?node={name}")
    assert (status, by_name["name"]) == (200, name)
    eventually(
        lambda: "details/#" in get(ring, 0, f"/nodes?node={name}")[1]["local_filters"],
        "the filter of a client at another node",
    )
    assert get(ring, 1, f"/nodes?node={by_name['node']}")[1]["name"] == name
    assert get(ring, 1, f"/nodes?node={by_name['node'][:9]}")[1]["name"] == name


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/nodes?node=nobody", "there is no node 'nobody'; there are "),
        ("/nodes", "the query needs one parameter node"),
        ("/trace?from=", "the query needs one parameter topic"),
        ("/trace?topic=a/%23", "topic name 'a/#': '+' and '#' are for filters only"),
        ("/trace?topic=$SYS/x", "$SYS/x: topics that begin with $ never leave their broker"),
        ("/trace?topic=a&from=nobody", "there is no node 'nobody'"),
    ],
)
def test_wrong_query_is_answered_with_the_reason(ring, path, error):
    status, document = get(ring, 0, path)
    assert status == 400
    assert document["error"].startswith(error)


def test_trace_reaches_the_interested_nodes(ring):
    ring.subscriber(2, "trace/+")
    ring.wait_installed(2, "trace/+")
    names = [node.name for node in ring.nodes]
    found = eventually(
        lambda: (
            (got := get(ring, 0, f"/trace?topic=trace/a&from={names[1]}")[1])["delivered"] and got
        ),
        "a trace that arrives",
    )
    assert [node["name"] for node in found["delivered"]] == [names[2]]
    assert (found["missed"], found["is_complete"]) == ([], True)
    first, *_, last = found["hops"]
    assert (first["name"], first["hop"], first["from"]) == (names[1], 0, None)
    assert (last["name"], last["reasons"][0]) == (names[2], "delivered to clients here: trace/+")


def test_trace_of_a_topic_without_interest_says_so(ring):
    reason = "no other node has a subscriber for it: the agent does not subscribe to it here"
    eventually(  # an agent that has just connected to its broker may still ask for everything
        lambda: get(ring, 0, "/trace?topic=nobody/asked")[1]["hops"][0]["reasons"] == [reason],
        "the reason",
    )


def test_stopped_agent_is_reported_and_keeps_its_name(ring):
    victim = ring.nodes[1]
    victim.agent.send_signal(signal.SIGSTOP)
    try:

        def reported():
            nodes = get(ring, 0, "/federation")[1]["nodes"]
            return next((n for n in nodes if n["name"] == victim.name and n["problem"]), None)

        found = eventually(reported, "a problem of the stopped node")
        assert found["summary"] is None
    finally:
        victim.agent.send_signal(signal.SIGCONT)
    eventually(lambda: victim.name in summaries(ring), "the node answers again")


@pytest.mark.parametrize("answer", ["text", [], {"counters": 1}, {"name": "", "alarms": {"a": 1}}])
def test_answer_in_another_form_is_left_out(answer):
    # Passed on, it made the page and all commands of the operator fail, for all nodes.
    assert describe_answer("summary", (answer, 0.1)) == {"problem": UNREADABLE}
    assert describe_answer("summary", QueryFailed("late")) == {"problem": "late"}


def test_page_gets_all_fields_of_a_summary_that_has_few():
    document: Any = {"nodes": [{"summary": summary("alpha", ALPHA)}, {"summary": None}]}
    brief: Any = brief_federation(document)
    found, absent = brief["nodes"]
    assert absent == {"summary": None}
    assert found["summary"]["clock_ms"] == 0
    assert found["summary"]["delivery"]["inbox_waiting"] == 0
    assert found["summary"]["counters"] == {"captured": 3, "dropped: broker disconnected": 1}
