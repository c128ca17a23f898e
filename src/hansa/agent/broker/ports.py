"""The interface of the broker client towards the delivery of QoS 1 and 2."""

from collections.abc import Sequence
from typing import Protocol

from hansa.mqtt import packets
from hansa.mqtt.limits import BrokerLimits
from hansa.protocol.model import PlainMessage, Publication


class GuaranteedDeliveryPort(Protocol):
    """Delivery of QoS 1 and 2."""

    def on_connected(
        self, session_present: bool, session_expected: bool, limits: BrokerLimits
    ) -> None: ...

    def on_disconnected(self) -> None: ...

    def on_publications(self, batch: Sequence[tuple[packets.PublishPacket, bool]]) -> None:
        """Publications arrived, in order, each with whether it counts. All must be acknowledged."""

    def on_handshake_steps(self, batch: Sequence[packets.AnyHandshakePacket]) -> None:
        """Acknowledgements of one kind arrived."""

    def report_dropped(self, reason: str, topic: str = "", qos: int = 0) -> None:
        """A publication was dropped for good."""

    def on_not_sent(self, batch: Sequence[packets.PublishPacket], reason: str) -> None:
        """These cannot be published at this broker."""

    @property
    def has_pending_retained(self) -> bool:
        """Whether retained publications of QoS 1 or 2 are pending."""

    def hold_back(
        self, publications: Sequence[PlainMessage | Publication]
    ) -> Sequence[PlainMessage | Publication]:
        """Keep those of QoS 0 that must not be stored before pending ones; return the others."""

    def captured_subscription(self, publish: packets.PublishPacket) -> int:
        """Return the subscription whose copy of the first publication on this connection was
        captured before; 0 if there is none."""
