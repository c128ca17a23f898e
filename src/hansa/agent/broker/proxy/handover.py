"""What a proxy takes over from the time before its agent had started."""

from collections.abc import Callable
from typing import Protocol

from hansa.agent.alarms import Alarms
from hansa.agent.broker.proxy.listening import ListeningSockets


class Fallback(Protocol):
    def stop_accepting(self) -> None:
        """Close all connections; new ones wait until someone else accepts them."""


class Handover:
    """Open ports, and the fallback that has served clients there."""

    def __init__(self, listening: ListeningSockets | None = None) -> None:
        self.listening = listening or ListeningSockets()
        self.alarms = Alarms()
        """Those of the time before the agent; they are only logged."""
        self.fallback: Fallback | None = None
        self.is_over = False
        """Whether the agent serves clients itself, or has done so."""
        self.on_first_missed: Callable[[], object] = lambda: None
        self.has_missed_clients = False
        """Whether the fallback has served a client."""

    def on_client_missed(self) -> None:
        """The fallback serves a client."""
        if not self.has_missed_clients:
            self.has_missed_clients = True
            self.on_first_missed()

    def end_fallback(self) -> bool:
        """The agent serves clients from now on; return whether it has missed any."""
        self.is_over = True
        for name in list(self.alarms.active):
            self.alarms.set(name, "")
        if self.fallback is not None:
            self.fallback.stop_accepting()
        return self.has_missed_clients
