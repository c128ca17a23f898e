"""Strategies are found by the name that the settings give."""

import pytest

from hansa.errors import UsageError
from hansa.protocol.graph import Graph
from hansa.protocol.groups import GroupIndex
from hansa.protocol.settings import Metric, ProtocolSettings
from hansa.protocol.strategies import STRATEGIES, make_strategy
from hansa.protocol.strategies.base import Surroundings
from hansa.protocol.vocabulary import MANAGEMENT, NodeId


def surroundings(strategy: str) -> Surroundings:
    """A node all alone."""
    return Surroundings(
        node=NodeId(1),
        settings=ProtocolSettings(strategy=strategy),
        graph=Graph(NodeId(1), Metric.HOPS),
        index=GroupIndex(depth=0),
        neighbours={},
        cost=lambda node: 1,
        capacity=lambda node: 1.0,
        incarnation=lambda: 1,
        claims_of=lambda node: (),
        groups_of=lambda node: (),
        claim=lambda added, removed, now: [],
    )


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_is_made_by_its_name_and_starts_alone(name):
    made = make_strategy(surroundings(name))
    assert (made.groups(), made.core_views()) == ([MANAGEMENT], {})


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(UsageError) as caught:
        make_strategy(surroundings("mash"))
    assert str(caught.value) == f"unknown strategy 'mash'; there is: {', '.join(STRATEGIES)}"
