"""One site to set up: its broker, its node, its service."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hansa.agent.broker.settings import BrokerSettings
from hansa.agent.exposure import is_loopback
from hansa.agent.links.link import Address
from hansa.agent.links.settings import LINK_PORT, parse_address
from hansa.agent.settings import ADMIN_PORT
from hansa.errors import UsageError
from hansa.launcher import command_line
from hansa.protocol.topics import check_filter
from hansa.setup.host import (
    AGENT_UNIT,
    AGENT_USER,
    BROKER_UNIT,
    agent_can_read,
    run_systemctl,
    runs_systemd,
    unit_text,
    wait_for_agent,
)
from hansa.setup.mosquitto import MosquittoSetup
from hansa.setup.node import (
    ENVIRONMENT_FILE,
    PASSWORD_VARIABLE,
    NodePlan,
    make_password,
    save_password,
    saved_password,
)
from hansa.testbed.probes.report import BrokerReport, add_configuration, check_broker

DEFAULT_USERNAME = "hansa"
ALL_INTERFACES = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """What the operator says about a site."""

    name: str
    config: Path
    broker: BrokerSettings
    mosquitto_conf: Path
    topics: tuple[str, ...] = ()
    """Topics that the agent may use, if the broker has an access list."""
    address: str = ""
    """Where other nodes reach this one; it accepts no links without it."""
    neighbours: tuple[str, ...] = ()
    admin_port: int = ADMIN_PORT


class SiteSetup:
    """Sets up a site; `say` gets a line for each change."""

    def __init__(self, options: SiteOptions, say: Callable[[str], None]) -> None:
        """Raise UsageError for options that cannot work."""
        for topic_filter in options.topics:
            check_filter(topic_filter)
        for address in (*options.neighbours, *filter(None, [options.address])):
            parse_address(address)
        self._options = options
        self._say = say
        self.broker = options.broker
        if options.broker.username:
            password = saved_password(options.config)
            self.broker = replace(self.broker, password=password)

    # ------------------------------------------------------------ the broker

    def find_files(self) -> None:
        """Use the files of a Mosquitto on this host, if the agent can read them."""
        conf = self._options.mosquitto_conf
        if is_loopback(self.broker.host) and conf.exists():
            self._use_files(MosquittoSetup(conf))

    def _use_files(self, setup: MosquittoSetup) -> None:
        if agent_can_read(setup.conf):
            self.broker = replace(self.broker, config_file=str(setup.conf.absolute()))
        file = setup.log_file
        if file is not None and agent_can_read(file):
            self.broker = replace(self.broker, log_file=str(file))
        elif file is not None:
            self._say(
                f"the agent (user {AGENT_USER}) cannot read {file}, which shows subscriptions from"
                " before its start; --prepare-broker lets it"
            )

    def prepare_broker(self) -> None:
        """Change the configuration of the Mosquitto, and restart it."""
        if not is_loopback(self.broker.host):
            raise UsageError(
                f"--prepare-broker changes the Mosquitto of this host, and {self.broker.host} is"
                " another one: run it there, or prepare that broker by hand"
            )
        setup = MosquittoSetup(self._options.mosquitto_conf)
        if setup.requires_login:
            self._give_user(setup)
        setup.add_settings()
        setup.open_log_file()
        for change in setup.changes:
            self._say(f"changed {change}")
        if setup.changes and not runs_systemd():
            raise UsageError(
                "the broker is prepared. Restart it, as systemd does not run here, and repeat this"
                " command"
            )
        if setup.changes:
            run_systemctl("restart", BROKER_UNIT)
        self._use_files(setup)

    def _give_user(self, setup: MosquittoSetup) -> None:
        name = self.broker.username or DEFAULT_USERNAME
        password = saved_password(self._options.config)
        if setup.has_user(name) and not password:
            raise UsageError(
                f"{setup.conf}: its password file has a user {name!r} already: give its password in"
                f" {PASSWORD_VARIABLE}, or another name with --username"
            )
        password = password or make_password()
        save_password(self._options.config, password)  # before the broker knows it, for a retry
        if not setup.has_user(name):
            setup.add_user(name, password)
        setup.add_rights(name, self._options.topics or ("#",))
        self.broker = replace(self.broker, username=name, password=password)

    def check_broker(self, on_progress: Callable[[str], None]) -> BrokerReport:
        """Look at the broker as `hansa doctor` does."""
        address = replace(
            self.broker.address(), credentials_source=f"--username and {PASSWORD_VARIABLE}"
        )
        log_file = Path(self.broker.log_file) if self.broker.log_file else None
        report = asyncio.run(check_broker(address, "", log_file, on_progress))
        if self.broker.config_file:
            report = add_configuration(report, self.broker.config_file)
        if report.is_usable and report.observer != "mosquitto":
            raise UsageError(
                "hansa init writes settings for Mosquitto only. Write them by hand, with observer ="
                f' "{report.observer}": docs/brokers.md, docs/node.toml'
            )
        return report

    # ------------------------------------------------------------ the node

    def plan(self, state: Path) -> NodePlan:
        """Return the node as its settings will say."""
        options = self._options
        link = parse_address(options.address) if options.address else None
        return NodePlan(
            name=options.name,
            broker=self.broker,
            state=state,
            listen=_listen_address(link),
            link_port=0 if link is None or link.port == LINK_PORT else link.port,
            admin_port=0 if options.admin_port == ADMIN_PORT else options.admin_port,
            advertised_link="" if link is None else str(link),
            neighbours=options.neighbours,
        )

    def has_service(self) -> bool:
        """Whether systemd runs an agent with these settings, once it is started."""
        words = f" --config {self._options.config}\n"
        return runs_systemd() and words in unit_text(AGENT_UNIT)

    def start_service(self) -> None:
        """Start the agent now and with the host; return when it answers."""
        run_systemctl("enable", "--now", AGENT_UNIT)
        wait_for_agent(self._options.admin_port)
        self._say(f"the service {AGENT_UNIT} runs, and starts with the host")

    def start_command(self) -> str:
        """Return the command that starts the agent."""
        config = self._options.config
        if self.has_service():
            return f"systemctl enable --now {AGENT_UNIT}"
        secrets = config.with_name(ENVIRONMENT_FILE)
        load = f"set -a; . {secrets}; set +a; " if secrets.exists() else ""
        return load + command_line("agent", "--config", str(config))


def host_name() -> str:
    return socket.gethostname()


def _listen_address(link: Address | None) -> str:
    if link is None:
        return ""
    return link.host if is_loopback(link.host) else ALL_INTERFACES
