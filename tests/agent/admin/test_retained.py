"""Comparing the retained values that nodes know."""

from typing import Any

import pytest

from hansa.agent.admin import retained
from hansa.agent.admin.retained import compare_retained, list_retained
from hansa.agent.queries import QueryFailed
from hansa.protocol.model import NodeId
from hansa.protocol.retained.digest import RetainedEntry

OLD, NEW = RetainedEntry(1, NodeId(1), b"\x01"), RetainedEntry(1 << 60, NodeId(2), b"\x02")
IDS = ["0000000000000001", "0000000000000002", "0000000000000003"]


def answer(values, prefix=""):
    return list_retained(values, {"prefix": prefix}), 0.1


def test_nodes_that_agree_differ_in_nothing():
    found = compare_retained({NodeId(1): answer({"a": OLD}), NodeId(2): answer({"a": OLD})})
    assert found == {
        "topics": 1,
        "differing": [],
        "differing_count": 0,
        "is_complete": True,
        "problems": {},
    }


def test_different_values_are_named_and_unknown_ones_are_not():
    found = compare_retained(
        {
            NodeId(1): answer({"a": OLD, "b": OLD}),
            NodeId(2): answer({"a": NEW}),
            NodeId(3): QueryFailed("no answer"),
            NodeId(4): ({"values": 3}, 0.1),
        }
    )
    assert found["differing"] == [
        {
            "topic": "a",
            "nodes": {
                IDS[0]: {"version": "1", "owner": IDS[0], "digest": "01"},
                IDS[1]: {"version": str(1 << 60), "owner": IDS[1], "digest": "02"},
            },
        }
    ]
    assert (found["topics"], found["differing_count"]) == (2, 1)
    assert found["problems"] == {
        IDS[2]: "no answer",
        "0000000000000004": "its answer cannot be read; does it run another version?",
    }


def test_answers_and_differences_are_bounded(monkeypatch):
    monkeypatch.setattr(retained, "TOPICS_MAX", 2)
    monkeypatch.setattr(retained, "DIFFERENCES_MAX", 1)
    topics = ["c", "b", "a"]
    found = compare_retained(
        {
            NodeId(1): answer(dict.fromkeys(topics, OLD)),
            NodeId(2): answer(dict.fromkeys(topics, NEW)),
        }
    )
    differing: Any = found["differing"]
    assert [each["topic"] for each in differing] == ["a"]
    assert (found["topics"], found["differing_count"], found["is_complete"]) == (2, 2, False)


def test_prefix_selects_topics():
    values = {"a/1": OLD, "b/1": OLD}
    assert list(answer(values, "b")[0]["values"]) == ["b/1"]
    with pytest.raises(ValueError, match="prefix must be text"):
        list_retained(values, {"prefix": 3})
