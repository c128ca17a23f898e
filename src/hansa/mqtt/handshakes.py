"""The QoS 1 and 2 handshakes of one direction: which step of which packet id comes next.

    QoS 1   PUBLISH ->   PUBACK <-
    QoS 2   PUBLISH ->   PUBREC <-   PUBREL ->   PUBCOMP <-

Who takes a step, and who must be told, is for `online` to know. Handshakes of an earlier connection
are unknown until whichever side remembers them *resumes* their end with a PUBREL.
"""

from hansa.mqtt.packets import Handshake, PubAck, PubComp, PubRec, PubRel

Step = type[Handshake]

_FIRST: dict[int, Step] = {1: PubAck, 2: PubRec}
_AFTER: dict[Step, Step] = {PubRec: PubRel, PubRel: PubComp}


class Handshakes:
    """All that are under way in one direction; never more than there are packet ids."""

    __slots__ = ("_next", "_resumed")

    def __init__(self) -> None:
        """Start a connection: none are under way."""
        self._next: dict[int, Step] = {}
        self._resumed: dict[int, None] = {}

    @property
    def count(self) -> int:
        """How many count against the receive maximum: not those that were resumed [4.9]."""
        return len(self._next) - len(self._resumed)

    def __contains__(self, packet_id: int) -> bool:
        return packet_id in self._next

    def expected(self, packet_id: int) -> Step | None:
        """Return the next step of a handshake, or None if there is no such handshake."""
        return self._next.get(packet_id)

    def open(self, packet_id: int, qos: int) -> None:
        """A PUBLISH was sent."""
        self._next[packet_id] = _FIRST[qos]

    def resume(self, packet_id: int) -> bool:
        """A PUBREL was sent for a PUBLISH of an earlier connection; False if it is of this one."""
        if packet_id in self._next:
            return False
        self._next[packet_id] = PubComp
        self._resumed[packet_id] = None
        return True

    def advance(self, step: Handshake) -> bool:
        """Take the next step; return False if this is not it."""
        packet_id, kind = step.packet_id, type(step)
        if self._next.get(packet_id) is not kind:
            return False
        after = _AFTER.get(kind)
        if after is None or (kind is PubRec and step.refused):  # [MQTT-4.3.3-4]
            del self._next[packet_id]
            self._resumed.pop(packet_id, None)
        else:
            self._next[packet_id] = after
        return True
