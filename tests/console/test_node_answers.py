"""Answers of nodes about themselves: one in another form is recognised."""

from typing import Any

import pytest
from tests.console.documents import ALPHA, summary

from hansa.console.node_answers import NodeSummary, RememberedEvent, has_form

EVENT = {"number": 1, "at_ms": 2, "kind": "link up", "node": "", "name": "", "later": 3}


def test_summary_may_have_fields_of_later_versions():
    assert has_form({**summary("alpha", ALPHA), "later": [1]}, NodeSummary)


@pytest.mark.parametrize(
    "answer",
    [
        *("text", None, [], {}),
        summary("alpha", ALPHA, clock_ms=1 << 53),
        summary("alpha", ALPHA, counters={"captured": -1}),
        summary("alpha", ALPHA, counters={"captured": "1"}),
        summary("alpha", ALPHA, alarms=["x"]),
    ],
)
def test_summary_in_another_form_is_recognised(answer: Any):
    assert not has_form(answer, NodeSummary)


@pytest.mark.parametrize(
    ("answer", "is_readable"),
    [([EVENT], True), ([], True), ([{**EVENT, "kind": 1}], False), ({"events": []}, False)],
)
def test_history_is_a_list_of_events(answer: Any, is_readable: bool):
    assert has_form(answer, list[RememberedEvent]) is is_readable
