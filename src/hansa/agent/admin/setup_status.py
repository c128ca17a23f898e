"""How an agent and its broker are set up: version, settings, limits of the broker."""

from dataclasses import asdict, fields

from hansa import __version__
from hansa.agent.broker.mosquitto_conf import configured_queue
from hansa.agent.broker.settings import BrokerSettings
from hansa.agent.settings import AgentSettings
from hansa.console.node_answers import WHOLE_MAX
from hansa.mqtt.limits import BrokerLimits
from hansa.protocol.settings import ProtocolSettings


def describe_setup(settings: AgentSettings) -> dict[str, object]:
    """Return what `hansa doctor federation` compares between nodes."""
    return {
        "version": __version__,
        "settings": changed_settings(settings.protocol),
        "delivery_settings": _delivery_settings(settings),
    }


def changed_settings(settings: ProtocolSettings) -> dict[str, object]:
    """Return the settings of the protocol that differ from their defaults."""
    return {
        field.name: getattr(settings, field.name)
        for field in fields(settings)
        if getattr(settings, field.name) != field.default
    }


def _delivery_settings(settings: AgentSettings) -> dict[str, object]:
    """Return the settings that decide how long publications are kept."""
    values = asdict(settings.delivery) | {"interest_lease": settings.protocol.interest_lease}
    return {
        name: min(value, WHOLE_MAX) if isinstance(value, int) else value
        for name, value in values.items()
    }


def describe_broker_limits(
    settings: BrokerSettings, limits: BrokerLimits | None
) -> dict[str, object]:
    """Return what the broker granted the connected agent, and what its configuration says."""
    return {
        "limits": None
        if limits is None
        else {
            "receive_maximum": limits.receive_maximum,
            "qos_max": limits.qos_max,
            "session_expiry": limits.session_expiry,
        },
        **configured_queue(settings.config_file),
    }
