"""Every strategy implements the interface: names, arguments and results."""

import inspect

import pytest

from hansa.protocol.routing import STRATEGIES
from hansa.protocol.routing.base import RoutingStrategy

pytestmark = pytest.mark.pure

METHODS = [
    name for name, _ in inspect.getmembers(RoutingStrategy, inspect.isfunction) if name[0] != "_"
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_a_strategy_has_every_method_of_the_interface(strategy, method):
    ours = inspect.signature(getattr(RoutingStrategy, method))
    assert inspect.signature(getattr(strategy, method)) == ours


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_a_strategy_shows_nothing_but_the_interface(strategy):
    shown = [name for name, _ in inspect.getmembers(strategy, inspect.isfunction)]
    assert [name for name in shown if name[0] != "_"] == METHODS
