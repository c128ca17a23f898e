"""A real trace: a marked publication, followed by the reports of all agents."""

import asyncio
import json
import signal
import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest
from tests.agent.live import Live, eventually

from hansa.agent.admin import trace_watch
from hansa.agent.admin.trace_watch import TraceWatches
from hansa.agent.audit_log import AuditLog
from hansa.protocol.membership.rights import Rights
from hansa.protocol.model import LinkId, NodeId

MARKER = "0123456789abcdef" * 2
NEIGHBOUR = NodeId(2)


def trace(live: Live, number: int, query: str):
    """Return status and document of a real trace."""
    url = f"{live.nodes[number].admin_url}/trace?{query}"
    try:
        request = urllib.request.Request(url, method="POST")
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def real_trace(live: Live, number: int, query: str) -> dict[str, Any]:
    """Return a real trace; the rate of publications may be used up by earlier ones."""

    def has_published() -> dict[str, Any] | None:
        found: dict[str, Any] = trace(live, number, query)[1]["real"]
        is_full = any("has just published" in each["reason"] for each in found["problems"])
        return None if is_full else found

    made: dict[str, Any] = eventually(has_published, "a trace within the rate")
    return made


def test_message_is_followed_to_the_subscriber(ring):
    names = [node.name for node in ring.nodes]
    subscriber = ring.subscriber(2, "real/+")
    query = f"topic=real/a&from={names[1]}"
    # the agent of the origin may still be subscribing at its broker
    found = eventually(
        lambda: (real := real_trace(ring, 0, query))["delivered"] and real, "a trace"
    )
    assert [each["name"] for each in found["delivered"]] == [names[2]]
    assert (found["missed"], found["problems"]) == ([], [])
    assert found["clock_of"] == names[0]
    first, *_, last = found["hops"]
    assert (first["name"], first["hop"], first["from_name"]) == (names[1], 0, None)
    assert 0 <= first["captured_ms"] <= first["to"][0]["after_ms"] + first["captured_ms"]
    arrival = next(hop for hop in found["hops"] if hop["name"] == names[2])
    assert arrival["delivered_ms"] >= 0
    assert arrival["hop"] in (1, 2)
    # the error bound holds: on one machine all clocks are the same, so arrivals come after
    assert arrival["at_ms"] + arrival["error_ms"] > 0
    assert last["hop"] >= arrival["hop"]
    assert ("real/a", found["payload"].encode()) in subscriber.wait_for(found["payload"].encode())


def test_topic_without_interest_is_not_captured(ring):
    found = eventually(
        lambda: (
            (real := real_trace(ring, 0, "topic=nobody/asks"))["hops"]  # if it may publish
            and not real["hops"][0]["captured_ms"]  # the agent has given up its wide subscription
            and real
        ),
        "a trace that ends at the origin",
    )
    assert (found["delivered"], found["missed"]) == ([], [])
    assert [hop["name"] for hop in found["hops"]] == [ring.nodes[0].name]
    assert "did not get it from its broker" in found["problems"][0]["reason"]


def test_traces_can_be_repeated_at_once(ring):
    names = [node.name for node in ring.nodes]
    ring.subscriber(2, "again/+")
    eventually(lambda: real_trace(ring, 0, "topic=again/a")["delivered"], "a trace")
    for number in range(trace_watch.WATCHES_MAX + 1):
        found = trace(ring, 0, f"topic=again/a&from={names[number % 2]}")[1]["real"]
        assert [each["name"] for each in found["delivered"]] == [names[2]]
        assert found["problems"] == []


@pytest.mark.long
def test_agent_that_does_not_answer_is_named(ring):
    victim = ring.nodes[2]
    ring.subscriber(2, "stopped/+")
    query = "topic=stopped/a"
    eventually(lambda: real_trace(ring, 0, query)["delivered"], "a trace")
    victim.agent.send_signal(signal.SIGSTOP)
    try:
        found = eventually(lambda: (real := real_trace(ring, 0, query))["hops"] and real, "a trace")
    finally:
        victim.agent.send_signal(signal.SIGCONT)
    assert found["delivered"] == []
    assert victim.name in [each["name"] for each in found["problems"] + found["missed"]]


def test_wrong_topic_is_refused(ring):
    status, document = trace(ring, 0, "topic=a/%23")
    assert (status, document["error"]) == (
        400,
        "topic name 'a/#': '+' and '#' are for filters only",
    )


# ---------------------------------------------------------------- one agent's part


class FakeMembership:
    neighbours = {NEIGHBOUR: SimpleNamespace(id=LinkId(7))}

    def rights_of(self, node):
        return Rights(may_publish=("allowed/#", "$allowed/#"))


def fake_driver() -> Any:
    return SimpleNamespace(trace_watch=None, node=SimpleNamespace(membership=FakeMembership()))


