"""Fixtures of the delivery tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agent.delivery.pair import Pair
from tests.agent.process import Scene


@pytest.fixture
def pair(scene: Scene, tmp_path: Path) -> Iterator[Pair]:
    """An origin and a receiver, not started."""
    made = Pair(scene, tmp_path)
    yield made
    made.close()
