"""Stands where a Mosquitto would when the broker lives in its agent: it comes and goes with it."""

from dataclasses import dataclass


def is_amqtt_installed() -> bool:
    """Whether agents can have a broker of their own."""
    try:
        import amqtt.broker  # noqa: F401 - only an import tells whether all it needs is there
    except ImportError:
        return False
    return True


@dataclass(slots=True)
class EmbeddedBrokerStub:
    """A broker without a process."""

    port: int
    log_file: str = ""
    process: None = None

    async def start(self) -> None:
        """The agent does."""

    async def stop(self) -> None:
        """The agent does."""
