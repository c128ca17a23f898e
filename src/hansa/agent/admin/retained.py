"""Retained values that nodes disagree about: `/retained`.

Each node reports which version of each value it regards as the newest one. While a value is being
forwarded, nodes differ for a moment; a difference that lasts is a fault. Payloads are not shown.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec

from hansa.agent.admin.status import format_node_id
from hansa.agent.queries import QueryFailed, Question
from hansa.protocol.model import NodeId
from hansa.protocol.retained.digest import RetainedEntry

TOPICS_MAX = 1_000
"""Topics in one answer: with random digests about 30 kilobytes."""

DIFFERENCES_MAX = 200
"""Topics with different values in one document."""


class _RetainedAnswer(msgspec.Struct, frozen=True):
    values: dict[str, tuple[int, str, str]]
    """Per topic: version, owner and digest; an empty digest if the value was deleted."""
    is_complete: bool


def list_retained(retained: Mapping[str, RetainedEntry], question: Question) -> dict[str, object]:
    """Answer `retained`: the first topics with a prefix, in order."""
    prefix = question.get("prefix", "")
    if not isinstance(prefix, str):
        raise ValueError("retained: the prefix must be text")
    topics = sorted(topic for topic in retained if topic.startswith(prefix))
    return {
        "values": {
            topic: (entry.version, format_node_id(entry.owner), entry.digest.hex())
            for topic in islice(topics, TOPICS_MAX)
            for entry in (retained[topic],)
        },
        "is_complete": len(topics) <= TOPICS_MAX,
    }


def compare_retained(
    answers: Mapping[NodeId, tuple[Any, float] | QueryFailed],
) -> dict[str, object]:
    """Return the topics that nodes disagree about. A node that knows nothing of a topic does not
    disagree: no client subscribes to it there."""
    by_topic: dict[str, dict[str, tuple[int, str, str]]] = {}
    problems: dict[str, str] = {}
    is_complete = True
    for node, answer in answers.items():
        name = format_node_id(node)
        if isinstance(answer, QueryFailed):
            problems[name] = str(answer)
            continue
        try:
            found = msgspec.convert(answer[0], _RetainedAnswer)
        except msgspec.ValidationError:
            problems[name] = "its answer cannot be read; does it run another version?"
            continue
        is_complete = is_complete and found.is_complete
        for topic, value in found.values.items():
            by_topic.setdefault(topic, {})[name] = value
    differing = [
        {
            "topic": topic,
            "nodes": {
                node: {"version": str(version), "owner": owner, "digest": digest}
                for node, (version, owner, digest) in values.items()
            },
        }
        for topic, values in sorted(by_topic.items())
        if len({(version, digest) for version, _, digest in values.values()}) > 1
    ]
    return {
        "topics": len(by_topic),
        "differing": differing[:DIFFERENCES_MAX],
        "differing_count": len(differing),
        "is_complete": is_complete,
        "problems": problems,
    }
