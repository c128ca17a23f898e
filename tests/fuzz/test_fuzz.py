"""Everything that arrives over the network: no exception, whatever the bytes are."""

import random
import resource

import pytest
from tests.fuzz.__main__ import fuzz
from tests.fuzz.all_targets import TARGETS

INPUTS = {
    "handshake": 200,
    "stream": 500,
    "datagrams": 20,
    "frames": 500,
    "members": 300,
    "http": 100,
    "issuers": 60,
    "documents": 2_000,
}
GROWTH_KB_MAX = 200_000


@pytest.mark.parametrize("name", TARGETS)
def test_some_inputs(name):
    target, rng = TARGETS[name](), random.Random(18)
    try:
        for _ in range(INPUTS[name]):
            target.run(rng)
    finally:
        target.close()


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TARGETS)
def test_a_minute_of_inputs(name):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert fuzz(name, 60.0, first_seed=1) > 1_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KB_MAX
