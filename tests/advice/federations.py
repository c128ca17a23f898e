"""Recorded federations for tests."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hansa.advice.federation import RecordedFederation, SampledPublication, TopicFlow
from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.topologies import parse_topology

RTT_MS = 20.0
EVERY_S = 0.05


def name(place: int) -> str:
    return f"n{place:02d}"


def federation(
    word: str,
    interest: Mapping[int, Sequence[str]],
    flows: Sequence[tuple[int, str]],
    cores: Mapping[str, int] | None = None,
    publications: int = 40,
) -> RecordedFederation:
    """Return a federation with equal links, on which all flows publish equally often."""
    topology = parse_topology(word, 1)
    return RecordedFederation(
        nodes=tuple(name(place) for place in range(topology.nodes)),
        links={(name(a), name(b)): RTT_MS for a, b in topology.links},
        interest={name(place): frozenset(filters) for place, filters in interest.items()},
        flows=tuple(TopicFlow(name(place), topic, publications, 100) for place, topic in flows),
        cores={group: name(place) for group, place in (cores or {}).items()},
        sample=tuple(
            SampledPublication(EVERY_S * turn + 0.001 * number, name(place), topic, 100)
            for turn in range(publications)
            for number, (place, topic) in enumerate(flows)
        ),
    )


def with_protocol(recorded: RecordedFederation, **changes: Any) -> RecordedFederation:
    return replace(recorded, protocol=replace(ProtocolSettings(), **changes))
