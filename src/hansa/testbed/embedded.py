"""Stands in for a `Mosquitto` if agents run embedded brokers, which start and stop with them."""

from dataclasses import dataclass


def is_amqtt_installed() -> bool:
    """Whether agents can run embedded brokers."""
    try:
        import amqtt.broker  # noqa: F401 - an import also checks its dependencies
    except ImportError:
        return False
    return True


@dataclass(slots=True)
class EmbeddedBrokerStub:
    port: int
    log_file: str = ""
    config_file: str = ""
    process: None = None

    async def start(self) -> None:
        """Do nothing: the agent starts the broker."""

    async def stop(self) -> None:
        """Do nothing: the agent stops the broker."""
