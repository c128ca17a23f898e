"""Whom to be linked to: the section `[topology]` of an agent's settings."""

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from hansa.agent.links.settings import LinkSettings, parse_neighbour
from hansa.errors import UsageError

UNSPECIFIED_HOSTS = ("0.0.0.0", "::", "[::]", "")

PAPER_VARIABLES = {
    "TOPOLOGY_MANAGER_URL": "HANSA_TOPOLOGY_MANAGER",
    "ADVERTISED_LISTENER": "HANSA_TOPOLOGY_ADVERTISED_BROKER",
}
"""The variables of Bevilaqua 2023's federator, and what they are here."""


@dataclass(frozen=True, slots=True)
class TopologySettings:
    """Whom to be linked to, if not only to `[link] neighbours`."""

    manager: str = ""
    """Where the topology manager is, as http://host:8080; it says whom to be linked to. Without it,
    or while it is away, heal decides."""
    token: str = field(default="", repr=False)
    """What the manager lets in, if it wants one."""
    heal: bool = False
    """Whether to link to other members by itself when neighbours are lost or the federation is
    split. With a manager it always does, while that is away."""
    degree_max: int = 5
    """Neighbours at most, as far as this agent decides; a manager's value counts more. From 3."""
    advertised_link: str = ""
    """Where other agents reach this one, if that is not [link] host and port."""
    advertised_broker: str = ""
    """Where the broker is for others, as tcp://host:1883; only told to the manager."""
    announcements: bool = False
    """Whether to hear of changes at the broker (federated_topology_ann, as in the paper) instead of
    from the manager's stream. The manager must reach advertised_broker."""
    tags: tuple[str, ...] = ()
    """Where this is, for the manager: nodes with a tag in common are near."""

    @property
    def is_enabled(self) -> bool:
        """Whether anybody but the file decides about links."""
        return bool(self.manager) or self.heal


def check_topology(topology: TopologySettings, link: LinkSettings) -> None:
    """Refuse what cannot work, naming the setting and what to change."""
    if topology.manager:
        if not _is_web_address(topology.manager):
            raise UsageError(
                f"[topology] manager must be http://host:port, not {topology.manager!r}"
            )
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


def _is_web_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port that cannot be, or half an address of IPv6
        return False
