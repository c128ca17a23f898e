"""A client that subscribed at any time and in any way receives what it should, at every broker.

The results are stored in `results`; the table in docs/brokers.md is made from them. After an
intended change run `REWRITE=1 ./run test --long tests/agent/other_brokers/test_matrix.py` and read
the difference.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agent.other_brokers.brokers import BUILD_TIMEOUT_S
from tests.agent.other_brokers.matrix import (
    CASES,
    MOSQUITTO_20,
    MOSQUITTO_PROXY,
    Case,
    Play,
    Site,
    store,
    table,
)
from tests.agent.other_brokers.test_others import Stage

from hansa.cli import doctor
from hansa.testbed.mosquitto import free_port

PAGE = Path(__file__).parents[3] / "docs" / "brokers.md"
BEGIN, END = "<!-- sessions: begin -->\n", "<!-- sessions: end -->\n"


@pytest.fixture
def stage(mosquitto: str, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def play(case: Case, stage: Stage, directory: Path) -> None:
    store(case, Play(stage, stage.other(case.kind), case, directory).run())


@pytest.mark.timeout(900)
def test_sessions_of_every_kind_are_served_at_mosquitto(stage, tmp_path):
    play(MOSQUITTO_20, stage, tmp_path)


@pytest.mark.long
@pytest.mark.xdist_group("other brokers")
@pytest.mark.timeout(BUILD_TIMEOUT_S + 900)
@pytest.mark.parametrize("case", CASES[1:], ids=lambda case: case.name)
def test_sessions_of_every_kind_are_served(case, stage, tmp_path):
    play(case, stage, tmp_path)


FEDERATED = [case for case in CASES if case.observer != "topics" and case != MOSQUITTO_PROXY]
"""Each make once. Not amqtt: it delivers everything at QoS 2, and RabbitMQ closes connections that
publish at QoS 2."""

MAKES_MIN = 6


@pytest.mark.long
@pytest.mark.xdist_group("other brokers")
@pytest.mark.timeout(BUILD_TIMEOUT_S + 900)
def test_all_makes_form_one_federation(stage, tmp_path):
    """Each broker is observed as recommended; a publication at any of them reaches the clients of
    all, once and in order."""
    sites: list[Site] = []
    missing: list[str] = []
    link_port = free_port()
    for case in FEDERATED:
        try:
            broker = stage.other(case.kind)
        except pytest.skip.Exception as error:
            missing.append(f"{case.kind}: {error}")
            continue
        link = {"link_neighbours": f"127.0.0.1:{link_port}"} if sites else {"link_port": link_port}
        sites.append(Site(stage, broker, case, tmp_path / f"state-{len(sites)}", **link))
    if len(sites) < MAKES_MIN:
        pytest.skip(f"only {len(sites)} makes: {'; '.join(missing)}")
    subscribers = [site.connect("reader").subscribe_qos2("all/#") for site in sites]
    for site in sites:
        site.wait_until_installed("all/#", node_count=len(sites))
    payloads = [b"%d" % number for number in range(20)]
    for number, site in enumerate(sites):
        site.connect("writer").publish_guaranteed(1, f"all/{number}", *payloads)
    expected = {f"all/{number}": payloads for number in range(len(sites))}
    for site, subscriber in zip(sites, subscribers, strict=True):
        subscriber.read_until(len(sites) * len(payloads), pause=1.0)
        found: dict[str, list[bytes]] = {}
        for each in subscriber.received:
            found.setdefault(each.topic, []).append(each.payload)
        assert found == expected, site.case.name


@pytest.mark.long
@pytest.mark.xdist_group("other brokers")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "recognised"),
    [
        ("HiveMQ", '✓ HiveMQ: use observer = "proxy" ([proxy] port'),
        ("Mosquitto 2.1", '✓ Mosquitto: use observer = "mosquitto"'),
    ],
)
def test_doctor_names_make_class_and_observer(kind, recognised, stage, capsys):
    assert doctor.run([f"127.0.0.1:{stage.other(kind).port}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert recognised in said
    # A Java broker that has just started on busy cores may answer too late for the better class.
    assert re.search("guaranteed delivery: (exactly|at-least)-once", said)
    assert "Add to mosquitto.conf" not in said


def test_table_in_the_documentation_is_made_from_the_results():
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if os.environ.get("REWRITE"):
        PAGE.write_text(before + BEGIN + table() + END + after)
    assert PAGE.read_text() == before + BEGIN + table() + END + after
