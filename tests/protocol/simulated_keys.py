"""Exchange keys for tests: a new one for each node that starts, the same in every run."""

from collections.abc import Callable
from itertools import count

from hansa.simulator.world.key_exchange import SimulatedKeyExchange


def simulated_keys() -> Callable[[], SimulatedKeyExchange]:
    numbers = count(1)
    return lambda: SimulatedKeyExchange(str(next(numbers)))