class Agent:
    """Watches of an agent whose broker never answers."""

    def __init__(self, has_connections=True):
        self.connections = []
        self.driver = fake_driver()
        make = self.connect if has_connections else None
        self.watches = TraceWatches(self.driver, make, lambda: "", AuditLog())

    def connect(self, name, on_effect):
        connection = FakeConnection(on_effect)
        self.connections.append(connection)
        return connection

    def is_watching(self) -> bool:
        return self.driver.trace_watch is self.watches

    def ask(self, ask, **more):
        return self.watches.answer({"ask": ask, "marker": MARKER, **more}, NEIGHBOUR)


class FakeConnection:
    def __init__(self, on_effect):
        self.on_effect = on_effect
        self.submitted = []

    def start(self):
        pass

    def submit(self, given):
        self.submitted.append(given)

    async def stop(self):
        pass


def in_loop(function):
    async def run():
        function()
        await asyncio.sleep(0)

    asyncio.run(run())


def test_agent_without_a_trace_compares_nothing(monkeypatch):
    monkeypatch.setattr(trace_watch, "WATCH_S", 0.0)

    async def run():
        agent = Agent()
        agent.ask("trace_watch")
        assert agent.is_watching()
        while agent.is_watching():
            await asyncio.sleep(0)
        with pytest.raises(ValueError, match="does not watch for that trace"):
            agent.ask("trace_report")

    asyncio.run(run())


def test_number_of_traces_is_bounded():
    def run():
        agent = Agent()
        for number in range(trace_watch.WATCHES_MAX):
            agent.watches.answer({"ask": "trace_watch", "marker": f"{number:032x}"}, NEIGHBOUR)
        with pytest.raises(ValueError, match="8 real traces run, which is the limit"):
            agent.ask("trace_watch")
        assert agent.watches.counters == {"refused: too many real traces": 1}

    in_loop(run)


@pytest.mark.parametrize("marker", ["", "x", "0" * 33, None, ["x"]])
def test_invalid_marker_is_refused(marker):
    with pytest.raises(ValueError, match="the marker of a trace has 32 characters"):
        Agent().watches.answer({"ask": "trace_watch", "marker": marker}, NEIGHBOUR)


@pytest.mark.parametrize(
    ("topic", "has_connections", "error"),
    [
        ("other", True, "the certificate of the asking node does not allow 'other'"),
        ("$allowed/a", True, "topics that begin with \\$ never leave their broker"),
        ("a/#", True, "'\\+' and '#' are for filters only"),
        ("allowed/a", False, "cannot be published at the embedded broker"),
    ],
)
def test_publication_is_refused(topic, has_connections, error):
    def run():
        agent = Agent(has_connections)
        agent.ask("trace_watch")
        with pytest.raises(ValueError, match=error):
            agent.ask("trace_publish", topic=topic)
        assert agent.connections == []

    in_loop(run)


def test_ended_watch_frees_its_place():
    def run():
        agent = Agent()
        for number in range(trace_watch.WATCHES_MAX + 1):
            question = {"ask": "trace_watch", "marker": f"{number:032x}"}
            assert "now" in agent.watches.answer(question, NEIGHBOUR)
            assert agent.watches.answer({**question, "ask": "trace_end"}, NEIGHBOUR) == {}
            assert not agent.is_watching()
        assert agent.ask("trace_end") == {}  # never began here, or over

    in_loop(run)


def test_repeated_question_publishes_once():
    async def run():
        agent = Agent()
        agent.ask("trace_watch")
        for _ in range(3):
            agent.ask("trace_publish", topic="allowed/a")
        await asyncio.sleep(0)
        assert len(agent.connections) == 1

    asyncio.run(run())


def test_rate_of_publications_is_bounded_and_one_client_connects_at_a_time():
    async def run():
        agent = Agent()
        published = 0
        with pytest.raises(ValueError, match="has just published for other traces"):
            for number in range(100):
                trace = {"marker": f"{number:032x}", "topic": "allowed/a"}
                agent.watches.answer({"ask": "trace_watch", **trace}, NEIGHBOUR)
                agent.watches.answer({"ask": "trace_publish", **trace}, NEIGHBOUR)
                agent.watches.answer({"ask": "trace_end", **trace}, NEIGHBOUR)
                published += 1
        assert published >= trace_watch.PUBLICATION_BURST_S * trace_watch.PUBLICATIONS_S
        await asyncio.sleep(0)
        assert len(agent.connections) == 1

    asyncio.run(run())


def test_silent_broker_is_reported(monkeypatch):
    monkeypatch.setattr(trace_watch, "CONNECT_TIMEOUT_S", 0.0)

    async def run():
        agent = Agent()
        agent.ask("trace_watch")
        agent.ask("trace_publish", topic="allowed/a")
        while not (problem := agent.ask("trace_report")["problem"]):
            await asyncio.sleep(0)
        assert problem == "not published: no answer of the broker in 0 s"

    asyncio.run(run())


def test_frames_of_other_kinds_and_damaged_ones_are_not_noted():
    def run():
        agent = Agent()
        agent.ask("trace_watch")
        end = MARKER.encode()
        agent.watches.on_received(LinkId(7), [b"", b"\x00" + end, b"\x01" + end, end])
        assert agent.ask("trace_report")["received"] == []

    in_loop(run)
