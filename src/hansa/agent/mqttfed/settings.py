"""The section `[mqtt_fed]` of an agent's settings, for mode = "mqtt-fed"."""

from dataclasses import dataclass

from hansa.agent.links.link import Address
from hansa.agent.links.settings import BROKER_PORT, parse_address
from hansa.errors import UsageError
from hansa.mqttfed.messages import ID_MAX

NO_ID = -1
REDUNDANCY_MAX = 16


@dataclass(frozen=True, slots=True)
class MqttFedSettings:
    """A node of mqtt-fed; beacon_interval is that of [broker]."""

    id: int = NO_ID
    """Unique id of this node; the smaller one of two cores wins. Required."""
    neighbours: tuple[str, ...] = ()
    """Brokers to publish at, as id@host:port; their federators must name this node, too.
    Credentials are in [link.mqtt]."""
    redundancy: int = 2
    """Parents at the same distance from the core that get every publication."""
    announce_interval: float = 10.0
    """Seconds between announcements of a core, core_ann_interval in mqtt-fed; a core is lost
    after three."""


def check_mqtt_fed(settings: MqttFedSettings) -> None:
    """Raise UsageError for settings that cannot work, with the setting and what to change."""
    if settings.id != NO_ID and not 0 <= settings.id <= ID_MAX:
        raise UsageError(f"[mqtt_fed] id must be from 0 to {ID_MAX}, not {settings.id}")
    if not 1 <= settings.redundancy <= REDUNDANCY_MAX:
        raise UsageError(
            f"[mqtt_fed] redundancy must be from 1 to {REDUNDANCY_MAX}, not {settings.redundancy}"
        )
    # Otherwise the sequence numbers of one run would exceed those of the next.
    if settings.announce_interval < 1:
        raise UsageError(
            "[mqtt_fed] announce_interval must be at least 1 second, by which announcements are"
            f" numbered, not {settings.announce_interval}"
        )
    if settings.id in parse_neighbours(settings):
        raise UsageError(f"[mqtt_fed] neighbours: {settings.id} is this node's own id")


def parse_neighbours(settings: MqttFedSettings) -> dict[int, Address]:
    found: dict[int, Address] = {}
    for text in settings.neighbours:
        id_, mark, place = text.partition("@")
        if not mark or not (id_.isascii() and id_.isdigit()) or int(id_) > ID_MAX:
            raise UsageError(f"[mqtt_fed] neighbour {text!r}: write it as id@host:port")
        if int(id_) in found:
            raise UsageError(f"[mqtt_fed] neighbour {text!r}: the id {id_} is there twice")
        found[int(id_)] = parse_address(place, BROKER_PORT)
    return found
