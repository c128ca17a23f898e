"""Each alert rule fires and clears by a real fault: nine agents of a grid with certificates, and a
Prometheus that scrapes them over HTTPS with a token.

The rules are those of `deploy/`, with seconds in place of minutes. The tests share the grid; each
repairs what it breaks.
"""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.agent.admin.prometheus_server import ALERT_RULES, Prometheus, shorten_rules
from tests.agent.broker.access_control import RULES, access_control
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import Live, eventually
from tests.identity.certified import write_https_certificate
from tests.later_version import copy_later_version

from hansa.cli.main import main
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LinkProfile, LocalFederation
from hansa.testbed.mosquitto import Mosquitto

TOKEN = "scrape-token"
WINDOW = "20s"
"""Instead of 10 minutes and an hour."""
PATIENCE_S = 120.0

FAR, ORIGIN, LAST = 2, 0, 8
"""Places: corners of the grid."""
FORGETFUL = 6
"""The place with a small journal."""
BLOCKED = 5
"""The place whose broker refuses subscriptions below secret/."""
SMALL_INBOX = 30_000
SMALL_JOURNAL = 60_000


class Grid:
    """The federation, its Prometheus, and the faults."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        certificate = write_https_certificate(directory / "https.pem")
        settings = {
            "HANSA_ADMIN_TLS_CERTIFICATE": str(certificate),
            "HANSA_ADMIN_READ_TOKEN": TOKEN,
        }
        grid, profile = parse_topology("grid:3x3", 1), LinkProfile(can_cut=True)
        self.federation = LocalFederation(
            grid, settings, link_profile=profile, directory=directory / "grid"
        )
        nodes = self.federation.nodes
        nodes[FORGETFUL].environment["HANSA_DELIVERY_RETENTION_BYTES"] = str(SMALL_JOURNAL)
        nodes[LAST].environment["HANSA_DELIVERY_INBOX_BYTES"] = str(SMALL_INBOX)
        self.set_broker_lines(BLOCKED, *access_control(directory))
        ports = [node.admin_port for node in nodes]
        rules = shorten_rules(directory, WINDOW)
        self.live = Live(self.federation)
        try:
            self.live.start()
            self.prometheus = Prometheus(directory, ports, rules, certificate, TOKEN, "1s")
        except BaseException:
            self.live.close()
            raise

    def close(self) -> None:
        self.prometheus.close()
        self.live.close()

    # ------------------------------------------------------------ alerts

    def firing(self, alert: str, **labels: str) -> bool:
        labels_with_name = {"alertname": alert, **labels}
        return any(labels_with_name.items() <= found.items() for found in self.prometheus.alerts())

    def wait_until_calm(self) -> None:
        def is_calm() -> bool:
            up = self.prometheus.series('sum(up{job="hansa"})')
            return bool(up) and up[0][1] == len(self.live.nodes) and not self.prometheus.alerts()

        eventually(is_calm, "nine agents are scraped and no alert fires", PATIENCE_S)

    # ------------------------------------------------------------ faults

    def broker(self, place: int) -> Mosquitto:
        found = self.federation.nodes[place].broker
        assert isinstance(found, Mosquitto)
        return found

    def set_broker_lines(self, place: int, *lines: str) -> None:
        self.broker(place).extra_lines = lines

    def restart_broker(self, place: int) -> None:
        self.live.run(self.broker(place).stop())
        self.live.run(self.broker(place).start())

    def signal_agent(self, place: int, number: signal.Signals) -> None:
        agent = self.live.nodes[place].agent
        assert agent is not None
        agent.send_signal(number)
        if number is not signal.SIGSTOP and number is not signal.SIGCONT:
            self.live.run(agent.wait())

    def start_agent(self, place: int, **environment: str) -> None:
        self.live.run(self.federation.start_agent(place, **environment))

    def restart_agent(self, place: int, **environment: str) -> None:
        self.signal_agent(place, signal.SIGTERM)
        self.start_agent(place, **environment)

    def state(self, place: int) -> Path:
        return self.live.nodes[place].directory / "agent"

    def publish(self, qos: int, topic: str, size: int, count: int = 1, place: int = ORIGIN) -> None:
        publisher = self.live.client_of(GuaranteedClient, place)
        publisher.publish_guaranteed(qos, topic, *(b"%0*d" % (size, n) for n in range(count)))
        publisher.close()

    def end_loss_alarms(self) -> None:
        """Restart agents with alarms about losses, which last until then."""
        for place, node in enumerate(self.live.nodes):
            if node.status()["alarms"]:
                self.restart_agent(place)
                self.live.wait_converged()


@pytest.fixture(scope="module")
def running_grid(mosquitto: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    made = Grid(tmp_path_factory.mktemp("alerts"))
    yield made
    made.close()


@pytest.fixture
def grid(running_grid: Grid) -> Iterator[Grid]:
    running_grid.live.wait_converged()
    running_grid.end_loss_alarms()
    running_grid.wait_until_calm()
    yield running_grid
    running_grid.live.hang_up()


Repair = Callable[[], object]


def kill_agent(grid: Grid) -> tuple[dict[str, str], Repair]:
    grid.signal_agent(FAR, signal.SIGKILL)
    instance = f"127.0.0.1:{grid.live.nodes[FAR].admin_port}"
    return {"instance": instance}, lambda: grid.start_agent(FAR)


def kill_broker(grid: Grid) -> tuple[dict[str, str], Repair]:
    broker = grid.broker(3)
    grid.live.run(broker.kill())
    return {"node_name": "3"}, lambda: grid.live.run(broker.start())


def reload_broker_while_a_client_is_connected(grid: Grid) -> tuple[dict[str, str], Repair]:
    """Mosquitto logs no subscriptions that exist when the settings of its log change."""
    broker = grid.broker(6)
    configuration = broker.config_file.read_text()
    silent = [line for line in configuration.splitlines() if not line.startswith("log_type")]
    broker.config_file.write_text("\n".join([*silent, "log_type error"]) + "\n")
    process = broker.process
    assert process is not None
    process.send_signal(signal.SIGHUP)
    grid.live.client(6).subscribe("unseen/#")
    return {"node_name": "6"}, lambda: grid.restart_broker(6)


def deny_subscription(grid: Grid) -> tuple[dict[str, str], Repair]:
    grid.live.client(1).subscribe("secret/recipe")

    def allow() -> None:
        rules = json.loads(json.dumps(RULES))
        rules["roles"] = [{"rolename": "no secrets", "acls": []}]
        (grid.directory / "rules.json").write_text(json.dumps(rules))
        grid.restart_broker(BLOCKED)

    return {"node_name": "1"}, allow


def suspend_agent(grid: Grid) -> tuple[dict[str, str], Repair]:
    grid.signal_agent(7, signal.SIGSTOP)
    return {}, lambda: grid.signal_agent(7, signal.SIGCONT)


def cut_all_links(grid: Grid) -> tuple[dict[str, str], Repair]:
    neighbours = grid.federation.neighbours_of(LAST)
    for near in neighbours:
        grid.federation.cut_link(near, LAST)

    def restore() -> None:
        for near in neighbours:
            grid.federation.restore_link(near, LAST)

    return {"node_name": str(LAST)}, restore


def reset_link_repeatedly(grid: Grid) -> tuple[dict[str, str], Repair]:
    """Each time the agents dial again."""

    def lost() -> int:
        return grid.live.counter(1, "links lost")

    for _ in range(6):
        before = lost()
        grid.live.wait_converged()
        relay: Any = grid.federation.link_relay(1, 4)
        grid.live.run(_call(relay.reset))
        eventually(lambda before=before: lost() > before, "the link is lost")  # type: ignore[misc]
    return {"node_name": "1"}, grid.live.wait_converged


async def _call(function: Callable[[], object]) -> None:
    """Call a function in the loop of the federation."""
    function()


def refuse_login(grid: Grid) -> tuple[dict[str, str], Repair]:
    broker = grid.broker(3)
    anonymous = "allow_anonymous true"
    text = broker.config_file.read_text().replace(anonymous, "allow_anonymous false")
    process = broker.process
    assert process is not None
    broker.config_file.write_text(text)
    process.send_signal(signal.SIGHUP)
    grid.restart_agent(3)
    labels = {"node_name": "3", "alarm": "broker login refused"}
    return labels, lambda: grid.restart_broker(3)


def publish_more_than_a_broker_takes(grid: Grid) -> tuple[dict[str, str], Repair]:
    """One publication is enough."""
    grid.set_broker_lines(6, "max_packet_size 4000")
    grid.restart_broker(6)
    grid.live.wait_converged()
    grid.live.subscriber(6, "large")
    grid.publish(0, "large", 8_000)

    def accept() -> None:
        grid.set_broker_lines(6)
        grid.restart_broker(6)

    return {"node_name": "6"}, accept


def trim_what_a_receiver_misses(grid: Grid) -> tuple[dict[str, str], Repair]:
    grid.live.subscriber(FAR, "trimmed")
    grid.signal_agent(FAR, signal.SIGKILL)
    grid.publish(1, "trimmed", 1_000, 4 * SMALL_JOURNAL // 1_000, FORGETFUL)
    trimmed = "dropped: retention, not acknowledged"
    eventually(lambda: grid.live.counter(FORGETFUL, trimmed), "the journal has been trimmed")
    grid.start_agent(FAR)
    return {"node_name": str(FAR)}, grid.end_loss_alarms


def suspend_receiver(grid: Grid) -> tuple[dict[str, str], Repair]:
    grid.live.subscriber(7, "slow")
    grid.signal_agent(7, signal.SIGSTOP)
    grid.publish(1, "slow", 10, 20)
    labels = {"node_name": str(ORIGIN), "receiver_name": "7"}
    return labels, lambda: grid.signal_agent(7, signal.SIGCONT)


def suspend_broker_with_a_small_inbox(grid: Grid) -> tuple[dict[str, str], Repair]:
    grid.live.subscriber(LAST, "many")
    process = grid.broker(LAST).process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    grid.publish(1, "many", 1_000, 2 * SMALL_INBOX // 1_000)
    return {"node_name": str(LAST)}, lambda: process.send_signal(signal.SIGCONT)


def install_certificate_of_a_day(grid: Grid) -> tuple[dict[str, str], Repair]:
    def renew(days: int) -> None:
        file, ca = grid.directory / "renewed.pem", grid.federation.directory / "ca"
        command = ["ca", "renew", "4", "--ca", str(ca), "--days", str(days), "--out", str(file)]
        assert main(command) == 0
        assert main(["join", str(file), "--state", str(grid.state(4))]) == 0

    renew(1)
    return {"node_name": "4"}, lambda: renew(365)


def upgrade_one_agent(grid: Grid) -> tuple[dict[str, str], Repair]:
    source = copy_later_version(grid.directory / "later") / "src"
    grid.restart_agent(1, PYTHONPATH=str(source))
    return {}, lambda: grid.restart_agent(1)


FAULTS: dict[str, Callable[[Grid], tuple[dict[str, str], Repair]]] = {
    "HansaAgentDown": kill_agent,
    "HansaBrokerDisconnected": kill_broker,
    "HansaObserverIncomplete": reload_broker_while_a_client_is_connected,
    "HansaInterestNotInstalled": deny_subscription,
    "HansaNodeUnreachable": suspend_agent,
    "HansaNodeIsolated": cut_all_links,
    "HansaLinksFlap": reset_link_repeatedly,
    "HansaAlarm": refuse_login,
    "HansaPublicationsDropped": publish_more_than_a_broker_takes,
    "HansaGap": trim_what_a_receiver_misses,
    "HansaReceiverBehind": suspend_receiver,
    "HansaInboxFull": suspend_broker_with_a_small_inbox,
    "HansaCertificateExpires": install_certificate_of_a_day,
    "HansaVersionsDiffer": upgrade_one_agent,
}
"""For each rule a function that breaks something; it returns labels of the alert and the repair."""


def test_every_alert_rule_has_a_fault():
    lines = ALERT_RULES.read_text().splitlines()
    names = [line.split()[-1] for line in lines if line.strip().startswith("- alert:")]
    assert names == list(FAULTS)


@pytest.mark.long
@pytest.mark.parametrize("alert", FAULTS)
def test_alert_fires_by_a_real_fault_and_clears(grid, alert):
    assert not grid.firing(alert)
    with ExitStack() as repairs:
        labels, repair = FAULTS[alert](grid)
        repairs.callback(repair)
        eventually(lambda: grid.firing(alert, **labels), f"{alert} with {labels}", PATIENCE_S)
    eventually(lambda: not grid.firing(alert, **labels), f"{alert} has cleared", PATIENCE_S)
