"""One Spark for all tests of the pipeline: a JVM takes longer to start than most tests to run."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hansa.pipeline.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
TIMEOUT_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Be patient: the first test waits for a JVM."""
    for item in items:
        if item.path.is_relative_to(HERE) and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """The session; tests that need it are skipped where the extra is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("Spark is not installed: `./run test tests/pipeline` installs it")
    started = session(log=tmp_path_factory.mktemp("spark") / "spark.log")
    yield started
    started.stop()
