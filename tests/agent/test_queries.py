"""Questions between agents: answered once, bounded in size and rate, never fatal."""

import asyncio
import random
import zlib

import pytest

from hansa.agent import queries
from hansa.agent.queries import QueryFailed, QueryService
from hansa.protocol.effects import QueryReceived, QueryResponseReceived
from hansa.protocol.events import QueryAnswered, QueryRequested
from hansa.protocol.model import NodeId
from hansa.protocol.wire.bounds import QUERY_RESPONSE_BYTES_MAX

ONE, TWO = NodeId(1), NodeId(2)


class Wire:
    """Two services; what one sends reaches the other at once unless it is lost."""

    def __init__(self, answerer=lambda question, source: question, lost=0):
        self.now = 0.0
        self.lost = lost
        self.sent = []
        self.one = QueryService(self.from_one, answerer, lambda: self.now)
        self.two = QueryService(self.from_two, answerer, lambda: self.now)

    def from_one(self, event):
        self.sent.append(event)
        if self.lost:
            self.lost -= 1
        else:
            self.two.perform(QueryReceived(ONE, event.number, event.data))

    def from_two(self, event):
        self.sent.append(event)
        self.one.perform(QueryResponseReceived(TWO, event.number, event.data))


def test_answer_reaches_the_asking_agent():
    wire = Wire()
    assert asyncio.run(wire.one.ask(TWO, {"ask": "summary"})) == {"ask": "summary"}
    assert [type(event) for event in wire.sent] == [QueryRequested, QueryAnswered]
    assert wire.two.counters == {"answers to other agents": 1}


def test_lost_question_is_asked_again_with_the_same_number(monkeypatch):
    monkeypatch.setattr(queries, "ATTEMPT_TIMEOUT_S", 0.01)
    wire = Wire(lost=2)
    assert asyncio.run(wire.one.ask(TWO, {})) == {}
    asked = [event for event in wire.sent if isinstance(event, QueryRequested)]
    assert asked == [asked[0]] * 3


def test_node_without_an_answer_is_a_failure(monkeypatch):
    monkeypatch.setattr(queries, "ATTEMPT_TIMEOUT_S", 0.01)
    wire = Wire(lost=9)
    with pytest.raises(QueryFailed, match="no answer within"):
        asyncio.run(wire.one.ask(TWO, {}))
    assert wire.lost == 6
    wire.one.perform(QueryResponseReceived(TWO, wire.sent[0].number, b""))
    assert wire.one.counters == {"late answers of other agents": 1}


def test_answer_of_another_node_is_not_taken(monkeypatch):
    monkeypatch.setattr(queries, "ATTEMPT_TIMEOUT_S", 0.01)
    service = QueryService(
        lambda event: service.perform(
            QueryResponseReceived(ONE, event.number, zlib.compress(b"{}"))
        ),
        lambda question, source: question,
        lambda: 0.0,
    )
    with pytest.raises(QueryFailed, match="no answer within"):
        asyncio.run(service.ask(TWO, {}))


def refuse(question, source):
    raise ValueError("this agent does not know the question")


def test_unknown_question_is_answered_with_the_reason():
    wire = Wire(refuse)
    with pytest.raises(QueryFailed, match="does not know the question"):
        asyncio.run(wire.one.ask(TWO, {}))


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"[" * 4_000, b'{"a":'])
def test_invalid_question_is_answered_and_counted(data):
    wire = Wire()
    wire.two.perform(QueryReceived(ONE, 1, data))
    assert wire.two.counters["invalid questions of other agents"] == 1
    assert b"error" in zlib.decompress(wire.sent[0].data)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{}", zlib.compress(b"{"), zlib.compress(b"{}")[:-2]),
        zlib.compress(b"[" * 100_000),
        zlib.compress(b"[" * 33 + b"]" * 33),  # deeper ones could be read, but not written again
        zlib.compress(b'[{"a":' * 17 + b"1" + b"}]" * 17),
    ],
)
def test_unreadable_answer_is_a_failure(data):
    service = QueryService(
        lambda event: service.perform(QueryResponseReceived(TWO, event.number, data)),
        refuse,
        lambda: 0.0,
    )
    with pytest.raises(QueryFailed, match="the answer"):
        asyncio.run(service.ask(TWO, {}))


