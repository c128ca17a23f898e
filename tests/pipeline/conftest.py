"""One Spark session and one lake for all tests of the pipeline, because both are slow to create."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.recordings import Recording, captured, journal, recorded, simulated, telemetry

from hansa.cli.main import main
from hansa.mqtt.properties import Property, encode_properties
from hansa.pipeline.session import BRIEF, JAVA_OPTIONS, session
from hansa.simulator.actions import ClientSubscribe, CrashAgent, ScheduledAction
from hansa.simulator.options import Phases, SimulationOptions
from hansa.simulator.run import simulate
from hansa.simulator.topologies import parse_topology
from hansa.telemetry import schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
TIMEOUT_S = 900

QUICK = {
    # Classes are not verified: half of the time to load them.
    JAVA_OPTIONS: (
        f"{BRIEF[JAVA_OPTIONS]} -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    ),
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}
"""Settings for small tables. Tests that run the command as a process use the default settings."""

PAYLOADS = """
[temperatures]
filter = "plant/+/temp"
columns = "value double, unit string"
"""
LIVE: list[schema.AnyRecord] = [
    schema.NodeStarted(5, "<a&b>", "1"),
    schema.LinkUp(9, 2),
    # A link that came up before the first record, and a clock that was set back.
    schema.ControlFrameSent(
        20,
        "CoreAnnouncement",
        30,
        3,
        core_id=3,
        announcement_sequence=1,
        distance=0,
        core_incarnation=1,
    ),
    schema.InterestAdded(30, "[red]x[/y]"),
    schema.InterestRemoved(10, "[red]x[/y]"),
]
SEEDS = (1, 4, 5)
LINE = ("--topology", "line:8", "--subscribe", "7:a/#", "--publish", "0:a/x")
CRASH = SimulationOptions(
    parse_topology("ring:4", 1),
    seed=1,
    schedule=(ScheduledAction(2.0, ClientSubscribe(2, "a/#")), ScheduledAction(4.0, CrashAgent(1))),
    phases=Phases(warm_up_s=12.0),
)
"""Node 1 crashes and does not come back."""
RING = ("--topology", "ring:3", "--subscribe", "0:a/#", "--publish", "1:a/x")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the timeout: the first test waits for a JVM."""
    for item in items:
        if item.path.is_relative_to(HERE) and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """The session; tests that need it are skipped if the extra is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("Spark is not installed: `./run test tests/pipeline` installs it")
    started = session(settings=QUICK, log=tmp_path_factory.mktemp("spark") / "spark.log")
    yield started
    started.stop()


@pytest.fixture(scope="session")
def recording(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Various recordings, and the lake that `hansa pipeline run` made of them; read-only.

    Random simulations, a line with a long path, a good ring, one with a crash, telemetry of an
    agent, and a journal with various payloads.
    """
    root = tmp_path_factory.mktemp("recording")
    made = simulated(root, SEEDS)
    for name, options in (("line", LINE), ("ring", RING)):
        log = made.source / name
        assert main(["simulate", *options, "--seed", "1", "--telemetry", str(log), "--json"]) == 0
        made.add_log(name, log)
    simulate(CRASH, telemetry=made.source / "crash")
    made.add_log("crash", made.source / "crash")
    telemetry(made.source / "live", 1, LIVE)
    made.add_log("live", made.source / "live", run="live")
    payloads = [b'{"value": 21.5, "unit": "C"}', b"no JSON", b"\xff\xfe", b'{"value": "warm"}']
    recorded_messages = [
        captured(n, "plant/1/temp", payload) for n, payload in enumerate(payloads, 1)
    ]
    properties = encode_properties(
        (
            (Property.CONTENT_TYPE, "text/plain"),
            (Property.MESSAGE_EXPIRY_INTERVAL, 60),
            (Property.USER_PROPERTY, ("unit", "C")),
        )
    )
    recorded_messages.append(captured(5, "plant/1/note", b"warm", qos=2, properties=properties))
    journal(made.source / "n5", 5, [*recorded_messages, *(recorded(n) for n in range(1, 8))])
    (root / "payloads.toml").write_text(PAYLOADS)
    given = ["--lake", str(made.lake), "--payloads", str(root / "payloads.toml")]
    assert main(["pipeline", "run", *given, str(made.source)]) == 0
    return made
