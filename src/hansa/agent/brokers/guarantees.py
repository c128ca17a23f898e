"""What the broker's client asks of whoever sees to publications of QoS 1 and 2."""

from collections.abc import Sequence
from typing import Protocol

from hansa.mqtt import packets
from hansa.mqtt.limits import Limits


class Guarantees(Protocol):
    """Who sees to publications of QoS 1 and 2."""

    def connected(self, session_present: bool, session_expected: bool, limits: Limits) -> None:
        """The broker is there."""

    def disconnected(self) -> None:
        """The broker is gone."""

    def received(self, batch: Sequence[tuple[packets.Publish, bool]]) -> None:
        """Publications came, in order; of each, whether it is to be taken. All want an answer."""

    def answered(self, batch: Sequence[packets.Handshake]) -> None:
        """Steps of handshakes came, of one kind."""

    def dropped(self, reason: str) -> None:
        """One is not passed on, now or ever."""

    def not_sent(self, batch: Sequence[packets.Publish], reason: str) -> None:
        """These cannot be published at this broker."""

    def rest_of(self, publish: packets.Publish) -> int:
        """Return which subscription brought another copy, which was taken before, of what comes
        first on this connection; 0 if none did."""
