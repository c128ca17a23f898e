"""What the broker's client asks of whoever sees to publications of QoS 1 and 2."""

from collections.abc import Sequence
from typing import Protocol

from hansa.mqtt import packets
from hansa.mqtt.limits import BrokerLimits
from hansa.protocol.model import PlainMessage, Publication


class GuaranteedDeliveryPort(Protocol):
    """Who sees to publications of QoS 1 and 2."""

    def on_connected(
        self, session_present: bool, session_expected: bool, limits: BrokerLimits
    ) -> None:
        """The broker is there."""

    def on_disconnected(self) -> None:
        """The broker is gone."""

    def on_publications(self, batch: Sequence[tuple[packets.PublishPacket, bool]]) -> None:
        """Publications came, in order; of each, whether it is to be taken. All want an answer."""

    def on_handshake_steps(self, batch: Sequence[packets.AnyHandshakePacket]) -> None:
        """Steps of handshakes came, of one kind."""

    def report_dropped(self, reason: str, topic: str = "", qos: int = 0) -> None:
        """A publication will never be passed on."""

    def on_not_sent(self, batch: Sequence[packets.PublishPacket], reason: str) -> None:
        """These cannot be published at this broker."""

    @property
    def has_pending_retained(self) -> bool:
        """Whether retained publications of QoS 1 or 2 are pending."""

    def hold_back(
        self, publications: Sequence[PlainMessage | Publication]
    ) -> Sequence[PlainMessage | Publication]:
        """Keep those of QoS 0 that must not be stored before them; return the others."""

    def captured_subscription(self, publish: packets.PublishPacket) -> int:
        """Return which subscription brought another copy, which was taken before, of what comes
        first on this connection; 0 if none did."""
