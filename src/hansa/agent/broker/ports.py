"""What the broker's client asks of whoever sees to publications of QoS 1 and 2."""

from collections.abc import Sequence
from typing import Protocol

from hansa.mqtt import packets
from hansa.mqtt.limits import Limits
from hansa.protocol.model import Plain, Publication


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

    def dropped(self, reason: str, topic: str = "", qos: int = 0) -> None:
        """A publication will never be passed on."""

    def not_sent(self, batch: Sequence[packets.Publish], reason: str) -> None:
        """These cannot be published at this broker."""

    @property
    def is_storing(self) -> bool:
        """Whether retained publications of QoS 1 or 2 are pending."""

    def hold_back(
        self, publications: Sequence[Plain | Publication]
    ) -> Sequence[Plain | Publication]:
        """Keep those of QoS 0 that must not be stored before them; return the others."""

    def rest_of(self, publish: packets.Publish) -> int:
        """Return which subscription brought another copy, which was taken before, of what comes
        first on this connection; 0 if none did."""
