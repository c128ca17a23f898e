"""The section `[topology]` of an agent's settings."""

from dataclasses import dataclass, field

from hansa.agent.http_client import parse_server_url
from hansa.agent.links.settings import LinkSettings, parse_neighbour
from hansa.agent.topology.member_connection import PORT, SCHEME
from hansa.errors import UsageError

UNSPECIFIED_HOSTS = ("0.0.0.0", "::", "[::]", "")

PAPER_VARIABLES = {
    "TOPOLOGY_MANAGER_URL": "HANSA_TOPOLOGY_MANAGER",
    "ADVERTISED_LISTENER": "HANSA_TOPOLOGY_ADVERTISED_BROKER",
}
"""Environment variables of the federator of Bevilaqua 2023, and the settings that they mean
here."""


@dataclass(frozen=True, slots=True)
class TopologySettings:
    """Links beyond `[link] neighbours`."""

    manager: str = ""
    """Address of the topology manager, which assigns neighbours: as hansa://host:10503 with the
    certificate of this node, or as http://host:8080 with a token. Without it, or while it is
    unreachable, heal decides."""
    token: str = field(default="", repr=False)
    """Token of a manager that takes no certificates, if it requires one."""
    operator_token: str = field(default="", repr=False)
    """Token of scope operate at the manager. The page of this agent uses it to show the manager's
    proposals and to apply them for operators of this agent."""
    heal: bool = False
    """Whether to link to other nodes without a manager when neighbours are lost or the
    federation is partitioned. With a manager this is always on while the manager is unreachable."""
    degree_max: int = 5
    """Most neighbours that this agent chooses; a manager's value takes precedence. At least 3."""
    advertised_link: str = ""
    """Address of this agent for others, if it is not [link] host and port."""
    advertised_broker: str = ""
    """Address of the broker for others, as tcp://host:1883; only sent to the manager."""
    announcements: bool = False
    """Whether to receive changes through the broker (federated_topology_ann, as in the paper)
    instead of the manager's stream. The manager must reach advertised_broker."""
    tags: tuple[str, ...] = ()
    """Locations, for the manager: nodes with a common tag are near."""

    @property
    def is_enabled(self) -> bool:
        """Whether links beyond the configured ones are managed."""
        return bool(self.manager) or self.heal


def check_topology(topology: TopologySettings, link: LinkSettings) -> None:
    """Raise UsageError for settings that cannot work, with the setting and what to change."""
    if topology.manager:
        schemes = ("http", "https", SCHEME)
        parts = parse_server_url("[topology] manager", topology.manager, schemes)
        if parts.scheme == SCHEME and parts.port is None:
            raise UsageError(f"[topology] manager must name its port, as {SCHEME}://HOST:{PORT}")
    if not 3 <= topology.degree_max <= 64:
        raise UsageError(f"[topology] degree_max must be from 3 to 64, not {topology.degree_max}")
    if topology.advertised_link:
        parse_neighbour(topology.advertised_link, link.transport)
    elif (
        topology.is_enabled
        and link.transport != "mqtt"
        and (link.host in UNSPECIFIED_HOSTS or not link.port)
    ):
        raise UsageError(
            "[topology] advertised_link must say where others reach this agent:"
            f" {link.host}:{link.port} does not"
        )
