"""QoS 2 publications from one client that are not released yet.

The quota is the broker's Receive Maximum as Mosquitto counts it: see the methods that change it.
"""

from hansa.mqtt.packets import PublishPacket
from hansa.simulator.broker.message import Message


class Incoming:
    __slots__ = ("message", "repetitions")

    def __init__(self, message: Message) -> None:
        """Start with the first PUBLISH."""
        self.message = message
        self.repetitions = 0
        """PUBLISH packets beyond the first, in this connection."""


class IncomingWindow:
    __slots__ = ("in_flight", "in_flight_max", "queue", "quota")

    def __init__(self, in_flight_max: int) -> None:
        """`in_flight_max` is the broker's limit; 0 is none."""
        self.in_flight: dict[int, Incoming] = {}
        """By packet id."""
        self.queue: dict[int, Incoming] = {}
        """Those above the limit after a restart; the client gets another PUBREC for each."""
        self.in_flight_max = in_flight_max
        self.quota = in_flight_max

    @property
    def has_quota(self) -> bool:
        return not self.in_flight_max or self.quota > 0

    def return_quota(self) -> None:
        """Every PUBACK, PUBCOMP and refusal returns one, whether or not one was taken."""
        self.quota = min(self.in_flight_max, self.quota + 1)

    def find(self, packet: PublishPacket) -> Incoming | None:
        """Return the publication that a PUBLISH repeats.

        A different publication with the same packet id, also of QoS 1, deletes the one before,
        whose quota is lost until the client reconnects.
        """
        packet_id = packet.packet_id
        known = self.in_flight.get(packet_id) or self.queue.get(packet_id)
        if known is None:
            return None
        message = known.message
        if packet.qos == 2 and message.topic == packet.topic and message.payload == packet.payload:
            return known
        self.in_flight.pop(packet_id, None)
        return None

    def add(self, packet_id: int, message: Message) -> None:
        self.in_flight[packet_id] = Incoming(message)
        self.quota = max(0, self.quota - 1)

    def release(self, packet_id: int) -> Message | None:
        """Return the message that a PUBREL releases."""
        released = self.in_flight.pop(packet_id, None)
        return None if released is None else released.message

    def fill_after_release(self, in_flight_before: int, is_v2_1: bool) -> list[int]:
        """Fill the window after a PUBREL; return the packet ids that get a PUBREC.

        Version 2.1 does so if, and only if, there is no quota.
        """
        if is_v2_1:
            return self.fill(0 if self.has_quota else len(self.queue))
        if not self.in_flight_max:
            return self.fill(len(self.queue))
        return self.fill(self.in_flight_max - in_flight_before)

    def fill(self, room: int) -> list[int]:
        """Move up to `room` publications from the queue to the window; return their packet ids."""
        moved = list(self.queue)[: max(0, room)]
        for packet_id in moved:
            self.in_flight[packet_id] = self.queue.pop(packet_id)
            self.quota = max(0, self.quota - 1)
        return moved

    def reconnect(self, in_flight_max: int) -> None:
        """Count the quota anew, and forget how often publications were repeated."""
        self.in_flight_max = in_flight_max
        self.quota = max(0, in_flight_max - len(self.in_flight))
        self.fill(self.quota if in_flight_max else len(self.queue))
        for known in self.in_flight.values():
            known.repetitions = 0

    def saved(self) -> list[tuple[int, Message]]:
        """Return the publications in order."""
        return [
            (packet_id, known.message)
            for part in (self.in_flight, self.queue)
            for packet_id, known in part.items()
        ]

    def restore(self, saved: list[tuple[int, Message]]) -> None:
        """Take over saved publications; those above the limit are queued."""
        for packet_id, message in saved:
            if self.quota:
                self.add(packet_id, message)
            else:
                self.queue[packet_id] = Incoming(message)
