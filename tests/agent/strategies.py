"""Strategies of live tests: the default in every run, the others with --long."""

import pytest

from hansa.protocol.routing import STRATEGIES
from hansa.protocol.settings import ProtocolSettings

DEFAULT = ProtocolSettings().strategy
OTHERS = [name for name in STRATEGIES if name != DEFAULT]
EVERY = [DEFAULT, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)]
"""Parameters of a fixture or a test."""

SETTING = "HANSA_PROTOCOL_STRATEGY"
