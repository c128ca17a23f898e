"""Which strategies a live test is tried with: the default in every run, the others with --long."""

import pytest

from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.strategies import STRATEGIES

DEFAULT = ProtocolSettings().strategy
OTHERS = [name for name in STRATEGIES if name != DEFAULT]
EVERY = [DEFAULT, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)]
"""As parameters of a fixture or a test."""

SETTING = "HANSA_PROTOCOL_STRATEGY"
