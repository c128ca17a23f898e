"""Agents are upgraded one after the other while clients publish: state is kept, nothing is lost."""

import itertools
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import Live, eventually
from tests.later_version import LATER, copy_later_version

from hansa import __version__
from hansa.protocol.wire.frames import PROTOCOL_VERSION
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation

BATCH = 20
PAUSE_S = 0.1
"""Seconds between two batches: slow machines need minutes for an upgrade."""
MESSAGES_MAX = 80_000
"""Fewer than a broker queues for a client that does not read meanwhile."""
PATIENCE_S = 120.0


class Publisher:
    """Publishes numbers at QoS 1 and 2 alternately, batch after batch, in a thread."""

    def __init__(self, client: GuaranteedClient) -> None:
        self.payloads: list[bytes] = []
        """Accepted by the broker."""
        self._client = client
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        numbers = itertools.count()
        while not self._is_ended.wait(PAUSE_S) and len(self.payloads) < MESSAGES_MAX:
            for qos in (1, 2):
                batch = [b"%d qos %d" % (next(numbers), qos) for _ in range(BATCH)]
                self._client.publish_guaranteed(qos, f"load/{qos}", *batch)
                self.payloads += batch

    def wait_for_more_than(self, count: int) -> None:
        eventually(lambda: len(self.payloads) > count, "load meanwhile", PATIENCE_S)

    def end(self) -> None:
        self._is_ended.set()
        self._thread.join()


@pytest.fixture
def line(mosquitto: str) -> Iterator[Live]:
    live = Live(LocalFederation(parse_topology("line:3", 1), {}))
    try:
        live.start()
        live.wait_converged()
        yield live
    finally:
        live.close()


def upgrade(live: Live, number: int, source: Path) -> None:
    """Stop an agent as a service manager does, and start that of another source tree."""
    agent = live.nodes[number].agent
    assert agent is not None
    agent.send_signal(signal.SIGTERM)
    assert live.run(agent.wait()) == 0
    live.run(live.federation.start_agent(number, PYTHONPATH=str(source)))


def wait_for_version(live: Live, number: int, expected: str) -> None:
    def holds() -> bool:
        try:
            return live.nodes[number].status()["version"] == expected
        except OSError:  # it does not answer yet
            return False

    eventually(holds, f"version {expected}", PATIENCE_S)


def wait_for_log(live: Live, number: int, text: str) -> None:
    eventually(lambda: text in live.log(number), text, PATIENCE_S)


@pytest.mark.long
def test_rolling_upgrade_under_load_loses_nothing(line, tmp_path):
    source = copy_later_version(tmp_path / "later") / "src"
    ids = [node.status()["node"] for node in line.nodes]
    subscriber = line.client_of(GuaranteedClient, 2).subscribe_qos2("load/#")
    line.wait_installed(2, "load/#")
    publisher = Publisher(line.client_of(GuaranteedClient, 0))
    try:
        for number in (1, 0, 2):
            before = len(publisher.payloads)
            wait_for_version(line, number, __version__)
            upgrade(line, number, source)
            wait_for_version(line, number, LATER)
            line.wait_converged()
            publisher.wait_for_more_than(before)
    finally:
        publisher.end()
    expected = publisher.payloads
    heard = subscriber.read_until(len(expected), pause=2.0, patience=PATIENCE_S)
    assert set(heard) == set(expected)
    counts = Counter(heard)
    assert {text: n for text, n in counts.items() if n > 1 and text.endswith(b"qos 2")} == {}
    for qos in (b"qos 1", b"qos 2"):
        order = [int(text.split()[0]) for text in dict.fromkeys(heard) if text.endswith(qos)]
        assert order == sorted(order)
    assert [node.status()["node"] for node in line.nodes] == ids


@pytest.mark.long
def test_other_protocol_version_is_refused_with_the_reason_until_both_are_upgraded(line, tmp_path):
    newer = PROTOCOL_VERSION + 1
    source = copy_later_version(tmp_path / "later", protocol_version=newer) / "src"
    subscriber = line.client_of(GuaranteedClient, 1).subscribe_qos2("mixed/#")
    line.wait_installed(1, "mixed/#")
    publisher = line.client_of(GuaranteedClient, 0)
    upgrade(line, 1, source)
    wait_for_log(line, 0, f"protocol version {newer} of ")
    wait_for_log(line, 1, f"protocol version {PROTOCOL_VERSION} of ")
    publisher.publish_guaranteed(1, "mixed/a", b"while they differ")
    for number in (0, 2):
        upgrade(line, number, source)
    assert subscriber.read_until(1, patience=PATIENCE_S) == [b"while they differ"]