def test_answer_may_have_several_levels():
    answer = [{"a": [{"b": 1}]}, "text", [[]]]
    assert asyncio.run(Wire(lambda *_: answer).one.ask(TWO, {})) == answer


def test_decompressed_answer_is_bounded(monkeypatch):
    monkeypatch.setattr(queries, "ANSWER_BYTES_MAX", 1_000)
    wire = Wire(lambda question, source: ["x" * 2_000])
    with pytest.raises(QueryFailed, match="too large"):
        asyncio.run(wire.one.ask(TWO, {}))


def test_answer_that_fits_no_frame_says_so():
    seeded = random.Random(1)
    noise = [seeded.getrandbits(60) for _ in range(20_000)]
    wire = Wire(lambda question, source: noise)
    with pytest.raises(QueryFailed, match="bytes, which is too large"):
        asyncio.run(wire.one.ask(TWO, {}))
    assert len(wire.sent[1].data) < QUERY_RESPONSE_BYTES_MAX


def test_question_that_fits_no_frame_is_refused():
    with pytest.raises(QueryFailed, match="the limit is 4096"):
        asyncio.run(Wire().one.ask(TWO, {"topic": "x" * 5_000}))


def test_pending_questions_are_bounded(monkeypatch):
    monkeypatch.setattr(queries, "PENDING_MAX", 0)
    with pytest.raises(QueryFailed, match="too many questions"):
        asyncio.run(Wire().one.ask(TWO, {}))


def answers(wire, source, count):
    before = len(wire.sent)
    for number in range(count):
        wire.two.perform(QueryReceived(source, number, b"{}"))
    return len(wire.sent) - before


def test_answers_to_one_node_are_limited_in_rate():
    wire = Wire()
    assert answers(wire, ONE, 1_000) == 2 * queries.ANSWERS_PER_NODE_S
    assert answers(wire, NodeId(3), 1) == 1
    wire.now = 1.0
    assert answers(wire, ONE, 1_000) == queries.ANSWERS_PER_NODE_S
    assert wire.two.counters["refused: too many questions of other agents"] == 960 + 980


def test_all_answers_together_are_limited_in_rate():
    wire = Wire()
    given = sum(answers(wire, NodeId(node), 30) for node in range(3, 103))
    assert given == 2 * queries.ANSWERS_S


def test_remembered_nodes_are_bounded(monkeypatch):
    monkeypatch.setattr(queries, "ASKING_NODES_MAX", 2)
    wire = Wire()
    burst = answers(wire, ONE, 100)
    assert answers(wire, ONE, 1) == 0
    answers(wire, NodeId(3), 1)
    answers(wire, NodeId(4), 1)  # now ONE is forgotten, and begins again
    assert answers(wire, ONE, 100) == burst


def test_node_whose_role_does_not_allow_it_gets_a_refusal():
    wire = Wire()
    wire.two = QueryService(
        wire.from_two, lambda question, source: question, lambda: wire.now, lambda node: node != ONE
    )
    with pytest.raises(QueryFailed, match="the role of the asking node does not allow it"):
        asyncio.run(wire.one.ask(TWO, {}))
    refused = "refused: question of an agent whose role does not allow it"
    assert wire.two.counters == {refused: 1}


def test_refusals_by_role_are_limited_in_rate_too():
    wire = Wire()
    wire.two = QueryService(
        wire.from_two, lambda question, source: question, lambda: wire.now, lambda node: False
    )
    assert answers(wire, ONE, 1_000) == 2 * queries.ANSWERS_PER_NODE_S
    assert wire.two.counters["refused: too many questions of other agents"] == 960
