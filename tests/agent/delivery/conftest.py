"""What several tests of guaranteed delivery need."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agent.delivery.trouble import Trouble
from tests.agent.process import Scene


@pytest.fixture
def trouble(scene: Scene, tmp_path: Path) -> Iterator[Trouble]:
    """An origin and a receiver, not started."""
    made = Trouble(scene, tmp_path)
    yield made
    made.close()
